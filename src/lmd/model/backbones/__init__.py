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
class _Kind:
    make: Callable[[str], nn.Module]
    imagenet: Callable[[str], Path]
    mean: Colour
    std: Colour
    feature_dim: int
    levels: Mapping[str, int]


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_TENSORFLOW = (127 / 255,) * 3, (128 / 255,) * 3  # (x - 127) / 128
_RESNET, _LITE = (resnet.make, resnet.imagenet_file), (lite.make, lite.imagenet_file)
_KINDS = {
    name: _Kind(*_RESNET, *_IMAGENET, layout.feature_dim, layout.levels)
    for name, layout in resnet.LAYOUTS.items()
}
_KINDS["efficientnet_lite0"] = _Kind(*_LITE, *_TENSORFLOW, lite.FEATURE_DIM, lite.LEVELS)


def names() -> list[str]:
    """The names that ``build`` takes; ``timm/NAME`` is any model of timm.

    >>> names()
    ['resnet8', 'resnet18', 'resnet34', 'resnet50', 'efficientnet_lite0', 'timm/NAME']
    """
    return [*_KINDS, "timm/NAME"]


def available(name: str) -> tuple[str, str, str]:
    """A backbone and weights that can be had here, and why they are not ``name`` and ImageNet's.

    Where the weights of ``name`` cannot be downloaded, these are EfficientNet-Lite0 with the
    weights that pip has installed, or random weights.
    """
    try:
        _KINDS[name].imagenet(name)
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
    if name not in _KINDS:
        raise LmdError(unknown("backbone", name, names()))
    kind = _KINDS[name]
    encoder = kind.make(name)
    if weights == "none":
        initialise(encoder)
    else:
        load_weights(encoder, kind.imagenet(name) if weights == "imagenet" else Path(weights))
    return Backbone(encoder, kind.feature_dim, kind.mean, kind.std, kind.levels)
