"""Bootstrap, intervals of values and of paired differences, with one rule for small classes.

A class is small if it has fewer than ``SMALL_CLASS`` images, or patients or lesions if these are
known. Resampling a handful of images is too narrow, and without any width if all of them are right
or all wrong. So the interval of a mean over classes with a small one is combined from the limits of
its classes (MOVER; Zou and Donner 2008), and that of a paired difference in recall from those of
both runs. Where the classes have no such limits, there is no interval and no p-value.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.metrics import METRICS, PER_CLASS, Metric
from lmd.scoring.proportions import LEVEL, Floats, effective, interval, wilson
from lmd.scoring.sample import Sample, Weighted

Draws = dict[str, Floats]

_CHUNK = 1_000_000  # weights held at once: limits memory and fits the cache


def bootstrap(
    sample: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> Draws:
    """The metrics ``keys`` on R stratified resamples, ``(R,)`` each.

    The same seed draws the same images from two samples of the same images in the same order.
    """
    return bootstrap_all([sample], keys, resamples=resamples, seed=seed)[0]


def bootstrap_all(
    samples: Sequence[Sample],
    keys: Iterable[str] = METRICS,
    *,
    resamples: int = 1000,
    seed: int = 0,
    tick: Callable[[int], object] = lambda done: None,
) -> list[Draws]:
    """What ``bootstrap`` gives for each of several samples of the same images, drawn only once.

    ``tick`` is called with the number of resamples that have been added to one sample.
    """
    functions = {key: METRICS[key].function for key in keys}
    found: list[list[Draws]] = [[] for _ in samples]
    for weights in draw(samples[0], resamples, seed):
        for sample, chunks in zip(samples, found, strict=True):
            drawn = Weighted(sample, weights)
            chunks.append({key: function(drawn) for key, function in functions.items()})
            tick(len(weights))
    return [
        {key: np.concatenate([chunk[key] for chunk in chunks]) for key in functions}
        for chunks in found
    ]


def draw(sample: Sample, count: int, seed: int) -> Iterator[Floats]:
    """Stratified resamples in chunks: how often each image was drawn ``(R, N)``.

    The weights of one image are contiguous, because AUC puts the images into another order.
    """
    if count < 1:
        raise LmdError(f"resamples must be at least 1; it is {count}")
    generator = np.random.default_rng(seed)
    size = max(1, _CHUNK // len(sample.labels))
    groups = [sample.groups_of(k) for k in range(len(sample.rows))]
    for start in range(0, count, size):
        rows = min(size, count - start)
        yield np.concatenate([_drawn(group, rows, generator) for group in groups]).T


def _drawn(group: NDArray[np.integer[Any]], rows: int, generator: np.random.Generator) -> Floats:
    """How often each of n images was drawn ``(n, R)``; ``group (n,)`` numbers groups from 0."""
    n = int(group.max()) + 1 if len(group) else 0
    drawn = generator.integers(n, size=(rows, n)) if n else np.zeros((rows, 0), np.int64)
    drawn = drawn * rows + np.arange(rows)[:, None]
    times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(n, rows)
    return (times if n == len(group) else times[group]).astype(np.float64)


def f1_interval(
    hits: int,
    support: int,
    predicted: int,
    images: int,
    *,
    shrink: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float]:
    """Interval for the F1 of one class, valid for tiny classes too.

    Recall and false positive rate are drawn from their Beta posteriors under Jeffreys' prior
    (Goutte and Gaussier 2005). ``shrink`` holds the effective share of the images of the class and
    of the other images (``effective``).
    """
    if support == 0:
        return float("nan"), float("nan")
    generator, draws = np.random.default_rng(0), 4000
    others, false = images - support, predicted - hits
    own, other = shrink
    recall = generator.beta(own * hits + 0.5, own * (support - hits) + 0.5, draws)
    alarms = np.zeros(draws)
    if others:
        alarms = generator.beta(other * false + 0.5, other * (others - false) + 0.5, draws)
    f1 = 2 * support * recall / (support * recall + support + others * alarms)
    return interval(f1, 2 * hits / (support + predicted))


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
    """A difference with its interval and p-value from its ``draws (R,)``; nan if any is nan.

    The p-value is twice the share of resamples with a difference of zero or of the other sign,
    where the data counts as one more resample; it is at least ``2 / (R + 1)``.
    """
    if np.isnan(value) or np.isnan(draws).any():
        return Difference(value, float("nan"), float("nan"), float("nan"))
    # A difference within rounding counts as zero.
    below, above = np.sum(draws <= 1e-12), np.sum(draws >= -1e-12)
    p_value = min(1.0, 2 * (1 + float(min(below, above))) / (len(draws) + 1))
    return Difference(value, *interval(draws, value), p_value)


def paired_differences(
    a: Sample, b: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Metrics of run A minus those of run B on the same images, with the same resamples.

    Small classes have the rule of ``lmd.scoring.intervals``.
    """
    if a.probabilities.shape != b.probabilities.shape or not np.array_equal(a.labels, b.labels):
        raise LmdError(
            "a paired difference needs two runs on the same images and classes, but their "
            f"probabilities are {a.probabilities.shape} and {b.probabilities.shape}, or their "
            "labels differ"
        )
    keys = tuple(keys)
    draws_a, draws_b = (bootstrap(run, keys, resamples=resamples, seed=seed) for run in (a, b))
    found = {}
    for key in keys:
        metric = METRICS[key]
        drawn = difference(metric.value(a) - metric.value(b), draws_a[key] - draws_b[key])
        found[key] = paired_limits([a], [b], metric, drawn)
    return found


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """P-values corrected by Holm's step-down procedure (Holm 1979), in the given order.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise LmdError(f"p_values must be numbers from 0 to 1; they are {p.tolist()}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


SMALL_CLASS = 10
Limits = tuple[float, float]
NONE = (math.nan, math.nan)


def units(sample: Sample, k: int) -> int:
    """The number of patients or lesions of a class; without groups, of images."""
    return len(np.unique(sample.groups_of(k)))


def small_classes(sample: Sample, tier: str | None = None) -> list[int]:
    """The small classes of a tier that have images."""
    members = np.flatnonzero(sample.members(tier) & (sample.support > 0)).tolist()
    return [k for k in members if units(sample, k) < SMALL_CLASS]


def too_small(sample: Sample, metric: Metric) -> bool:
    """Whether a metric is a mean over classes one of which is small."""
    return metric.mean_of is not None and bool(small_classes(sample, metric.tier))


def class_limits(sample: Sample, k: int) -> dict[str, Limits]:
    """Intervals of recall, precision and F1 of a class; nan if it has no images."""
    own, called = sample.labels == k, sample.predicted == k
    if not own.any():
        return dict.fromkeys(PER_CLASS, NONE)
    recall, alarms = _effective(sample, own, called), _effective(sample, ~own, called)
    support, others = int(own.sum()), int((~own).sum())
    return {
        "recall": wilson(*recall),
        "precision": wilson(*_effective(sample, called, own)),
        "f1": f1_interval(
            int((own & called).sum()),
            support,
            int(called.sum()),
            support + others,
            shrink=(recall[1] / support, alarms[1] / max(others, 1)),
        ),
    }


def limits_of(sample: Sample, metric: Metric, drawn: Limits) -> Limits:
    """The interval of a metric: ``drawn`` by a bootstrap, or combined where that shows too little.

    A metric without limits for classes has none where a class is small, or where its bootstrap has
    no width.
    """
    stuck = drawn[0] == drawn[1]
    if metric.mean_of and (stuck or too_small(sample, metric)):
        return combined(sample, metric)
    if stuck and metric.key == "accuracy":
        return wilson(*_effective(sample, np.full(len(sample.labels), True), sample.right))
    return NONE if stuck else drawn


def combined(sample: Sample, metric: Metric) -> Limits:
    """Limits of a mean over classes from those of its classes, added by squares, if they exist."""
    present = np.flatnonzero(sample.members(metric.tier) & (sample.support > 0)).tolist()
    if not present or metric.mean_of not in PER_CLASS:
        return NONE
    values = getattr(sample.plain, metric.mean_of)[0, present]
    low, high = np.array([class_limits(sample, k)[metric.mean_of] for k in present]).T
    return _mover(values, values - low, high - values)


def paired_limits(
    first: Sequence[Sample], second: Sequence[Sample], metric: Metric, drawn: Difference
) -> Difference:
    """A paired difference by the same rule: ``drawn`` by a bootstrap, or combined.

    Each side has the runs of one or several seeds on the same images. The limits of a class are
    Newcombe's for paired proportions (1998, method 10), and the p-value is that at which the
    combined interval reaches zero. Paired limits of precision, F1 and AUC of a class are not known:
    where a class is small, or where the bootstrap has no width, these have no interval.
    """
    one = first[0]
    stuck, small = drawn.low == drawn.high, too_small(one, metric)
    if metric.mean_of == "recall" and (stuck or small):
        present = np.flatnonzero(one.members(metric.tier) & (one.support > 0))
        classes = [one.labels == k for k in present]
    elif stuck and metric.key == "accuracy":
        classes = [np.full(len(one.labels), True)]
    elif stuck or small:
        # Resamples that all agree, or of a handful of images, say nothing about other images.
        return Difference(drawn.value, *NONE, 1.0 if drawn.value == 0 else math.nan)
    else:
        return drawn

    right = [np.mean([run.right for run in side], axis=0) for side in (first, second)]

    def limits(z: float) -> Limits:
        return _paired_mean(right[0], right[1], one.groups, classes, z)

    low, high = limits(NormalDist().inv_cdf((1 + LEVEL) / 2))
    return Difference(drawn.value, low, high, _p_value(drawn.value, limits))


def _p_value(value: float, limits: Callable[[float], Limits]) -> float:
    """Two-sided p-value: the level of the widest interval that does not contain zero."""
    if abs(value) < 1e-12:
        return 1.0
    near, far = 0.0, 8.0
    for _ in range(40):
        z = (near + far) / 2
        low, high = limits(z)
        near, far = (near, z) if low <= 0 <= high else (z, far)
    return 2 * (1 - NormalDist().cdf(near))


def _paired_mean(
    a: Floats,
    b: Floats,
    groups: NDArray[Any] | None,
    classes: Sequence[NDArray[np.bool_]],
    z: float,
) -> Limits:
    """Limits of the mean over classes of the difference in right images; ``a`` and ``b (N,)``."""
    gaps, below, above = [], [], []
    for rows in classes:
        found = []
        for right in (a[rows], b[rows]):
            hits, trials = effective(right, None if groups is None else groups[rows])
            low, high = wilson(hits, trials, z)
            found.append((hits / trials, hits / trials - low, high - hits / trials))
        (p, down, up), (q, down_too, up_too) = found
        alike = _correlation(a[rows], b[rows])
        gaps.append(p - q)
        below.append(_joined(down, up_too, alike))
        above.append(_joined(up, down_too, alike))
    return _mover(*map(np.array, (gaps, below, above)))


def _correlation(a: Floats, b: Floats) -> float:
    """The correlation of paired outcomes, with Newcombe's correction for few pairs."""
    spread = float(a.std() * b.std())
    if spread == 0:
        return 0.0
    shared = float(np.mean(a * b) - a.mean() * b.mean())
    return (max(shared - 1 / (2 * len(a)), 0.0) if shared > 0 else shared) / spread


