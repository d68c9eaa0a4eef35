"""The encoders that a model can have, by name."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.model.backbones import lite, resnet, timm_adapter
from lmd.model.backbones.weights import NoWeights, initialise, load_weights

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Backbone:
    """``encoder (B, 3, H, W) → (B, C)`` with C = ``feature_dim``.

    Its input is ``(image - mean) / std``, for RGB images with values in 0..1. ``levels`` are the
    inner levels that the encoder can add to its features, from shallow to deep, and their widths.
    """

    encoder: nn.Module
    feature_dim: int
    mean: Colour
    std: Colour
    levels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Family:
    make: Callable[[str], nn.Module]
    imagenet: Callable[[str], Path]
    mean: Colour
    std: Colour


_RESNET = _Family(
    resnet.make, resnet.imagenet_file, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)
_LITE = _Family(
    lite.make,
    lite.imagenet_file,
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,  # (x - 127) / 128
)
_FAMILIES = dict.fromkeys(resnet.LAYOUTS, _RESNET) | {"efficientnet_lite0": _LITE}
_FEATURES = {name: layout.feature_dim for name, layout in resnet.LAYOUTS.items()} | {
    "efficientnet_lite0": lite.FEATURE_DIM
}
_LEVELS = {name: layout.levels for name, layout in resnet.LAYOUTS.items()} | {
    "efficientnet_lite0": lite.LEVELS
}


def names() -> list[str]:
    """The names that ``build`` takes; ``timm/NAME`` is any model of timm.

    >>> names()
    ['resnet8', 'resnet18', 'resnet34', 'resnet50', 'efficientnet_lite0', 'timm/NAME']
    """
    return [*_FAMILIES, "timm/NAME"]


def available(name: str) -> tuple[str, str, str]:
    """A backbone and weights that can be had here, and why they are not ``name`` and ImageNet's.

    Where the weights of ``name`` cannot be downloaded, these are EfficientNet-Lite0 with the
    weights that pip has installed, or random weights.
    """
    try:
        _FAMILIES[name].imagenet(name)
    except NoWeights as error:
        with suppress(LmdError):
            lite.imagenet_file("efficientnet_lite0")
            return "efficientnet_lite0", "imagenet", error.problem
        return name, "none", error.problem
    return name, "imagenet", ""


def build(name: str, weights: str = "none") -> Backbone:
    """An encoder with ``weights``: ``none`` (random), ``imagenet``, or the path of a file."""
    if name.startswith("timm/"):
        encoder, mean, std = timm_adapter.make(name, pretrained=weights == "imagenet")
        if weights not in ("none", "imagenet"):
            load_weights(encoder, Path(weights))
        return Backbone(encoder, timm_adapter.feature_dim(encoder), mean, std)
    if name not in _FAMILIES:
        raise LmdError(unknown("backbone", name, names()))
    family = _FAMILIES[name]
    encoder = family.make(name)
    if weights == "none":
        initialise(encoder)
    else:
        file = family.imagenet(name) if weights == "imagenet" else Path(weights)
        load_weights(encoder, file)
    return Backbone(encoder, _FEATURES[name], family.mean, family.std, _LEVELS[name])
