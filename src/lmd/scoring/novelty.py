"""How far an image is from the training images: class Gaussians with one covariance."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.intervals import effective, wilson

Floats = NDArray[np.float64]
DIRECTIONS = 128  # at most; all other directions share one variance
ABOVE = 0.99  # an image farther away than this share of the validation images is flagged


@dataclass(frozen=True)
class Gaussians:
    """Gaussians of the classes that have training images, with one covariance for all of them.

    ``means (K', C)``; the covariance has the orthonormal directions ``basis (C, D)`` with
    ``variances (D,)``, and the variance ``rest`` in every other direction.
    """

    means: NDArray[np.float32]
    basis: NDArray[np.float32]
    variances: NDArray[np.float32]
    rest: float

    def distances(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Mahalanobis distance of ``features (N, C)`` to the nearest class: ``(N,)``.

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
        width = self.means.shape[1]
        found: NDArray[np.float32] = np.sqrt(np.maximum(nearest, 0) / width).astype(np.float32)
        return found


def fit_gaussians(
    features: NDArray[np.float32], labels: NDArray[np.int64], directions: int = DIRECTIONS
) -> Gaussians:
    """Class means and the shrunk covariance within classes of ``features (N, C)``."""
    means = np.stack([features[labels == k].mean(0, dtype=np.float64) for k in np.unique(labels)])
    own = np.unique(labels, return_inverse=True)[1]
    values, vectors = np.linalg.eigh(shrunk_covariance(features - means[own]))
    kept = min(directions, len(values) - 1)
    top, others = values[::-1][:kept], values[::-1][kept:]
    return Gaussians(
        means=means.astype(np.float32),
        basis=np.ascontiguousarray(vectors[:, ::-1][:, :kept]).astype(np.float32),
        variances=top.astype(np.float32),
        rest=float(others.mean()),
    )


def shrunk_covariance(residuals: Floats) -> Floats:
    """The covariance ``(C, C)`` of ``residuals (N, C)`` with mean 0, shrunk to a multiple of I.

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
    shrunk: Floats = (1 - share) * sample
    shrunk[np.diag_indices(width)] += share * size + floor
    return shrunk


def flag_threshold(distances: NDArray[Any], above: float = ABOVE) -> float:
    """The distance above which an image is flagged: the ⌈(n + 1) ``above``⌉-th smallest of n.

    A new image of the same kind is flagged with a probability of at most ``1 - above``. If there
    are too few images for that, it is the largest, and the probability is 1 / (n + 1).

    >>> flag_threshold(np.arange(1, 200), 0.99), flag_threshold(np.arange(1, 10), 0.99)
    (198.0, 9.0)
    """
    n = len(distances)
    # Without the small number, 200 · 0.99 would be above 198.
    place = min(math.ceil((n + 1) * above - 1e-9), n)
    return float(np.sort(distances)[max(place, 1) - 1])


def flag_rate(flags: NDArray[np.bool_], groups: NDArray[Any] | None) -> tuple[float, float, float]:
    """The share of flagged images and its 95 % interval (Wilson), which respects groups.

    >>> [round(x, 3) for x in flag_rate(np.array([True, False, False, False]), None)]
    [0.25, 0.046, 0.699]
    """
    return (float(flags.mean()), *wilson(*effective(flags, groups)))
