"""``average.json``: the models of several folders that answer together, by their mean."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.model.files import AVERAGE, ModelSpec, Prior, read_model, weights_digest
from lmd.predict.engines import Engine, Floats, Pixels, TorchEngine
from lmd.predict.novelty import ABOVE, Novelty, load_novelty


class _Member(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Annotated[str, Field(pattern=re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"))]
    sha256: str


class _Average(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    members: Annotated[list[_Member], Field(min_length=2, max_length=1000)]


class AverageEngine(Engine):
    """Several models with the same classes: mean probabilities, and features side by side."""

    no_heat_maps = (
        "heat maps are of one model, and this is the average of several: give the folder of one "
        "of its folds"
    )

    def __init__(self, engines: Sequence[TorchEngine], spec: ModelSpec) -> None:
        super().__init__(spec)
        self.engines = tuple(engines)

    def answer(self, pixels: Pixels) -> tuple[Floats, Floats]:
        """Return the mean probabilities ``(B, K)`` and the features of all models ``(B, C)``."""
        probabilities, features = zip(*(e.answer(pixels) for e in self.engines), strict=True)
        mean = np.mean(probabilities, axis=0, dtype=np.float64)
        return np.asarray(mean, np.float32), np.concatenate(features, axis=1)


@dataclass(frozen=True)
class Majority:
    """The flag of several models: an image is flagged if more than half of them flag it."""

    members: tuple[Novelty, ...]

    def unlike(self, features: Floats, above: float = ABOVE) -> NDArray[np.bool_]:
        """Return which of ``features (N, C)``, side by side, most of the models flag."""
        ends = np.cumsum([novelty.means.shape[1] for novelty in self.members])
        parts = zip(self.members, np.split(features, ends[:-1], axis=1), strict=True)
        votes = np.mean([novelty.unlike(part, above) for novelty, part in parts], axis=0)
        return np.asarray(votes > 0.5)


def save_average(folder: Path, members: list[str]) -> Path:
    """Write ``average.json`` for the models in the folders ``members`` below ``folder``."""
    models = [_Member(folder=name, sha256=weights_digest(folder / name)) for name in members]
    path = folder / AVERAGE
    atomic_write(path, (_Average(members=models).model_dump_json(indent=1) + "\n").encode())
    return path


def load_average(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[AverageEngine, Majority | None]:
    """Load the models that ``average.json`` names, and their flag if all of them have one."""
    path = folder / AVERAGE
    try:
        file = _Average.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = f"cannot be read: {str(error).splitlines()[0]}; copy the folder again"
        raise LmdError(f"model file {path} {why}") from None
    engines, novelties = [], []
    for member in file.members:
        member_path = folder / member.folder
        model, spec, digest = read_model(member_path)
        if digest != member.sha256:
            why = f"the model in {member_path} is another one; restore it"
            raise LmdError(f"model file {path}: {why}")
        engines.append(TorchEngine(model, spec, device))
        novelties.append(load_novelty(member_path, spec.feature_dim, digest))
    flags = tuple(novelty for novelty in novelties if novelty is not None)
    majority = Majority(flags) if len(flags) == len(engines) else None
    return AverageEngine(engines, _common_spec(path, [e.spec for e in engines])), majority


def _common_spec(path: Path, specs: list[ModelSpec]) -> ModelSpec:
    """Describe the average; validation images of one model do not speak for all."""
    first = specs[0]
    for spec in specs[1:]:
        if (spec.classes, spec.preprocessing) != (first.classes, first.preprocessing):
            raise LmdError(f"model file {path}: its models have other classes or image sizes")
    counts = np.mean([spec.class_counts for spec in specs], axis=0).round().astype(int).tolist()
    priors = [spec.prior for spec in specs if spec.prior is not None]
    prior = None
    if len(priors) == len(specs) and len({prior.kind for prior in priors}) == 1:
        shares = np.mean([prior.shares for prior in priors], axis=0)
        prior = Prior(priors[0].kind, tuple((shares / shares.sum()).tolist()))
    return replace(first, temperature=1.0, class_counts=tuple(counts), prior=prior, held_out=None)
