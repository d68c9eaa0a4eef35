"""The model that every method trains and ships."""

from lmd.model.files import (
    CosineClassifier,
    Model,
    ModelSpec,
    Preprocessing,
    build_model,
    channels_last,
    load_model,
    save_model,
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
]
