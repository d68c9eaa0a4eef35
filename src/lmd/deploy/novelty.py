"""``novelty.safetensors``: what a shipped model needs to flag images unlike its training images."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.model import weights_digest
from lmd.scoring.novelty import ABOVE, Gaussians, flag_threshold

FILE = "novelty.safetensors"
CHECKSUM = "sha256"
_REMEDY = "copy it again, or remove it to predict without the flag"


@dataclass(frozen=True)
class Novelty:
    """Gaussians of the training features, and the distances of the validation images ``(M,)``."""

    gaussians: Gaussians
    validation: NDArray[np.float32]

    def unlike(self, features: NDArray[np.float32], above: float = ABOVE) -> NDArray[np.bool_]:
        """Which of ``features (N, C)`` are farther away than ``above`` of the validation images."""
        return self.gaussians.distances(features) > flag_threshold(self.validation, above)


def checked_above(above: float | None, novelty: Novelty | None) -> float:
    """The share of validation images to be exceeded; asking for one needs a model that can tell."""
    if above is None:
        return ABOVE
    if not 0 < above < 1:
        raise LmdError(f"--unlike-above must be between 0 and 1; it is {above}")
    if novelty is None:
        raise LmdError(
            f"--unlike-above: the model has no {FILE}, so it cannot tell which images are unlike "
            "the training images: leave out the option, or train the run again"
        )
    return above


def save_novelty(novelty: Novelty, folder: Path) -> Path:
    """Write ``novelty.safetensors`` beside the model that it belongs to."""
    gaussians = novelty.gaussians
    tensors: dict[str, NDArray[Any]] = {
        "means": gaussians.means,
        "basis": gaussians.basis,
        "variances": gaussians.variances,
        "rest": np.array([gaussians.rest], np.float64),
        "validation": np.sort(novelty.validation).astype(np.float32),
    }
    path = folder / FILE
    # A tensor, because safetensors writes several values of metadata in any order.
    tensors[CHECKSUM] = _digest(tensors)
    atomic_write(path, save(tensors, metadata={"model_sha256": weights_digest(folder)}))
    return path


def load_novelty(folder: Path, width: int) -> Novelty | None:
    """Read the file for a model with C = ``width`` features; ``None`` if there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise LmdError(f"{path} cannot be read ({error}): {_REMEDY}") from error
    problem = next(_problems(found, width), None)
    if problem is None and about.get("model_sha256") != weights_digest(folder):
        problem = "it belongs to another model"
    checksum = found.pop(CHECKSUM, None)  # files of earlier versions have none
    if problem is None and checksum is not None and not np.array_equal(checksum, _digest(found)):
        problem = "it is damaged, as its checksum shows"
    if problem is not None:
        raise LmdError(f"{path} does not fit: {problem}; {_REMEDY}")
    gaussians = Gaussians(
        found["means"], found["basis"], found["variances"], float(found["rest"][0])
    )
    return Novelty(gaussians, found["validation"])


def _digest(tensors: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """SHA-256 over names, types, shapes and values, ``(32,)``."""
    found = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        found.update(f"{name} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return np.frombuffer(found.digest(), np.uint8)


def _problems(found: dict[str, NDArray[Any]], width: int) -> Iterator[str]:
    """What is wrong with the tensors of a file; each check needs those before it."""
    missing = {"means", "basis", "variances", "rest", "validation"} - found.keys()
    if missing:
        yield f"it has no {', '.join(sorted(missing))}"
    means = found["means"].shape
    if means[1:] != (width,) or means[0] == 0:
        yield f"its means have the shape {means}, and the model has {width} features"
    directions = found["basis"].shape[1:]
    expected = {"basis": (width, *directions[:1]), "variances": directions[:1], "rest": (1,)}
    for name, shape in expected.items():
        if found[name].shape != shape:
            yield f"its {name} has the shape {found[name].shape}, not {shape}"
    if found["validation"].ndim != 1 or len(found["validation"]) == 0:
        yield "it has no distances of validation images"
    if not all(np.isfinite(array).all() for array in found.values()):
        yield "it has values that are not finite"
    if not (found["variances"] > 0).all() or not found["rest"][0] > 0:
        yield "it has variances that are not above 0"
