"""The encoders that a model can have, by name; a module is imported when its encoder is used."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.model.backbones.weights import Backbone, NoWeights, initialise, load_weights

_MODULES = {
    **dict.fromkeys(("resnet8", "resnet18", "resnet34", "resnet50"), "resnet"),
    "efficientnet_lite0": "lite",
}


def names() -> list[str]:
    """Return the names that ``build`` takes; ``timm/NAME`` is any model of timm.

    >>> names()
    ['resnet8', 'resnet18', 'resnet34', 'resnet50', 'efficientnet_lite0', 'timm/NAME']
    """
    return [*_MODULES, "timm/NAME"]


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{_MODULES[name]}")


def available(name: str) -> tuple[str, str, str]:
    """Return a backbone and weights for use here, and why they are not ``name`` and ImageNet's.

    Where the weights of ``name`` cannot be downloaded, these are EfficientNet-Lite0 with the
    weights that pip has installed, or random weights.
    """
    try:
        _module(name).imagenet_file(name)
    except NoWeights as error:
        with suppress(LmdError):
            _module("efficientnet_lite0").imagenet_file("efficientnet_lite0")
            return "efficientnet_lite0", "imagenet", error.problem
        return name, "none", error.problem
    return name, "imagenet", ""


def build(name: str, weights: str = "none") -> Backbone:
    """Return an encoder with ``weights``: ``none`` (random), ``imagenet``, or those of a file."""
    file = None if weights in ("none", "imagenet") else Path(weights)
    if name.startswith("timm/"):
        from lmd.model.backbones import timm_adapter

        backbone = timm_adapter.make(name, pretrained=weights == "imagenet")
    elif name in _MODULES:
        backbone = _module(name).make(name)
        if weights == "none":
            initialise(backbone.encoder)
        elif weights == "imagenet":
            file = _module(name).imagenet_file(name)
    else:
        raise LmdError(unknown("backbone", name, names()))
    if file is not None:
        load_weights(backbone.encoder, file)
    return backbone
