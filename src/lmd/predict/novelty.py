"""Flag images unlike the training images: class Gaussians kept in ``novelty.safetensors``."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write

if TYPE_CHECKING:
    from lmd.predict.record import NoveltyInfo

Features = NDArray[np.float32]
FILE = "novelty.safetensors"
CHECKSUM = "sha256"
DIRECTIONS = 128  # at most; all other directions share one variance
ABOVE = 0.99  # an image farther away than this share of the validation images is flagged
_REMEDY = "copy it again, or remove it to predict without the flag"


@dataclass(frozen=True)
class Novelty:
    """Gaussians of the classes that have training images, with one covariance for all of them.

    ``means (K', C)``; the covariance has the orthonormal directions ``basis (C, D)`` with
    ``variances (D,)``, and the variance ``rest`` in every other direction. ``validation (M,)`` are
    the distances of the validation images.
    """

    means: Features
    basis: Features
    variances: Features
    rest: float
    validation: Features

    @classmethod
    def fit(
        cls,
        features: Features,
        labels: NDArray[np.int64],
        validation: Features,
        directions: int = DIRECTIONS,
    ) -> "Novelty":
        """Fit class means and the shrunk covariance within classes of ``features (N, C)``."""
        classes, index = np.unique(labels, return_inverse=True)
        means = np.stack([features[labels == k].mean(0, dtype=np.float64) for k in classes])
        values, vectors = np.linalg.eigh(shrunk_covariance(features - means[index]))
        count = min(directions, len(values) - 1)
        fitted = cls(
            means=means.astype(np.float32),
            basis=np.ascontiguousarray(vectors[:, ::-1][:, :count]).astype(np.float32),
            variances=values[::-1][:count].astype(np.float32),
            rest=float(values[::-1][count:].mean()),
            validation=np.zeros(0, np.float32),
        )
        return replace(fitted, validation=fitted.distances(validation))

    def distances(self, features: Features) -> Features:
        """Return the Mahalanobis distance of ``features (N, C)`` to the nearest class: ``(N,)``.

        Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks", equation 2. It is divided by √C, so that it does not depend on C.
        """
        basis = self.basis.astype(np.float64)
        # x'Σ⁻¹x = |x|² / rest + Σ (b'x)² (1 / variance - 1 / rest), which needs no (C, C) matrix.
        gain = 1 / self.variances.astype(np.float64) - 1 / self.rest
        nearest = np.full(len(features), np.inf)
        for mean in self.means.astype(np.float64):
            away = features - mean
            squares = (away**2).sum(1) / self.rest + (away @ basis) ** 2 @ gain
            nearest = np.minimum(nearest, squares)
        distances = np.sqrt(np.maximum(nearest, 0) / self.means.shape[1])
        return np.asarray(distances, np.float32)

    def unlike(self, features: Features, above: float = ABOVE) -> NDArray[np.bool_]:
        """Return which ``features (N, C)`` are farther than ``above`` of the validation images."""
        return self.distances(features) > flag_threshold(self.validation, above)

    def save(self, folder: Path, model_sha256: str) -> None:
        """Write ``novelty.safetensors`` beside the model with these weights."""
        tensors: dict[str, NDArray[Any]] = {
            "means": self.means,
            "basis": self.basis,
            "variances": self.variances,
            "rest": np.array([self.rest], np.float64),
            "validation": np.sort(self.validation).astype(np.float32),
        }
        # A tensor, because safetensors writes several values of metadata in any order.
        tensors[CHECKSUM] = _digest(tensors)
        atomic_write(folder / FILE, save(tensors, metadata={"model_sha256": model_sha256}))


def fit_flag(
    features: Mapping[str, Features], labels: NDArray[np.int64], groups: NDArray[Any] | None
) -> "tuple[Novelty, NoveltyInfo] | tuple[None, None]":
    """Fit the flag to the features ``(N, C)`` of each part, and describe it for the record.

    ``labels`` are of the training part, ``groups`` of the test part. Without validation images
    there is no flag: training images are nearer to their own Gaussians than new images are.
    """
    from lmd.predict.record import NoveltyInfo
    from lmd.scoring.scores import share_of

    finite = all(np.isfinite(array).all() for array in features.values())
    if not len(features.get("validation", ())) or not finite:
        return None, None
    novelty = Novelty.fit(features["train"], labels, features["validation"])
    threshold, images, flagged = flag_threshold(novelty.validation), len(novelty.validation), None
    if len(features.get("test", ())):
        flagged = share_of(novelty.unlike(features["test"]), groups)
    return novelty, NoveltyInfo(above=ABOVE, threshold=threshold, images=images, flagged=flagged)


def shrunk_covariance(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance of ``residuals (N, C)`` with mean 0, shrunk to a multiple of I: (C, C).

    Ledoit and Wolf 2004, "A well-conditioned estimator for large-dimensional covariance matrices",
    equations 13 to 15. It has an inverse even if there are fewer images than features.
    """
    n, width = residuals.shape
    sample = residuals.T @ residuals / n
    size = float(np.trace(sample) / width)
    spread = float((sample**2).sum() - width * size**2)
    fourth = float(((residuals**2).sum(1) ** 2).sum())
    noise = (fourth / n - float((sample**2).sum())) / n
    share = min(max(noise / spread, 0.0), 1.0) if spread > 0 else 1.0
    # Features that never change would have the variance 0, which has no inverse.
    floor = 1e-6 * max(size, 1e-12)
    shrunk: NDArray[np.float64] = (1 - share) * sample
    shrunk[np.diag_indices(width)] += share * size + floor
    return shrunk


def flag_threshold(distances: NDArray[Any], above: float = ABOVE) -> float:
    """Return the distance to exceed for a flag: the ⌈(n + 1) ``above``⌉-th smallest of n.

    A new image of the same kind is flagged with a probability of at most ``1 - above``. If there
    are too few images for that, it is the largest, and the probability is 1 / (n + 1).

    >>> flag_threshold(np.arange(1, 200), 0.99), flag_threshold(np.arange(1, 10), 0.99)
    (198.0, 9.0)
    """
    n = len(distances)
    # Without the small number, 200 · 0.99 would be above 198.
    place = min(math.ceil((n + 1) * above - 1e-9), n)
    return float(np.sort(distances)[max(place, 1) - 1])


def load_novelty(folder: Path, width: int, model_sha256: str) -> Novelty | None:
    """Read the file for a model with C = ``width`` features; ``None`` if there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise LmdError(f"{path} cannot be read ({error}): {_REMEDY}") from error
    problem = next(_problems(tensors, width), None)
    if problem is None and metadata.get("model_sha256") != model_sha256:
        problem = "it belongs to another model"
    if problem is None and not np.array_equal(tensors.pop(CHECKSUM), _digest(tensors)):
        problem = "it is damaged, as its checksum shows"
    if problem is not None:
        raise LmdError(f"{path} does not fit: {problem}; {_REMEDY}")
    means, basis, variances = (tensors[name] for name in ("means", "basis", "variances"))
    return Novelty(means, basis, variances, float(tensors["rest"][0]), tensors["validation"])


def _digest(tensors: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return SHA-256 over names, types, shapes and values, ``(32,)``."""
    digest = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return np.frombuffer(digest.digest(), np.uint8)


def _problems(tensors: dict[str, NDArray[Any]], width: int) -> Iterator[str]:
    """Yield what is wrong with the tensors of a file; each check needs those before it."""
    missing = {"means", "basis", "variances", "rest", "validation", CHECKSUM} - tensors.keys()
    if missing:
        yield f"it has no {', '.join(sorted(missing))}"
    means = tensors["means"].shape
    if means[1:] != (width,) or means[0] == 0:
        yield f"its means have the shape {means}, and the model has {width} features"
    directions = tensors["basis"].shape[1:]
    expected = {"basis": (width, *directions[:1]), "variances": directions[:1], "rest": (1,)}
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            yield f"its {name} has the shape {tensors[name].shape}, not {shape}"
    if tensors["validation"].ndim != 1 or len(tensors["validation"]) == 0:
        yield "it has no distances of validation images"
    if not all(np.isfinite(array).all() for array in tensors.values()):
        yield "it has values that are not finite"
    if not (tensors["variances"] > 0).all() or not tensors["rest"][0] > 0:
        yield "it has variances that are not above 0"
