"""Shares of images with their intervals, the mix of classes, and the temperature."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Probabilities = NDArray[np.floating[Any]]
Kind = Literal["uniform", "training"]

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)  # standard errors of this level
FEW_GROUPS = 10  # fewer are too few to estimate a design effect
LOWEST, HIGHEST = 0.05, 20.0  # of a temperature
# With few images, all right or all wrong, the best T would be 0 or infinite. So 1 / T has a Gamma
# prior of this rate with its mode at 1.
PRIOR_RATE = 2.0


def interval(draws: Floats, value: float | None = None) -> tuple[float, float]:
    """Return the percentile interval of bootstrap ``draws (R,)``; nan, nan if all draws are nan.

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
    """Return hits and trials of independent images with the same information as ``outcomes (N,)``.

    An outcome is 0 or 1, or a share if it is a mean over runs.

    Images of one patient or lesion, numbered by ``groups (N,)``, resemble each other, so hits and
    trials are divided by the design effect (Rao and Scott 1992). It lies between 1 and its value
    if all images of a group have the same outcome; that value is used if there are too few groups,
    or too little variation, for an estimate.

    >>> effective(np.array([True, True, False, False]), np.array([7, 7, 8, 9]))
    (1.3333333333333333, 2.6666666666666665)
    """
    n, hits = len(outcomes), float(outcomes.sum())
    group = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    sizes, sums = np.bincount(group), np.bincount(group, weights=outcomes)
    count = len(sizes)
    if count == n:
        return hits, n
    share, most = hits / n, float((sizes**2).sum() / n)
    if count < FEW_GROUPS or hits in (0, n):
        effect = most
    else:
        squares = float(((sums - share * sizes) ** 2).sum())
        effect = count / (count - 1) * squares / (n * share * (1 - share))
        effect = min(max(effect, 1.0), most)
    return hits / effect, n / effect


def wilson(hits: float, trials: float, z: float = Z) -> tuple[float, float]:
    """Return Wilson's score interval for a proportion (Wilson 1927); 0 to 1 without trials.

    Unlike a bootstrap interval, it has a width even if all trials have the same outcome.

    >>> [round(limit, 3) for limit in wilson(1, 1)]
    [0.207, 1.0]
    """
    if trials == 0:
        return 0.0, 1.0
    z2, share = z**2, hits / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = np.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At the ends the limit is exactly 0 or 1; rounding must not exclude the share.
    low = 0.0 if hits == 0 else float(centre - half)
    high = 1.0 if hits == trials else float(centre + half)
    return low, high


def class_mix(kind: Kind, counts: Sequence[int] | NDArray[np.integer[Any]]) -> Floats:
    """Return the shares ``(K,)`` of a prior; a class without training images counts as one image.

    >>> class_mix("training", [30, 10, 0]).round(3).tolist()
    [0.732, 0.244, 0.024]
    """
    images = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    weights = images if kind == "training" else np.ones(len(images))
    return np.asarray(weights / weights.sum())


def reweighted(probabilities: Probabilities, old: Floats, new: Floats) -> Floats:
    """Return probabilities ``(N, K)`` for the mix ``new (K,)`` in place of ``old (K,)``.

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
    """Return the weight of each image ``(N,)`` with which the classes have the mix ``(K,)``.

    >>> mix_weights(np.array([0, 0, 1]), np.array([0.5, 0.5])).tolist()
    [0.25, 0.25, 0.5]
    """
    counts = np.bincount(labels, minlength=len(mix))
    return np.asarray((mix / np.maximum(counts, 1))[labels])


def fit_temperature(
    logits: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
) -> float:
    """Return the T that minimises weighted cross-entropy of ``softmax(logits / T)``, and a prior.

    ``logits (N, K)``, ``labels (N,)``, ``weights (N,)``. The loss is convex in 1 / T (Guo et al.,
    ICML 2017, Section 4.2), and so is the prior: the minimum is found by bisection. The prior keeps
    T near 1 as long as there are few images; unequal weights make them fewer. Without images T is
    1.

    >>> logits = np.log([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.1]])
    >>> labels, even = np.array([0, 1, 0, 1]), np.ones(4)
    >>> round(fit_temperature(2 * logits, labels, even), 2)
    2.17
    >>> many = np.tile(2 * logits, (500, 1)), np.tile(labels, 500), np.tile(even, 500)
    >>> round(fit_temperature(*many), 2)
    3.99
    """
    if not len(labels) or weights.sum() <= 0:
        return 1.0
    z = logits.astype(np.float64)
    true = z[np.arange(len(z)), labels]
    images = weights.sum() ** 2 / np.square(weights).sum()
    low, high = np.log(1 / HIGHEST), np.log(1 / LOWEST)
    for _ in range(60):
        middle = (low + high) / 2
        scaled = np.exp(middle) * (z - z.max(axis=1, keepdims=True))
        p = np.exp(scaled)
        p /= p.sum(axis=1, keepdims=True)
        slope = float(weights @ ((p * z).sum(axis=1) - true)) / weights.sum() * images
        slope += PRIOR_RATE * (1 - np.exp(-middle))
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def without_temperature(probabilities: Probabilities, temperature: float | Floats) -> Floats:
    """Return ``p^T``, normalised: the probabilities ``(N, K)`` before logits were divided by T.

    T is the same for all images, or ``(N, 1)``.

    >>> without_temperature(np.array([[0.8, 0.2]]), 2.0).round(3).tolist()
    [[0.941, 0.059]]
    """
    # A probability that was rounded to 0 stays finite as a logarithm.
    logs = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny))
    logs = temperature * (logs - logs.max(axis=1, keepdims=True))
    p = np.exp(logs)
    return np.asarray(p / p.sum(axis=1, keepdims=True))
