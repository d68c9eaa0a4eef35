"""``predictions.npz``: the predictions for the images of each part."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.runs.record import Part

PARTS: tuple[Part, ...] = get_args(Part)
_ARRAYS = ("ids", "labels", "probabilities", "groups")
UNIT = 64_000  # published probabilities are whole numbers of this part of one


@dataclass(frozen=True)
class PartPredictions:
    """``ids (N,)``, ``labels (N,)``, ``probabilities (N, K)`` and, if known, ``groups (N,)``.

    Images with the same number in ``groups`` are of one patient or lesion.
    """

    ids: NDArray[Any]
    labels: NDArray[Any]
    probabilities: NDArray[Any]
    groups: NDArray[Any] | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, without ``groups`` if it is unknown."""
        return {key: a for key in _ARRAYS if (a := getattr(self, key)) is not None}


@dataclass(frozen=True)
class Predictions:
    """The names of the K classes, and the predictions of each part."""

    classes: tuple[str, ...]
    parts: Mapping[Part, PartPredictions]

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise LmdError(f"predictions: class names must be unique; they are {self.classes}")
        for part, of in self.parts.items():
            _check(part, of, len(self.classes))

    def to_bytes(self) -> bytes:
        """The content of the file."""
        arrays: dict[str, Any] = {
            f"{part}_{key}": array
            for part, of in self.parts.items()
            for key, array in of.arrays().items()
        }
        buffer = BytesIO()
        np.savez_compressed(buffer, classes=np.array(self.classes), **arrays)
        return buffer.getvalue()


def read_predictions(path: Path) -> Predictions:
    """Read predictions; the error for a damaged file says what is wrong and what to do."""
    try:
        return _parse(read_npz(path))
    except KeyError as error:
        why = f"it has no array {error}"
    except (LmdError, ValueError, TypeError) as error:
        why = str(error)
    raise LmdError(f"{path} cannot be read: {why}; restore the file, or train the run again")


def _parse(arrays: Mapping[str, NDArray[Any]]) -> Predictions:
    parts: dict[Part, PartPredictions] = {}
    for part in PARTS:
        if f"{part}_labels" in arrays:
            ids, labels, probabilities = (arrays[f"{part}_{key}"] for key in _ARRAYS[:3])
            if probabilities.dtype == np.uint16:
                probabilities = probabilities / np.float32(UNIT)
            parts[part] = PartPredictions(ids, labels, probabilities, arrays.get(f"{part}_groups"))
    return Predictions(tuple(str(name) for name in arrays["classes"]), parts)


def _check(part: str, of: PartPredictions, classes: int) -> None:
    images = len(of.labels) if of.labels.ndim else 0
    expected = {"probabilities": (images, classes)}
    for key, array in of.arrays().items():
        shape = expected.get(key, (images,))
        if array.shape != shape or array.dtype.hasobject:
            raise LmdError(
                f"predictions: {part}_{key} must have the shape {shape}; "
                f"it is {array.dtype} {array.shape}"
            )
    if not np.issubdtype(of.labels.dtype, np.integer):
        raise LmdError(f"predictions: {part}_labels must be whole numbers, not {of.labels.dtype}")
    if not np.issubdtype(of.probabilities.dtype, np.floating):
        raise LmdError(f"predictions: {part}_probabilities must be floats")
    if not np.all((of.probabilities >= 0) & (of.probabilities <= 1.001)):  # NaN fails too
        raise LmdError(f"predictions: {part}_probabilities must be from 0 to 1")
    if np.any(np.abs(of.probabilities.sum(axis=1, dtype=np.float64) - 1) > 0.01):
        raise LmdError(f"predictions: {part}_probabilities must sum to 1 in every row")
    if images and not (of.labels.min() >= 0 and of.labels.max() < classes):
        raise LmdError(f"predictions: {part}_labels must be below {classes}, the number of classes")
