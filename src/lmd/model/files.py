"""The model that every method trains and ships: an encoder and a classifier, and their file.

A shipped model is two files side by side: ``model.safetensors`` holds the weights, ``model.json``
all that is needed to use them. Neither can contain code.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor, nn
from torch.nn import functional as F

from lmd import __version__
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write_all
from lmd.model import backbones

FORMAT = 1
HEADS = ("linear", "cosine")

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=0)]


class CosineClassifier(nn.Module):
    """Scaled cosine between feature and class weight: ``(B, C) → (B, K)``; the scale is inside."""

    scale: Tensor

    def __init__(self, in_features: int, out_features: int, scale: float = 30.0) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.register_buffer("scale", torch.tensor(float(scale)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class weights anew, each of length one.

        The cosine does not depend on the length, but how fast a weight turns does: its gradient is
        divided by it, so that weights of length √C would turn C times as slowly.
        """
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight))

    def cosine(self, features: Tensor) -> Tensor:
        """Cosines in [-1, 1], without the scale: ``(B, C) → (B, K)``."""
        # In bfloat16 a cosine times a scale of 30 would be off by a tenth of a logit.
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(F.normalize(features.float()), F.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        return self.scale * self.cosine(features)


class Model(nn.Module):
    """``encoder (B, 3, H, W) → (B, C)`` and ``classifier (B, C) → (B, K)``."""

    def __init__(self, encoder: nn.Module, classifier: nn.Linear | CosineClassifier) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = classifier

    def features(self, images: Tensor) -> Tensor:
        """Features ``(B, C)``."""
        features: Tensor = self.encoder(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(B, K)``."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def channels_last(model: Model) -> Model:
    """The same model with its weights laid out as convolutions are fastest on: values unchanged."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, config=_CONFIG)
class Preprocessing:
    """Square images of ``image_size`` pixels; values in 0..1 become ``(x - mean) / std``, RGB."""

    image_size: Annotated[int, Field(gt=0)]
    mean: tuple[float, float, float]
    std: tuple[_Positive, _Positive, _Positive]


@dataclass(frozen=True, config=_CONFIG)
class ModelSpec:
    """All that is needed to use a model's weights.

    ``classes (K,)`` in the order of the logits, ``class_counts (K,)`` of the training part,
    ``method`` its title; probabilities are ``softmax(logits / temperature)``.
    """

    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    backbone: str
    head: Literal["linear", "cosine"]
    feature_dim: Annotated[int, Field(gt=0)]
    preprocessing: Preprocessing
    method: str
    class_counts: tuple[_Count, ...]
    temperature: _Positive = 1.0
    lmd_version: str = __version__

    @model_validator(mode="after")
    def _check(self) -> "ModelSpec":
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must differ from one another")
        if len(self.class_counts) != len(self.classes):
            raise ValueError(
                f"class_counts has {len(self.class_counts)} entries for {len(self.classes)} classes"
            )
        return self


def build_model(
    backbone: str,
    weights: str,
    classes: int,
    head: str = "linear",
    *,
    image_size: int = 224,
    seed: int | None = None,
) -> tuple[Model, Preprocessing]:
    """A model for K = ``classes`` and how its images are prepared.

    The same ``seed`` draws the same weights, whatever was drawn before; the global generator is
    then left as it was.
    """
    if head not in HEADS:
        raise LmdError(f"head: there is no {head!r}; choose one of {', '.join(HEADS)}")
    if classes < 1:
        raise LmdError(f"classes: a model needs at least 1 class, not {classes}")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        model, base = _assemble(backbone, weights, classes, head)
    _try_size(model, backbone, image_size)
    return model, Preprocessing(image_size, base.mean, base.std)


def _assemble(
    backbone: str, weights: str, classes: int, head: str
) -> tuple[Model, backbones.Backbone]:
    base = backbones.build(backbone, weights)
    classifier = CosineClassifier if head == "cosine" else nn.Linear
    return Model(base.encoder, classifier(base.feature_dim, classes)), base


def _try_size(model: Model, backbone: str, image_size: int) -> None:
    """One image through the encoder: some backbones take a single size only."""
    model.eval()
    try:
        with torch.no_grad():
            features = model.features(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise LmdError(
            f"image_size: backbone {backbone} does not take images of {image_size} pixels ({error})"
        ) from error
    assert features.shape == (1, model.classifier.in_features), features.shape
    model.train()


def save_model(model: Model, path: Path, spec: ModelSpec) -> None:
    """Write ``model.safetensors`` (plain float32) and ``model.json`` into the folder ``path``."""
    shape = (model.classifier.out_features, model.classifier.in_features)
    if shape != (len(spec.classes), spec.feature_dim):
        raise LmdError(
            f"model file: the classifier is {shape[0]}×{shape[1]}, but there are "
            f"{len(spec.classes)} class names and {spec.feature_dim} features"
        )
    tensors = {name: _plain(tensor) for name, tensor in model.state_dict().items()}
    packed = pack_tensors(tensors, metadata={"format": "pt"})
    header = {"format": FORMAT, "sha256": hashlib.sha256(packed).hexdigest()}
    text = json.dumps(header | dataclasses.asdict(spec), indent=2, ensure_ascii=False) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmdError(f"cannot create the folder {path}: {error.strerror}") from error
    atomic_write_all({path / "model.safetensors": packed, path / "model.json": text.encode()})


def _plain(tensor: Tensor) -> Tensor:
    # Copies: safetensors refuses tensors that share memory.
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensor.float() if tensor.is_floating_point() else tensor


def load_model(path: Path) -> tuple[Model, ModelSpec]:
    """The model (in eval mode, on the CPU) and its spec; needs no network and runs no pickle.

    ``path`` is the folder of a run, or either of the two files.
    """
    description, weights = _locate(Path(path))
    sha256, spec = _read_spec(description)
    try:
        packed = weights.read_bytes()
    except OSError as error:
        raise LmdError(f"model file {weights} cannot be read: {error.strerror}") from error
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise LmdError(
            f"model file {weights} is not the one that {description.name} describes (its SHA-256 "
            "differs): it was changed, damaged or belongs to another model; copy both files again"
        )
    try:
        state = read_tensors(packed)
    except SafetensorError as error:
        raise LmdError(f"model file {weights} is not a safetensors file ({error})") from error
    with torch.random.fork_rng(devices=[]):
        model, base = _assemble(spec.backbone, "none", len(spec.classes), spec.head)
    if spec.feature_dim != base.feature_dim:
        raise LmdError(
            f"model file {description}: 'feature_dim' is {spec.feature_dim}, but {spec.backbone} "
            f"has {base.feature_dim} features"
        )
    _check_tensors(weights, model.state_dict(), state)
    model.load_state_dict(state)
    return model.eval(), spec


def _locate(path: Path) -> tuple[Path, Path]:
    if path.is_dir():
        path = path / "model.json"
    if path.suffix not in (".json", ".safetensors"):
        raise LmdError(
            f"model file {path}: expected the folder of a run, its model.json or its "
            "model.safetensors; pickle files (.pt, .pth) are never loaded as models"
        )
    files = path.with_suffix(".json"), path.with_suffix(".safetensors")
    for file in files:
        if not file.is_file():
            raise LmdError(
                f"model file {file} does not exist; a model is {files[0].name} together "
                f"with {files[1].name}"
            )
    return files


def _read_spec(path: Path) -> tuple[str, ModelSpec]:
    try:
        content: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise LmdError(f"model file {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LmdError(f"model file {path} is not valid JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise LmdError(f"model file {path} is not a model description of lmd: it has no format")
    number = content.pop("format")
    if number != FORMAT:
        raise LmdError(
            f"model file {path} has format {number} (written by lmd "
            f"{content.get('lmd_version', 'unknown')}), this lmd {__version__} reads format "
            f"{FORMAT}; install a version of lmd that fits"
        )
    sha256 = content.pop("sha256", None)
    if not isinstance(sha256, str):
        raise LmdError(f"model file {path}: 'sha256' of the weights is missing")
    try:
        # Strict: a text does not stand for a number.
        return sha256, TypeAdapter(ModelSpec).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        lines = [f"'{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in error.errors()]
        raise LmdError(f"model file {path} is not valid; {'; '.join(lines)}") from error


def _check_tensors(path: Path, expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() | state.keys()):
        wanted, found = (
            f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" if t is not None else "absent"
            for t in (expected.get(name), state.get(name))
        )
        if wanted != found:
            raise LmdError(f"model file {path}: {name} is {found} and should be {wanted}")
