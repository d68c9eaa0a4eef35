"""Any image encoder of timm, as ``timm/NAME``."""

import difflib
import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lmd.base.errors import LmdError

# A library's schemas live as long as this object.
_schemas: list[torch.library.Library] = []


def make(
    name: str, pretrained: bool
) -> tuple[nn.Module, tuple[float, float, float], tuple[float, float, float]]:
    """The encoder ``(B, 3, H, W) → (B, C)`` of ``timm/NAME``, and its input's mean and std."""
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
    return encoder, _three(config["mean"]), _three(config["std"])


def feature_dim(encoder: nn.Module) -> int:
    """C: the width in front of the removed classifier, which some models keep apart."""
    return int(getattr(encoder, "head_hidden_size", None) or encoder.num_features)  # type: ignore[arg-type]


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = values if len(values) == 3 else [values[0]] * 3
    return float(red), float(green), float(blue)


def _import_timm() -> ModuleType:
    """Import timm, also where torchvision does not fit the installed torch.

    torchvision then stops at its first operator, of which timm needs none: with the two missing
    schemas declared, both can be imported.
    """
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name == "timm":
            raise LmdError(
                "backbone: timm/NAME needs an extra package; run pip install 'lmd[timm]'"
            ) from None
        raise LmdError(f"backbone: timm is installed, but not its part {error.name}") from error
    except (ImportError, RuntimeError, OSError):
        _declare_torchvision_operators()
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError, OSError) as error:
        raise LmdError(
            f"backbone: timm cannot be imported here ({error}); install a torchvision that fits "
            f"torch {torch.__version__}"
        ) from error


def _declare_torchvision_operators() -> None:
    for module in [m for m in sys.modules if m.split(".")[0] in ("timm", "torchvision")]:
        del sys.modules[module]
    library = torch.library.Library("torchvision", "FRAGMENT")
    _schemas.append(library)
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
