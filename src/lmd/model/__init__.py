"""The model: an encoder, a classifier, and the files of a trained one."""

from lmd.model.files import (
    AVERAGE,
    HeldOut,
    ModelSpec,
    Prior,
    load_model,
    read_model,
    read_spec,
    save_model,
    weights_digest,
)
from lmd.model.network import CosineClassifier, Model, Preprocessing, build_model, channels_last

__all__ = [
    "AVERAGE",
    "CosineClassifier",
    "HeldOut",
    "Model",
    "ModelSpec",
    "Preprocessing",
    "Prior",
    "build_model",
    "channels_last",
    "load_model",
    "read_model",
    "read_spec",
    "save_model",
    "weights_digest",
]
