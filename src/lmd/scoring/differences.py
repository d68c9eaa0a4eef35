"""Paired differences of two runs on the same images, and the choice between them.

Small classes have the rule of ``lmd.scoring.scores``: the interval of a difference in recall is
combined from the limits of both runs. Where the classes have no such limits, there is neither an
interval nor a p-value.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.metrics import METRICS, Metric, Sample
from lmd.scoring.proportions import Floats, Labels, Z, effective, interval, wilson
from lmd.scoring.scores import NONE, Limits, bootstrap, mover, too_small

Correct = NDArray[np.bool_]  # which images are right
# Of a class: right images and their number, in both runs, and the correlation of the runs.
Pair = tuple[tuple[float, float], tuple[float, float], float]


@dataclass(frozen=True)
class Difference:
    """Run A minus run B: value, interval and two-sided p-value of no difference.

    Among all metrics (``compare``), ``corrected`` is the p-value by Holm over the distinct ones.
    ``same_as`` is an earlier metric that is the same number here, which is not counted again, and
    ``why`` says why there is no interval.
    """

    value: float
    low: float
    high: float
    p_value: float
    corrected: float | None = None
    same_as: str | None = None
    why: str = ""

    @property
    def known(self) -> bool:
        """Whether both runs have the metric."""
        return bool(np.isfinite(self.value))


def difference(value: float, draws: Floats) -> Difference:
    """Return a difference with its interval and p-value from its ``draws (R,)``; nan if any is nan.

    The p-value is twice the share of resamples with a difference of zero or of the other sign,
    where the data counts as one more resample; it is at least ``2 / (R + 1)``.
    """
    if np.isnan(value) or np.isnan(draws).any():
        return Difference(value, float("nan"), float("nan"), float("nan"))
    # A difference within rounding counts as zero.
    below, above = np.sum(draws <= 1e-12), np.sum(draws >= -1e-12)
    p_value = min(1.0, 2 * (1 + float(min(below, above))) / (len(draws) + 1))
    return Difference(value, *interval(draws, value), p_value)


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """Return p-values corrected by Holm's step-down procedure (Holm 1979), in the same order.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def paired_limits(
    first: Sequence[Sample], second: Sequence[Sample], metric: Metric, drawn: Difference
) -> Difference:
    """Return a paired difference: ``drawn`` by a bootstrap, or combined where that is too narrow.

    Each side has the runs of one or several seeds on the same images. The limits of a class are
    Newcombe's for paired proportions (1998, method 10), and the p-value is that at which the
    combined interval reaches zero. Paired limits of precision, F1 and AUC of a class are not known:
    where a class is small, or where the bootstrap has no width, these have no interval.
    """
    run = first[0]
    stuck, small = drawn.low == drawn.high, too_small(run, metric)
    if metric.mean_of == "recall" and (stuck or small):
        present = np.flatnonzero(run.members(metric.tier) & (run.support > 0))
        classes = [run.labels == k for k in present]
    elif stuck and metric.key == "accuracy":
        classes = [np.full(len(run.labels), True)]
    elif stuck or small:
        # Resamples that all agree, or of a handful of images, say nothing about other images.
        return Difference(drawn.value, *NONE, 1.0 if drawn.value == 0 else math.nan)
    else:
        return drawn
    pairs = []
    right, right_too = (
        np.mean([sample.right for sample in side], axis=0) for side in (first, second)
    )
    for rows in classes:
        groups = run.groups_in(rows)
        hits = effective(right[rows], groups), effective(right_too[rows], groups)
        pairs.append((*hits, _correlation(right[rows], right_too[rows])))
    low, high = _paired_mean(pairs, Z)
    return Difference(drawn.value, low, high, _p_value(drawn.value, pairs))


def _p_value(value: float, pairs: Sequence[Pair]) -> float:
    """Return the two-sided p-value: the level of the widest interval without zero."""
    if abs(value) < 1e-12:
        return 1.0
    near, far = 0.0, 8.0
    for _ in range(40):
        z = (near + far) / 2
        low, high = _paired_mean(pairs, z)
        near, far = (near, z) if low <= 0 <= high else (z, far)
    return 2 * (1 - NormalDist().cdf(near))


def _paired_mean(pairs: Sequence[Pair], z: float) -> Limits:
    """Return limits of the mean over classes of the difference in right images."""
    gaps: list[float] = []
    below: list[float] = []
    above: list[float] = []
    for first, second, correlation in pairs:
        (p, low, high), (q, low_too, high_too) = (
            (h / n, *wilson(h, n, z)) for h, n in (first, second)
        )
        gaps.append(p - q)
        for distances, mine, theirs in (
            (below, p - low, high_too - q),
            (above, high - p, q - low_too),
        ):
            square = mine**2 - 2 * correlation * mine * theirs + theirs**2
            distances.append(math.sqrt(max(square, 0.0)))
    return mover(*map(np.array, (gaps, below, above)))


def _correlation(a: Floats, b: Floats) -> float:
    """Return the correlation of paired outcomes, with Newcombe's correction for few pairs."""
    spread = float(a.std() * b.std())
    if spread == 0:
        return 0.0
    shared = float(np.mean(a * b) - a.mean() * b.mean())
    return (max(shared - 1 / (2 * len(a)), 0.0) if shared > 0 else shared) / spread


def compare(
    a: Sample, b: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Return metrics of run A minus run B on the same images, corrected for their number."""
    keys = tuple(keys)
    draws_a, draws_b = (bootstrap(run, keys, resamples=resamples, seed=seed) for run in (a, b))
    gaps, same = {}, {}
    formulas: dict[tuple[Any, ...], str] = {}
    for key in keys:
        metric = METRICS[key]
        drawn = difference(metric.value(a) - metric.value(b), draws_a[key] - draws_b[key])
        gaps[key] = paired_limits([a], [b], metric, drawn)
        # The first metric with this formula on these classes, such as macro recall's.
        same[key] = formulas.setdefault((metric.mean_of or key, *a.members(metric.tier)), key)
    tested = [key for key in keys if same[key] == key and np.isfinite(gaps[key].p_value)]
    p_values = holm([gaps[key].p_value for key in tested])
    corrected = dict(zip(tested, p_values.tolist(), strict=True))
    compared = {}
    for key, gap in gaps.items():
        why = ""
        if not np.isfinite(gap.low):
            few = too_small(a, METRICS[key])
            why = "too few images" if few else "all resamples agree"
            why = "the runs agree" if gap.value == 0 else why
        same_as = None if same[key] == key else same[key]
        holms = corrected.get(same[key])
        compared[key] = replace(gap, corrected=holms, same_as=same_as, why=why)
    return compared


def simplest(
    tried: Sequence[Correct],
    scores: Sequence[float],
    labels: Labels,
    groups: NDArray[Any] | None = None,
) -> int:
    """Return the first of ``tried`` that is within one standard error of the best.

    ``tried`` are ordered from simple to complex, or from strong to weak regularisation; ``scores``
    are their balanced accuracies. The standard error is of the difference to the best.
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
