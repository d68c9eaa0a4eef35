"""The model: an encoder, a classifier, and the files of a trained one."""

from lmd.model.files import ModelSpec, load_model, save_model, weights_digest
from lmd.model.network import (
    CosineClassifier,
    Model,
    Preprocessing,
    build_model,
    channels_last,
)

__all__ = [
    "CosineClassifier",
    "Model",
    "ModelSpec",
    "Preprocessing",
    "build_model",
    "channels_last",
    "load_model",
    "save_model",
    "weights_digest",
]