def _joined(first: float, second: float, correlation: float) -> float:
    return math.sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0.0))


def _mover(
    values: NDArray[np.float64], below: NDArray[np.float64], above: NDArray[np.float64]
) -> Limits:
    mean, size = float(values.mean()), len(values)
    return (
        mean - float(np.sqrt(np.sum(below**2))) / size,
        mean + float(np.sqrt(np.sum(above**2))) / size,
    )


def _effective(sample: Sample, rows: NDArray[np.bool_], hits: NDArray[np.bool_]) -> Limits:
    """Hits among the chosen images and their number, counted as independent images."""
    return effective(hits[rows], sample.groups_in(rows))


def compare(a: Sample, b: Sample, *, resamples: int = 1000, seed: int = 0) -> dict[str, Difference]:
    """Return every metric of run A minus that of run B, corrected for their number."""
    gaps = paired_differences(a, b, resamples=resamples, seed=seed)
    same = {key: _same(key, a, b) for key in gaps}
    tested = [key for key, gap in gaps.items() if np.isfinite(gap.p_value) and not same[key]]
    p_values = holm([gaps[key].p_value for key in tested])
    corrected = dict(zip(tested, p_values.tolist(), strict=True))
    return {
        key: replace(
            gap,
            corrected=corrected.get(same[key] or key),
            same_as=same[key],
            why=_why(gap, METRICS[key], a),
        )
        for key, gap in gaps.items()
    }


def _same(key: str, a: Sample, b: Sample) -> str | None:
    """An earlier metric with the same formula on these classes, such as macro recall's."""
    metric, keys = METRICS[key], list(METRICS)
    for earlier in keys[: keys.index(key)]:
        other = METRICS[earlier]
        alike = metric.mean_of is not None and metric.mean_of == other.mean_of
        if alike and np.array_equal(a.members(metric.tier), a.members(other.tier)):
            return earlier
    return None


def _why(gap: Difference, metric: Metric, sample: Sample) -> str:
    """Why a difference has no interval; empty if it has one."""
    if np.isfinite(gap.low):
        return ""
    if gap.value == 0:
        return "the runs agree"
    return "too few images" if too_small(sample, metric) else "all resamples agree"
