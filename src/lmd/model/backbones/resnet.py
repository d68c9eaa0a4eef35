"""Residual networks (He et al., CVPR 2016) with the parameter names of torchvision."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.base.files import cache_folder
from lmd.model.backbones import Backbone, download

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_URL = "https://download.pytorch.org/models/"
# The first digits of the SHA-256 of a file, which are in its name.
_IMAGENET = {"resnet18": "f37072fd", "resnet34": "b627a593", "resnet50": "0676ba61"}


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


@dataclass(frozen=True)
class Layout:
    """The layout of a residual network.

    ``sizes`` are of the convolutions in a block: two of 3×3, or 1×1, 3×3 and 1×1 (a bottleneck).
    ``depths`` are blocks per stage, ``widths`` the channels of each stage before ``expansion``. A
    ``small`` stem keeps the resolution, for images of 28 to 64 pixels.
    """

    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    expansion: int = 1
    small: bool = False


LAYOUTS = {
    "resnet8": Layout((3, 3), (1, 1, 1), (32, 64, 128), small=True),
    "resnet18": Layout((3, 3), (2, 2, 2, 2), (64, 128, 256, 512)),
    "resnet34": Layout((3, 3), (3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet50": Layout((1, 3, 1), (3, 4, 6, 3), (64, 128, 256, 512), expansion=4),
}


class Block(nn.Module):
    """Convolutions beside a shortcut: ``(B, C, H, W) → (B, C', H/stride, W/stride)``.

    The first 3×3 convolution takes the stride, as in the published weights.
    """

    def __init__(self, layout: Layout, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs, self.depth = width * layout.expansion, len(layout.sizes)
        downsample = None
        if stride != 1 or inputs != outputs:
            convolution = _convolution(inputs, outputs, 1, stride)
            downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
        for number, size in enumerate(layout.sizes, start=1):
            channels = outputs if number == self.depth else width
            step = stride if number == layout.sizes.index(3) + 1 else 1
            self.add_module(f"conv{number}", _convolution(inputs, channels, size, step))
            self.add_module(f"bn{number}", nn.BatchNorm2d(channels))
            inputs = channels
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C', H/stride, W/stride)``."""
        shortcut = x if self.downsample is None else self.downsample(x)
        for number in range(1, self.depth + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            if number < self.depth:
                x = self.relu(x)
        out: Tensor = self.relu(x + shortcut)
        return out


class ResNet(nn.Module):
    """Stem, stages ``layer1``, ``layer2``, …, global average: ``(B, 3, H, W) → (B, C)``.

    ``levels`` are stages whose averages are appended to the features.
    """

    levels: tuple[str, ...] = ()

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        channels = layout.widths[0]
        self.conv1 = _convolution(3, channels, 3) if layout.small else _convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if layout.small else nn.MaxPool2d(3, stride=2, padding=1)
        self._stages = [f"layer{number}" for number in range(1, len(layout.depths) + 1)]
        for name, depth, width in zip(self._stages, layout.depths, layout.widths, strict=True):
            stride = 1 if name == "layer1" else 2
            first, channels = Block(layout, channels, width, stride), width * layout.expansion
            others = [Block(layout, channels, width, 1) for _ in range(depth - 1)]
            self.add_module(name, nn.Sequential(first, *others))
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, images: Tensor) -> Tensor:
        """Features ``(B, C)``."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        inner: list[Tensor] = []
        for name in self._stages:
            x = getattr(self, name)(x)
            if name in self.levels:
                inner.append(self.avgpool(x).flatten(1))
        features: Tensor = self.avgpool(x).flatten(1)
        return torch.cat([features, *inner], dim=1) if inner else features

    def level(self, name: str) -> nn.Module:
        """The module whose output a level averages."""
        return self.get_submodule(name)


def make(name: str) -> Backbone:
    """Return the encoder, without its ImageNet classifier; all stages but the last are levels."""
    layout = LAYOUTS[name]
    *inner, last = (width * layout.expansion for width in layout.widths)
    levels = {f"layer{number}": width for number, width in enumerate(inner, start=1)}
    return Backbone(ResNet(layout), last, MEAN, STD, levels)


def imagenet_file(name: str) -> Path:
    """Return the published ImageNet weights, downloaded once."""
    if name not in _IMAGENET:
        raise LmdError(
            f"weights: {name} has no ImageNet weights; use --set weights=none, or another "
            f"backbone ({', '.join(_IMAGENET)}, efficientnet_lite0)"
        )
    digits = _IMAGENET[name]
    return download(f"{_URL}{name}-{digits}.pth", digits, cache_folder("weights"))
