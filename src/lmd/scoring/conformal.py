"""Prediction sets with a guaranteed coverage for each class, and their numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.proportions import LEVEL, Floats, Labels, Probabilities

Level = Literal["class", "tier", "all", "always"]


@dataclass(frozen=True)
class Guarantee:
    """For which images the coverage of a class is guaranteed, and how exact it is.

    ``level`` is ``class`` (images of the class), ``tier`` (images of all classes of its tier, in
    the mix of the validation part), ``all`` (all images, likewise) or ``always`` (the class is in
    every set, because there are too few images for any threshold). ``images`` were held out for
    the threshold, of ``groups`` patients or lesions if these are known. With other held-out images
    the coverage would vary: ``low`` to ``high`` holds 95 % of its distribution (of all images of a
    group being alike, if there are groups), and ``mean`` is its mean.
    """

    level: Level
    images: int
    threshold: float
    mean: float
    low: float
    high: float
    groups: int | None = None


@dataclass(frozen=True)
class Held:
    """Held-out images of a class: sorted probabilities of it, ``(n,)``, and groups ``(n,)``."""

    probabilities: NDArray[Any]
    groups: NDArray[np.integer[Any]] | None = None


def true_probabilities(
    labels: Labels, probabilities: Probabilities, groups: NDArray[np.integer[Any]] | None = None
) -> list[Held]:
    """Return, of the images of each of K classes, the probability of that class."""
    held_out = []
    for k in range(probabilities.shape[1]):
        rows = np.flatnonzero(labels == k)
        rows = rows[np.argsort(probabilities[rows, k], kind="stable")]
        held_out.append(Held(probabilities[rows, k], None if groups is None else groups[rows]))
    return held_out


def rank(images: int, coverage: float) -> int:
    """Return how many of the images reach the threshold: ``⌈(n + 1) · coverage⌉``.

    More than ``images`` if they are too few, that is below ``1 / (1 - coverage) - 1``.

    >>> rank(9, 0.9), rank(8, 0.9), rank(99, 0.9), rank(9, 1e-20)
    (9, 9, 90, 1)
    """
    # The small number keeps products such as 100 * 0.29 from rounding up to one rank more.
    return max(math.ceil((images + 1) * coverage - 1e-9), 1)


def guarantees(held_out: Sequence[Held], tiers: Sequence[str], coverage: float) -> list[Guarantee]:
    """Return the threshold of each class with its guarantee, from ``true_probabilities``.

    A class with too few images takes the threshold of all images of its tier, or of all images. For
    that guarantee to be true, no class that shares it may have a higher threshold, so the
    thresholds of the other classes of the tier (or of all classes) are lowered to it.
    """
    if not 0 < coverage < 1:
        raise LmdError(f"--coverage must be above 0 and below 1, such as 0.9; it is {coverage:g}")
    classes = range(len(held_out))
    result: list[Guarantee] = []
    lowest = [math.inf] * len(held_out)
    for k in classes:
        pools: list[tuple[Level, list[int]]] = [
            ("class", [k]),
            ("tier", [j for j in classes if tiers[j] == tiers[k]]),
            ("all", list(classes)),
        ]
        for level, members in pools:
            guarantee = _guarantee(level, _together([held_out[j] for j in members]), coverage)
            if guarantee is not None:
                break
        else:
            members, guarantee = [k], Guarantee("always", 0, 0.0, 1.0, 1.0, 1.0)
        result.append(guarantee)
        for j in members:
            lowest[j] = min(lowest[j], guarantee.threshold)
    for k, (guarantee, threshold) in enumerate(zip(result, lowest, strict=True)):
        if threshold == guarantee.threshold:
            continue
        # What is expected of shared thresholds holds for the images of all, not of this class.
        result[k] = replace(guarantee, threshold=threshold)
        if guarantee.level == "class":
            weights, units = _weights(held_out[k])
            reached = float(weights[held_out[k].probabilities >= threshold].sum())
            result[k] = _described("class", held_out[k], threshold, reached, units)
    return result


def prediction_sets(probabilities: Probabilities, thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """Return which classes are in the set of each image, ``(N, K)``."""
    return np.asarray(probabilities >= np.asarray(thresholds, dtype=probabilities.dtype))


def coverage_interval(images: int, reached: int) -> tuple[float, float]:
    """Return 95 % of Beta(r, n + 1 - r): the coverage of a threshold that r of n images reach.

    Vovk, Conditional validity of inductive conformal predictors, ACML 2012, Section 2. The
    quantiles come from ``P(Beta(r, n + 1 - r) ≤ x) = P(Binomial(n, x) ≥ r)`` by bisection.

    >>> [round(limit, 3) for limit in coverage_interval(1, 1)]
    [0.025, 0.975]
    """
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, images + 1)))])
    hits = np.arange(reached, images + 1)
    ways = logs[images] - logs[hits] - logs[images - hits]

    def quantile(share: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            x = (low + high) / 2
            tail = np.exp(ways + hits * math.log(x) + (images - hits) * math.log1p(-x)).sum()
            low, high = (x, high) if tail < share else (low, x)
        return (low + high) / 2

    return quantile((1 - LEVEL) / 2), quantile((1 + LEVEL) / 2)


def _together(held_out: Sequence[Held]) -> Held:
    """Join the held-out images of several classes, whose groups have different numbers."""
    values = np.concatenate([held.probabilities for held in held_out])
    order = np.argsort(values, kind="stable")
    groups = [held.groups for held in held_out if held.groups is not None]
    if len(groups) < len(held_out):
        return Held(values[order])
    return Held(values[order], np.concatenate(groups)[order])


def _weights(held: Held) -> tuple[Floats, int]:
    """Return what each image counts ``(n,)``, a group 1 in all, and the number of groups."""
    if held.groups is None:
        return np.ones(len(held.probabilities)), len(held.probabilities)
    _, index, sizes = np.unique(held.groups, return_inverse=True, return_counts=True)
    return 1 / sizes[index], len(sizes)


def _guarantee(level: Level, pool: Held, coverage: float) -> Guarantee | None:
    """Find the highest threshold that enough of the pool reaches; ``None`` if it is too small."""
    weights, units = _weights(pool)
    needed: float = rank(units, coverage)
    if needed > units:
        return None
    if pool.groups is not None:
        needed = (units + 1) * coverage
    reached = np.cumsum(weights[::-1])  # from the highest probability on
    last = min(int(np.searchsorted(reached, needed - 1e-9)), len(pool.probabilities) - 1)
    threshold = float(pool.probabilities[::-1][last])
    return _described(level, pool, threshold, float(reached[last]), units)


def _described(level: Level, pool: Held, threshold: float, reached: float, units: int) -> Guarantee:
    """Describe a threshold that ``reached`` of ``units`` independent images or groups reach."""
    below, above = math.floor(reached + 1e-9), min(math.ceil(reached - 1e-9), units)
    low = coverage_interval(units, below)[0] if below else 0.0
    high = coverage_interval(units, above)[1]
    images, groups = len(pool.probabilities), None if pool.groups is None else units
    return Guarantee(level, images, threshold, reached / (units + 1), low, high, groups)
