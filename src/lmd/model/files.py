"""The two files of a shipped model; neither can contain code.

``model.safetensors`` has the weights, ``model.json`` all else that is needed to use them.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as pack_tensors

from lmd import __version__
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write_all
from lmd.model import STRICT, Model, Preprocessing, assemble
from lmd.scoring.conformal import Held


@dataclass(frozen=True, config=STRICT)
class Prior:
    """The class mix ``shares (K,)`` that the probabilities answer for.

    ``kind`` is ``uniform`` where training balances the classes and ``training`` where it does not.
    """

    kind: Literal["uniform", "training"]
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = sum(self.shares)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of the prior must sum to 1; they sum to {total:g}")
        return self


@dataclass(frozen=True, config=STRICT)
class HeldOut:
    """Of the validation images of each class, the sorted probabilities of that class.

    ``tiers (K,)`` are head, medium or tail; ``probabilities`` are K lists. ``groups`` has the
    number of the patient or lesion of each image, if it is known.
    """

    tiers: tuple[str, ...]
    probabilities: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...]
    groups: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(cls, classes: Sequence[Held], tiers: Sequence[str]) -> Self:
        """Describe the held-out images of each class, with probabilities rounded to float32."""
        rows = [np.minimum(held.probabilities, 1).astype(np.float32) for held in classes]
        # The shortest text of a float32, which reads back as the same float32.
        probabilities = tuple(tuple(float(str(p)) for p in row) for row in rows)
        groups = [tuple(held.groups.tolist()) for held in classes if held.groups is not None]
        complete = len(groups) == len(classes)
        return cls(tuple(tiers), probabilities, tuple(groups) if complete else None)

    def classes(self) -> list[Held]:
        """Return the held-out images of each class."""
        groups = self.groups or [None] * len(self.probabilities)
        return [
            Held(np.array(p, np.float32), None if g is None else np.array(g, int))
            for p, g in zip(self.probabilities, groups, strict=True)
        ]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for values in self.probabilities:
            if any(a > b for a, b in pairwise(values)):
                raise ValueError("the probabilities of a class must be sorted")
        if self.groups is not None and [*map(len, self.groups)] != [*map(len, self.probabilities)]:
            raise ValueError("every probability of held-out images must have a group, or none")
        return self


FORMAT = 1
CLASSIFIER = "classifier.npz"  # of a folder that classifies features
AVERAGE = "average.json"  # of a folder whose models answer together
_OTHERS = {
    AVERAGE: "the average of several models, and one is needed here: give one of its folds, or "
    "train with --final refit",
    CLASSIFIER: "a classifier of features, not of images: encode the images first, and use "
    "lmd.load_classifier",
}


@dataclass(frozen=True, config=STRICT)
class ModelSpec:
    """The description of a model; its probabilities are ``softmax(logits / temperature)``.

    ``classes (K,)`` are in the order of the logits; ``class_counts (K,)`` are of the training part;
    ``method`` is a title. ``levels`` are inner levels of the encoder that belong to its features.
    """

    classes: Annotated[tuple[str, ...], Field(min_length=1, max_length=100_000)]
    backbone: str
    head: Literal["linear", "cosine"]
    feature_dim: Annotated[int, Field(gt=0, le=10**6)]
    preprocessing: Preprocessing
    method: str
    class_counts: tuple[Annotated[int, Field(ge=0, le=10**12)], ...]
    temperature: Annotated[float, Field(gt=1e-6, le=1e6)] = 1.0
    levels: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    prior: Prior | None = None
    held_out: HeldOut | None = None
    lmd_version: str = __version__

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must differ from one another")
        per_class: dict[str, Sequence[Any]] = {"class_counts": self.class_counts}
        if self.prior is not None:
            per_class["prior.shares"] = self.prior.shares
        if self.held_out is not None:
            per_class["held_out.tiers"] = self.held_out.tiers
            per_class["held_out.probabilities"] = self.held_out.probabilities
        for name, values in per_class.items():
            if len(values) != len(self.classes):
                raise ValueError(
                    f"{name} has {len(values)} entries for {len(self.classes)} classes"
                )
        return self


def save_model(model: Model, path: Path, spec: ModelSpec) -> str:
    """Write ``model.safetensors`` (float32) and ``model.json`` into the folder ``path``.

    Return the SHA-256 of the weights.
    """
    rows, width = model.classifier.weight.shape
    if (rows, width) != (len(spec.classes), spec.feature_dim):
        raise LmdError(
            f"model file: the classifier is {rows}×{width}, but there are "
            f"{len(spec.classes)} class names and {spec.feature_dim} features"
        )
    tensors = {}
    for name, tensor in model.state_dict().items():
        # A copy, because safetensors refuses tensors that share memory.
        copy = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        tensors[name] = copy.float() if copy.is_floating_point() else copy
    packed = pack_tensors(tensors, metadata={"format": "pt"})
    digest = hashlib.sha256(packed).hexdigest()
    header = {"format": FORMAT, "sha256": digest}
    text = json.dumps(header | dataclasses.asdict(spec), indent=2, ensure_ascii=False) + "\n"
    # Lists of numbers on one line; a line break inside brackets is never part of a string.
    text = re.sub(r"\[\n[-+.\de,\s]*\]", lambda match: " ".join(match[0].split()), text)
    files = {path / "model.safetensors": packed, path / "model.json": text.encode()}
    atomic_write_all(files, parents=True)
    return digest


def read_spec(content: Any, where: str) -> ModelSpec:
    """Return the description of a model from its JSON; ``where`` names it in errors."""
    try:
        # Strict: a string is not converted to a number.
        return TypeAdapter(ModelSpec).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        lines = [f"'{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in error.errors()]
        raise LmdError(f"{where} is not valid; {'; '.join(lines)}") from error


def load_model(path: Path) -> tuple[Model, ModelSpec]:
    """Return the model, in eval mode on the CPU, and its spec from a run folder or either file.

    Nothing is downloaded or unpickled.
    """
    return read_model(path)[:2]


def read_model(path: Path) -> tuple[Model, ModelSpec, str]:
    """Load a model as ``load_model`` does; the third value is the SHA-256 of its weights."""
    description, weights = _locate(Path(path))
    sha256, spec = _read_spec(description)
    packed = _read_bytes(weights)
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
        model, _ = assemble(spec.backbone, "none", len(spec.classes), spec.head)
        try:
            model.widen(spec.levels)
        except LmdError as error:
            raise LmdError(f"model file {description}: {error}") from None
    if spec.feature_dim != model.classifier.in_features:
        raise LmdError(
            f"model file {description}: 'feature_dim' is {spec.feature_dim}, but {spec.backbone} "
            f"has {model.classifier.in_features} features"
        )
    expected, forms = (
        {name: f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for name, t in d.items()}
        for d in (model.state_dict(), state)
    )
    for name in sorted(expected | forms):
        wanted, actual = expected.get(name, "absent"), forms.get(name, "absent")
        if wanted != actual:
            raise LmdError(f"model file {weights}: {name} is {actual} and should be {wanted}")
    model.load_state_dict(state)
    return model.eval(), spec, sha256


def weights_digest(path: Path) -> str:
    """Return the SHA-256 of the weights, as the description of the model in ``path`` has it."""
    return _read_spec(_locate(Path(path))[0])[0]


def _locate(path: Path) -> tuple[Path, Path]:
    if path.is_dir():
        for name, content in _OTHERS.items():
            if (path / name).exists() and not (path / "model.json").exists():
                raise LmdError(f"{path} has {content}")
        path = path / "model.json"
    elif not path.exists() and not path.suffix:
        raise LmdError(f"{path} does not exist: give a run folder, its model.json or an .onnx file")
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


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LmdError(f"model file {path} cannot be read: {error.strerror}") from error


def _read_spec(path: Path) -> tuple[str, ModelSpec]:
    try:
        content: Any = json.loads(_read_bytes(path))
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
    return sha256, read_spec(content, f"model file {path}")
