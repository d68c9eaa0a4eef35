"""A shipped classifier of features: plain arrays, applied with numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.frozen.record import Candidate

NAME = "classifier.npz"
_ARRAYS = ("weight", "bias", "temperature", "prior", "classes", "class_counts")
_ROWS = 8192


@dataclass(frozen=True)
class FeatureClassifier:
    """Probabilities ``softmax((weight @ feature + bias) / temperature)`` of K classes.

    ``weight (K, C)`` and ``bias (K,)`` are for features as the encoder gives them, ``prior (K,)``
    is the class mix that the probabilities answer for, ``class_counts (K,)`` are of the training
    part. ``candidates`` say what was compared; they are not in the file.
    """

    classes: tuple[str, ...]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    temperature: float
    prior: NDArray[np.float64]
    class_counts: NDArray[np.int64]
    candidates: Sequence[Candidate] = ()

    def predict_proba(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities ``(N, K)`` of features ``(N, C)``, in the order of ``classes``."""
        features = np.asarray(features)
        if features.ndim != 2 or features.shape[1] != self.weight.shape[1]:
            raise LmdError(
                f"features must be (N, C) with C = {self.weight.shape[1]}, as in training; they "
                f"are {features.shape}"
            )
        probabilities = np.empty((len(features), len(self.classes)))
        for start in range(0, len(features), _ROWS):
            rows = features[start : start + _ROWS].astype(np.float64)
            if not np.isfinite(rows).all():
                raise LmdError("features must be finite; there is NaN or infinity among them")
            logits = (rows @ self.weight.T + self.bias) / self.temperature
            probabilities[start : start + _ROWS] = softmax(logits)
        return probabilities

    def predict(self, features: NDArray[Any]) -> NDArray[np.str_]:
        """Return the name of the most probable class of each row, ``(N,)``."""
        index = self.predict_proba(features).argmax(axis=1)
        names: NDArray[np.str_] = np.array(self.classes, dtype=np.str_)[index]
        return names

    def save(self, path: str | Path) -> None:
        """Write all arrays as one ``.npz`` file without pickles."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        buffer = BytesIO()
        np.savez(buffer, **arrays)
        atomic_write(Path(path), buffer.getvalue(), parents=True)


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``(N, K)`` probabilities of logits."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True), dtype=np.float64)


def load_classifier(path: str | Path) -> FeatureClassifier:
    """Read the classifier of a run folder of ``lmd calibrate``, or its ``classifier.npz``."""
    path = Path(path)
    file = path / NAME if path.is_dir() else path
    remedy = "make it with `lmd calibrate`"
    if not file.is_file():
        raise LmdError(f"classifier {file} cannot be read: it does not exist")
    try:
        arrays = read_npz(file)
    except LmdError as error:
        raise LmdError(f"{file} is not a classifier file ({error}); {remedy}") from None
    absent = [name for name in _ARRAYS if name not in arrays]
    if absent:
        raise LmdError(f"{file} is not a classifier file (no {', '.join(absent)}); {remedy}")
    k = len(np.atleast_1d(arrays["classes"]))
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_ARRAYS, (k,))
    shapes |= {"weight": (k, *arrays["weight"].shape[1:2]), "temperature": ()}
    numbers = [arrays[name] for name in ("weight", "bias", "temperature", "prior")]
    if (
        any(arrays[name].shape != shape for name, shape in shapes.items())
        or not all(a.dtype.kind == "f" and np.isfinite(a).all() for a in numbers)
        or arrays["weight"].ndim != 2
        or not arrays["temperature"] > 0
    ):
        raise LmdError(f"{file} is not a classifier file: its arrays do not fit; {remedy}")
    weight, bias, temperature, prior = (array.astype(np.float64) for array in numbers)
    classes = tuple(str(name) for name in arrays["classes"])
    counts = arrays["class_counts"].astype(np.int64)
    return FeatureClassifier(classes, weight, bias, float(temperature), prior, counts)
