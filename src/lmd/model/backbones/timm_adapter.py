"""Image encoders of timm, as ``timm/NAME``."""

import difflib
import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lmd.base.errors import LmdError
from lmd.model.backbones import Backbone, Colour

# A library's schemas exist as long as its object does.
_schemas: list[torch.library.Library] = []


def make(name: str, pretrained: bool) -> Backbone:
    """Return the encoder ``(B, 3, H, W) → (B, C)`` of ``timm/NAME``."""
    timm = _import_timm()
    short = name.removeprefix("timm/")
    architecture = short.split(".")[0]
    if not timm.is_model(architecture):
        similar = difflib.get_close_matches(architecture, timm.list_models(), n=5)
        hint = f"; similar names: {', '.join(similar)}" if similar else ""
        raise LmdError(f"backbone: timm has no model {architecture!r}{hint}")
    try:
        encoder: nn.Module = timm.create_model(short, pretrained=pretrained, num_classes=0)
    except Exception as error:  # timm and its hub raise errors of many kinds
        if not pretrained:
            raise LmdError(f"backbone: timm cannot build {short!r}: {error}") from error
        raise LmdError(
            f"weights: timm could not load the pretrained weights of {short!r} "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). "
            "Check the network, give a file with --weights FILE, or use --set weights=none"
        ) from error
    config: dict[str, Any] = encoder.pretrained_cfg  # type: ignore[assignment]
    # The width before the removed classifier; some models have it in another attribute.
    width = getattr(encoder, "head_hidden_size", None) or encoder.num_features
    return Backbone(encoder, int(width), _three(config["mean"]), _three(config["std"]))  # type: ignore[arg-type]


def _three(values: Any) -> Colour:
    red, green, blue = values if len(values) == 3 else [values[0]] * 3
    return float(red), float(green), float(blue)


def _import_timm() -> ModuleType:
    """Import timm, even if the installed torchvision does not match torch.

    torchvision then fails at its first operator. timm needs none of them, so declaring the two
    missing schemas is enough to import both.
    """
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name == "timm":
            raise LmdError(
                "backbone: timm/NAME needs an extra package; run pip install 'lmd[timm]'"
            ) from None
        raise LmdError(f"backbone: timm needs {error.name}, which is not installed") from error
    except (ImportError, RuntimeError, OSError):
        # What was half imported is imported anew.
        for module in [m for m in sys.modules if m.split(".")[0] in ("timm", "torchvision")]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "FRAGMENT")
        _schemas.append(library)
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError, OSError) as error:
        raise LmdError(
            f"backbone: timm cannot be imported ({error}); install a torchvision that matches "
            f"torch {torch.__version__}"
        ) from error
