"""``neighbours.npz``: features of the training images, to find the ones nearest to a new image."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.model.files import weights_digest

FILE = "neighbours.npz"
NEAREST = 5
Floats = NDArray[np.float32]
_ARRAYS = ("features", "mean", "scale", "labels", "classes", "model_sha256")


@dataclass(frozen=True)
class Neighbour:
    """A training image: its class, its distance, its number in the training part, its name."""

    label: str
    distance: float
    row: int
    name: str | None = None


@dataclass(frozen=True)
class Neighbours:
    """Standardised ``features (N, C)`` of the training images, in the order of the training part.

    ``labels (N,)`` index ``classes``; ``names (N,)`` are kept only if they were asked for.
    Standardised means ``(x - mean) · scale``; a feature that never changes has the scale 0.
    """

    features: NDArray[np.float16]
    mean: Floats
    scale: Floats
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    names: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        features: Floats,
        labels: NDArray[np.int64],
        classes: Sequence[str],
        names: Sequence[str] | None = None,
    ) -> "Neighbours":
        """Standardise raw ``features (N, C)``."""
        mean, spread = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
        changing = spread > 1e-6 * max(float(spread.max()), 1e-12)
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=changing)
        return cls(
            features=_standardised(features, mean, scale).astype(np.float16),
            mean=mean.astype(np.float32),
            scale=scale.astype(np.float32),
            labels=labels,
            classes=tuple(classes),
            names=None if names is None else tuple(names),
        )

    def nearest(self, features: Floats, count: int = NEAREST) -> list[Neighbour]:
        """Return the training images nearest to one image with ``features (C,)``, nearest first.

        The distance is the root mean square of the differences of the standardised features: 0 for
        the same features, and about 1.4 for two training images drawn at random.
        """
        query = _standardised(features, self.mean, self.scale)
        used = max(int((self.scale > 0).sum()), 1)
        blocks = np.array_split(self.features, len(self.features) // 4096 + 1)
        squares = [((rows.astype(np.float32) - query) ** 2).sum(1) / used for rows in blocks]
        distances = np.sqrt(np.concatenate(squares))
        names = self.names or [None] * len(distances)
        return [
            Neighbour(self.classes[self.labels[i]], float(distances[i]), int(i), names[i])
            for i in np.argsort(distances, kind="stable")[:count].tolist()
        ]

    def save(self, folder: Path, model_sha256: str) -> Path:
        """Write ``neighbours.npz`` beside the model with these weights."""
        arrays = {name: getattr(self, name) for name in ("features", "mean", "scale", "labels")}
        arrays["classes"] = np.array(self.classes, np.str_)
        arrays["model_sha256"] = np.array(model_sha256)
        if self.names is not None:
            arrays["names"] = np.array(self.names, np.str_)
        buffer = BytesIO()
        np.savez(buffer, **arrays)
        atomic_write(folder / FILE, buffer.getvalue())
        return folder / FILE


def size_line(images: int, width: int) -> str:
    """Describe how large ``neighbours.npz`` becomes, without names."""
    size = (images * (2 * width + 8) + 8 * width) / 1e6
    return f"{FILE}: {images} training images with {width} features, about {size:.1f} MB"


def load_neighbours(folder: Path, classes: Sequence[str], width: int) -> Neighbours:
    """Read the file for a model with these ``classes`` and C = ``width`` features."""
    path = folder / FILE
    remedy = f"make it again with `lmd index {folder} --overwrite`"
    if not path.is_file():
        raise LmdError(
            f"{path} does not exist: make it with `lmd index {folder}` to see the nearest "
            "training images"
        )
    try:
        arrays = read_npz(path)
    except LmdError as error:
        raise LmdError(f"{path} cannot be read ({error}): {remedy}") from error
    problem = next(_problems(arrays, classes, width), None)
    if problem is None and str(arrays["model_sha256"]) != weights_digest(folder):
        problem = "it belongs to another model"
    if problem is not None:
        raise LmdError(f"{path} does not fit: {problem}; {remedy}")
    names = tuple(arrays["names"].tolist()) if "names" in arrays else None
    features, mean, scale, labels = (arrays[name] for name in _ARRAYS[:4])
    return Neighbours(features, mean, scale, labels, tuple(classes), names)


def _problems(arrays: dict[str, NDArray[Any]], classes: Sequence[str], width: int) -> Iterator[str]:
    """Yield what is wrong with the arrays of a file; each check needs those before it."""
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        yield f"it has no {', '.join(missing)}"
    if arrays["classes"].tolist() != list(classes):
        yield "it has other classes than the model"
    features, labels = arrays["features"], arrays["labels"]
    if features.ndim != 2 or features.shape[1] != width or len(features) == 0:
        yield f"its features have the shape {features.shape}, and the model has {width} features"
    expected = {"mean": (width,), "scale": (width,), "labels": (len(features),)}
    if "names" in arrays:
        expected["names"] = (len(features),)
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            yield f"its {name} has the shape {arrays[name].shape}, not {shape}"
    types = {name: arrays[name].dtype.kind for name in ("features", "mean", "scale", "labels")}
    if types != {"features": "f", "mean": "f", "scale": "f", "labels": "i"}:
        yield "its arrays are not of the expected types"
    if labels.min() < 0 or labels.max() >= len(classes):
        yield f"its labels must be from 0 to {len(classes) - 1}"
    if not all(np.isfinite(arrays[name]).all() for name in ("features", "mean", "scale")):
        yield "it has values that are not finite"


def _standardised(features: Floats, mean: NDArray[Any], scale: NDArray[Any]) -> Floats:
    # The limit keeps float16 finite.
    return np.asarray(((features - mean) * scale).clip(-6e4, 6e4), np.float32)
