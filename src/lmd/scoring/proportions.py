"""Shares of images and of classes: their intervals, and the mix of classes."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Probabilities = NDArray[np.floating[Any]]
Kind = Literal["uniform", "training"]
Correct = NDArray[np.bool_]  # which images are right

LEVEL = 0.95
FEW_GROUPS = 10  # fewer are too few to estimate a design effect


def interval(draws: Floats, value: float | None = None) -> tuple[float, float]:
    """Percentile interval of bootstrap ``draws (R,)``; nan, nan if all draws are nan.

    It is widened to contain ``value``: the resamples of a biased metric (ECE) can all lie on one
    side of the value.

    >>> [round(limit, 6) for limit in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    draws = draws[~np.isnan(draws)]
    if len(draws) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if value is not None and not np.isnan(value):
        low, high = min(low, value), max(high, value)
    return float(low), float(high)


def effective(outcomes: NDArray[Any], groups: NDArray[Any] | None) -> tuple[float, float]:
    """Hits and trials of independent images with the same information as ``outcomes (N,)``.

    An outcome is 0 or 1, or a share if it is a mean over runs.

    Images of one patient or lesion, numbered by ``groups (N,)``, resemble each other, so hits and
    trials are divided by the design effect (Rao and Scott 1992). It lies between 1 and its value
    if all images of a group have the same outcome; that value is used if there are too few groups,
    or too little variation, for an estimate.

    >>> effective(np.array([True, True, False, False]), np.array([7, 7, 8, 9]))
    (1.3333333333333333, 2.6666666666666665)
    """
    n, hits = len(outcomes), float(outcomes.sum())
    if groups is None or n == 0:
        return hits, n
    group = np.unique(groups, return_inverse=True)[1]
    sizes, each = np.bincount(group), np.bincount(group, weights=outcomes)
    count, share = len(sizes), hits / n
    most = float((sizes**2).sum() / n)
    if count == n:
        return hits, n
    if count < FEW_GROUPS or hits in (0, n):
        effect = most
    else:
        squares = float(((each - share * sizes) ** 2).sum())
        effect = count / (count - 1) * squares / (n * share * (1 - share))
        effect = min(max(effect, 1.0), most)
    return hits / effect, n / effect


def wilson(hits: float, trials: float, z: float | None = None) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927); 0 to 1 without trials.

    Unlike a bootstrap interval, it has a width even if all trials have the same outcome. ``z`` is
    the number of standard errors, by default those of ``LEVEL``.

    >>> [round(limit, 3) for limit in wilson(1, 1)]
    [0.207, 1.0]
    """
    if trials == 0:
        return 0.0, 1.0
    z2 = (NormalDist().inv_cdf((1 + LEVEL) / 2) if z is None else z) ** 2
    share = hits / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = np.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At the ends the limit is exactly 0 or 1; rounding must not exclude the share.
    low = 0.0 if hits == 0 else float(centre - half)
    high = 1.0 if hits == trials else float(centre + half)
    return low, high


def class_mix(kind: Kind, counts: Sequence[int] | NDArray[np.integer[Any]]) -> Floats:
    """The shares ``(K,)`` of a prior; a class without training images counts as one image.

    >>> class_mix("training", [30, 10, 0]).round(3).tolist()
    [0.732, 0.244, 0.024]
    """
    images = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    weights = images if kind == "training" else np.ones(len(images))
    return np.asarray(weights / weights.sum())


def reweighted(probabilities: Probabilities, old: Floats, new: Floats) -> Floats:
    """Probabilities ``(N, K)`` for the mix ``new (K,)`` in place of ``old (K,)``.

    ``p_k · new_k / old_k``, normalised in each row: Bayes' rule where only the mix of the classes
    differs (Saerens, Latinne and Decaestecker, Neural Computation 2002, Eq. 2.4).

    >>> reweighted(np.array([[0.5, 0.5]]), np.array([0.5, 0.5]), np.array([0.9, 0.1])).tolist()
    [[0.9, 0.1]]
    """
    # The smallest number keeps a row whose only possible classes have probability 0 finite.
    p = np.maximum(probabilities.astype(np.float64), np.finfo(np.float64).tiny)
    weighted = p * (new / old)
    return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))


def mix_weights(labels: Labels, mix: Floats) -> Floats:
    """The weight of each image ``(N,)`` with which the classes have the mix ``(K,)``.

    >>> mix_weights(np.array([0, 0, 1]), np.array([0.5, 0.5])).tolist()
    [0.25, 0.25, 0.5]
    """
    counts = np.bincount(labels, minlength=len(mix))
    return np.asarray((mix / np.maximum(counts, 1))[labels])


def simplest(
    tried: Sequence[Correct],
    scores: Sequence[float],
    labels: Labels,
    groups: NDArray[Any] | None = None,
) -> int:
    """Return the first of ``tried`` that is within one standard error of the best.

    ``tried`` are ordered from simple to complex, or from strong to weak regularisation; ``scores``
    are their balanced accuracies. The standard error is that of the difference to the best.
    """
    best = max(range(len(tried)), key=lambda i: (scores[i], -i))
    for i, correct in enumerate(tried[:best]):
        difference, error = balanced_difference(tried[best], correct, labels, groups)
        if difference <= error:
            return i
    return best


def balanced_difference(
    first: Correct,
    second: Correct,
    labels: Labels,
    groups: NDArray[Any] | None = None,
) -> tuple[float, float]:
    """Return the first balanced accuracy minus the second, and its standard error.

    ``first (N,)`` and ``second (N,)`` say which images are right. Both are tried on the same
    images, so an image counts only if they disagree. Images of one group count together. To a class
    with a disagreement one image is added in favour of each, so that one image does not look
    certain.

    >>> right, wrong = np.array([True, True, True, False]), np.array([True, True, False, False])
    >>> balanced_difference(right, wrong, np.array([0, 0, 0, 1]))[0].__round__(3)
    0.167
    """
    gain = first.astype(np.float64) - second
    present = np.unique(labels)
    total = variance = 0.0
    for k in present:
        rows = labels == k
        gains = gain[rows]
        if groups is not None:
            gains = np.bincount(np.unique(groups[rows], return_inverse=True)[1], weights=gains)
        images = int(rows.sum())
        share = images / len(gains)  # images of a group, on average
        mean = float(gains.sum()) / images
        total += mean
        if gains.any():
            spread = float(((gains - mean * share) ** 2).sum()) + 2 * share**2
            variance += spread / (images + 2 * share) ** 2
    return total / len(present), variance**0.5 / len(present)
