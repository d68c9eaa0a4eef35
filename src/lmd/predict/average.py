"""``average.json``: the models of several folders that answer together, by their mean."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.model import AVERAGE, ModelSpec, Prior, load_model, weights_digest
from lmd.predict.engines import TorchEngine
from lmd.predict.novelty import Novelty, load_novelty


class _Member(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Annotated[str, Field(pattern=re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"))]
    sha256: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    members: Annotated[list[_Member], Field(min_length=2, max_length=1000)]


@dataclass(frozen=True)
class AverageEngine:
    """Several models with the same classes; its probabilities are the mean of theirs."""

    engines: tuple[TorchEngine, ...]
    novelties: tuple[Novelty, ...]
    spec: ModelSpec

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the K classes."""
        return self.spec.classes

    @property
    def image_size(self) -> int:
        """The side of the images in pixels."""
        return self.spec.preprocessing.image_size

    @property
    def rule(self) -> str:
        """The rule of resizing."""
        return self.spec.preprocessing.resize

    @property
    def novelty(self) -> Novelty | None:
        """Of the first model, if all models can tell which images are unlike training."""
        return self.novelties[0] if len(self.novelties) == len(self.engines) else None

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        return _mean([engine.probabilities(pixels) for engine in self.engines])

    def answer(
        self, pixels: NDArray[np.uint8], above: float
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Probabilities ``(B, K)``, and the flags ``(B,)`` of more than half of the models."""
        if self.novelty is None:
            return self.probabilities(pixels), np.zeros(len(pixels), np.bool_)
        features = [engine.features(pixels) for engine in self.engines]
        pairs = zip(self.engines, features, strict=True)
        flags = [n.unlike(f, above) for n, f in zip(self.novelties, features, strict=True)]
        found = _mean([engine.classified(of) for engine, of in pairs])
        return found, np.mean(flags, axis=0) > 0.5


def _mean(probabilities: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.asarray(np.mean(probabilities, axis=0, dtype=np.float64), np.float32)


def save_average(folder: Path, members: list[str]) -> Path:
    """Write ``average.json`` for the models in the folders ``members`` below ``folder``."""
    found = [_Member(folder=name, sha256=weights_digest(folder / name)) for name in members]
    path = folder / AVERAGE
    atomic_write(path, (_File(members=found).model_dump_json(indent=1) + "\n").encode())
    return path


def load_average(folder: Path, device: torch.device | str = "cpu") -> AverageEngine:
    """The models that ``average.json`` names; each must be the one that it was written for."""
    path = folder / AVERAGE
    try:
        file = _File.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        said = str(error).splitlines()[0]
        raise LmdError(f"model file {path} cannot be read: {said}; copy the folder again") from None
    engines, novelties = [], []
    for member in file.members:
        place = folder / member.folder
        engine = TorchEngine(*load_model(place), device)
        if weights_digest(place) != member.sha256:
            raise LmdError(f"model file {path}: the model in {place} is another one; restore it")
        novelty = load_novelty(place, engine.spec.feature_dim)
        engines.append(engine)
        novelties += [novelty] if novelty is not None else []
    return AverageEngine(tuple(engines), tuple(novelties), _spec(path, engines))


def _spec(path: Path, engines: list[TorchEngine]) -> ModelSpec:
    """The description of the average; validation images of one model do not speak for all."""
    specs = [engine.spec for engine in engines]
    first = specs[0]
    for spec in specs[1:]:
        if (spec.classes, spec.preprocessing) != (first.classes, first.preprocessing):
            raise LmdError(f"model file {path}: its models have other classes or image sizes")
    counts = np.mean([spec.class_counts for spec in specs], axis=0).round().astype(int)
    priors = [spec.prior for spec in specs if spec.prior is not None]
    prior = None
    if len(priors) == len(specs) and len({one.kind for one in priors}) == 1:
        shares = np.mean([one.shares for one in priors], axis=0)
        prior = Prior(priors[0].kind, tuple((shares / shares.sum()).tolist()))
    return replace(
        first, temperature=1.0, class_counts=tuple(counts.tolist()), prior=prior, held_out=None
    )
