"""The numbers of a record from predictions: metrics with intervals, classes, calibration, notes.

A class is small if it has fewer than ``SMALL_CLASS`` images, or patients or lesions if these are
known. Resampling a handful of images is too narrow, and without any width if all of them are right
or all wrong. So the interval of a mean over classes with a small one is combined from the limits of
its classes (MOVER; Zou and Donner 2008). Where the classes have no such limits, there is none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring import proportions as shares
from lmd.scoring.estimates import Calibration, ClassScore, Definition, Estimate, PartScores
from lmd.scoring.metrics import METRICS, PER_CLASS, Metric, Sample, Weighted
from lmd.scoring.proportions import LEVEL, Floats, Labels, Probabilities
from lmd.scoring.tiers import Tiers

Draws = dict[str, Floats]
Limits = tuple[float, float]

SMALL_CLASS = 10
NONE = (math.nan, math.nan)
_CHUNK = 1_000_000  # weights held at once: limits memory and fits the cache
_SUMS = 500  # resamples of a mean


def score(
    labels: Labels,
    probabilities: Probabilities,
    classes: Sequence[str],
    tiers: Tiers,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
    *,
    groups: NDArray[Any] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    part: str = "test",
) -> PartScores:
    """Return all numbers of one part from labels ``(N,)`` and probabilities ``(N, K)``.

    Images with the same number in ``groups (N,)`` are of one patient or lesion. ``part`` is the
    name used in notes.
    """
    sample = Sample(labels, probabilities, tiers.assignment, groups)
    metrics = metric_estimates(sample, resamples=resamples, seed=seed)
    rows = []
    for k, name in enumerate(classes):
        limits = class_limits(sample, k)
        rates = {
            key: Estimate.of(getattr(sample.plain, key)[0, k], *limits[key]) for key in PER_CLASS
        }
        rows.append(
            ClassScore(
                name=name,
                tier=str(sample.tiers[k]),
                train=int(train_counts[k]),
                support=int(sample.support[k]),
                units=None if sample.groups is None else int(sample.units[k]),
                **rates,
            )
        )
    return PartScores(
        metrics=metrics,
        per_class=rows,
        confusion=sample.plain.confusion[0].astype(int).tolist(),
        notes=[f"{part}: {note}" for note in _notes(sample, classes, metrics)],
    )


def metric_estimates(
    sample: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Return the metrics ``keys`` with their intervals."""
    estimates = {}
    for key, draws in bootstrap(sample, keys, resamples=resamples, seed=seed).items():
        value = METRICS[key].value(sample)
        limits = limits_of(sample, METRICS[key], shares.interval(draws, value))
        estimates[key] = Estimate.of(value, *limits)
    return estimates


def _notes(sample: Sample, classes: Sequence[str], metrics: dict[str, Estimate]) -> list[str]:
    notes, support, small = [], sample.support, small_classes(sample)
    absent = [name for name, images in zip(classes, support, strict=True) if not images]
    if absent:
        notes.append(
            f"No images of {', '.join(absent)}: their recall, precision and F1 "
            "cannot be computed, and means over classes leave them out."
        )
    for key, metric in METRICS.items():
        if metrics[key].value is None:
            empty = not sample.members(metric.tier).any()
            why = f"no class is {metric.tier} by the rule" if empty else metric.undefined
            notes.append(f"{metric.title} cannot be computed: {why}.")
    if small:
        points = 100 / (sum(support > 0) * min(support[small]))
        counts = []
        for k in small:
            n = sample.units[k]
            of = f" of {n} patients or lesions" if n < support[k] else ""
            counts.append(f"{classes[k]} ({support[k]}{of})")
        notes.append(
            f"Few images of {', '.join(counts)}: one image moves balanced accuracy by up to "
            f"{points:.2f} points. Intervals of means over these classes are combined from the "
            "limits of the classes, because a bootstrap of so few images is too narrow. AUC has no "
            "such limits, and no interval."
        )
    return notes


def bootstrap(
    sample: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> Draws:
    """Return the metrics ``keys`` on R stratified resamples, ``(R,)`` each.

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
    """Return ``bootstrap`` of each of several samples of the same images, drawn only once.

    ``tick`` is called with the number of resamples that have been added to one sample.
    """
    functions = {key: METRICS[key].function for key in keys}
    chunks: list[list[Draws]] = [[] for _ in samples]
    for weights in draw(samples[0], resamples, seed):
        for sample, values in zip(samples, chunks, strict=True):
            drawn = Weighted(sample, weights)
            values.append({key: function(drawn) for key, function in functions.items()})
            tick(len(weights))
    return [
        {key: np.concatenate([chunk[key] for chunk in values]) for key in functions}
        for values in chunks
    ]


def draw(sample: Sample, count: int, seed: int) -> Iterator[Floats]:
    """Yield stratified resamples in chunks: how often each image was drawn ``(R, N)``.

    The weights of one image are contiguous, because AUC puts the images into another order.
    """
    if count < 1:
        raise LmdError(f"resamples must be at least 1; it is {count}")
    generator = np.random.default_rng(seed)
    size = max(1, _CHUNK // len(sample.labels))
    groups = np.arange(len(sample.labels)) if sample.groups is None else sample.groups
    indices = [np.unique(groups[rows], return_inverse=True)[1] for rows in sample.rows]
    for start in range(0, count, size):
        draws = min(size, count - start)
        weights = []
        for group in filter(len, indices):
            n = int(group.max()) + 1
            drawn = generator.integers(n, size=(draws, n)) * draws + np.arange(draws)[:, None]
            times = np.bincount(drawn.ravel(), minlength=draws * n).reshape(n, draws)
            weights.append((times if n == len(group) else times[group]).astype(np.float64))
        yield np.concatenate(weights).T


def f1_interval(
    hits: int,
    support: int,
    predicted: int,
    images: int,
    *,
    shrink: tuple[float, float] = (1.0, 1.0),
) -> Limits:
    """Return an interval for the F1 of one class, valid for tiny classes too.

    Recall and false positive rate are drawn from their Beta posteriors under Jeffreys' prior
    (Goutte and Gaussier 2005). ``shrink`` holds the effective share of the images of the class and
    of the other images (``effective``).
    """
    if support == 0:
        return NONE
    generator, draws = np.random.default_rng(0), 4000
    others, false = images - support, predicted - hits
    inside, outside = shrink
    recall = generator.beta(inside * hits + 0.5, inside * (support - hits) + 0.5, draws)
    alarms = np.zeros(draws)
    if others:
        alarms = generator.beta(outside * false + 0.5, outside * (others - false) + 0.5, draws)
    f1 = 2 * support * recall / (support * recall + support + others * alarms)
    return shares.interval(f1, 2 * hits / (support + predicted))


def small_classes(sample: Sample, tier: str | None = None) -> list[int]:
    """Return the small classes of a tier that have images."""
    few = (sample.support > 0) & (sample.units < SMALL_CLASS)
    return np.flatnonzero(sample.members(tier) & few).tolist()


def too_small(sample: Sample, metric: Metric) -> bool:
    """Check whether a metric is a mean over classes one of which is small."""
    return metric.mean_of is not None and bool(small_classes(sample, metric.tier))


def class_limits(sample: Sample, k: int) -> dict[str, Limits]:
    """Return intervals of recall, precision and F1 of a class; nan if it has no images."""
    true, called = sample.labels == k, sample.predicted == k
    support, others = int(true.sum()), int((~true).sum())
    if not support:
        return dict.fromkeys(PER_CLASS, NONE)
    recall, alarms, precision = (
        shares.effective(hits[rows], sample.groups_in(rows))
        for rows, hits in ((true, called), (~true, called), (called, true))
    )
    shrink = recall[1] / support, alarms[1] / max(others, 1)
    hits, predicted = int((true & called).sum()), int(called.sum())
    return {
        "recall": shares.wilson(*recall),
        "precision": shares.wilson(*precision),
        "f1": f1_interval(hits, support, predicted, support + others, shrink=shrink),
    }


def limits_of(sample: Sample, metric: Metric, drawn: Limits) -> Limits:
    """Return the interval of a metric: ``drawn`` by a bootstrap, or combined if that is too narrow.

    A metric without limits for classes has none where a class is small, or where its bootstrap has
    no width.
    """
    stuck = drawn[0] == drawn[1]
    if metric.mean_of and (stuck or too_small(sample, metric)):
        return combined(sample, metric)
    if stuck and metric.key == "accuracy":
        return shares.wilson(*shares.effective(sample.right, sample.groups))
    return NONE if stuck else drawn


def combined(sample: Sample, metric: Metric) -> Limits:
    """Return limits of a mean over classes from the limits of its classes, if they exist."""
    present = np.flatnonzero(sample.members(metric.tier) & (sample.support > 0)).tolist()
    if not present or metric.mean_of not in PER_CLASS:
        return NONE
    values = getattr(sample.plain, metric.mean_of)[0, present]
    low, high = np.array([class_limits(sample, k)[metric.mean_of] for k in present]).T
    return mover(values, values - low, high - values)


def mover(values: Floats, below: Floats, above: Floats) -> Limits:
    """Return limits of a mean from the distances of each value to its limits, added by squares."""
    mean, size = float(values.mean()), len(values)
    return (
        mean - float(np.sqrt(np.sum(below**2))) / size,
        mean + float(np.sqrt(np.sum(above**2))) / size,
    )


def share_of(outcomes: NDArray[Any], groups: NDArray[np.integer] | None) -> Estimate:
    """Return a share with Wilson's interval; images of one patient or lesion count less."""
    if not len(outcomes):
        return Estimate(value=None)
    return Estimate.of(outcomes.mean(), *shares.wilson(*shares.effective(outcomes, groups)))


def resampled_sums(sample: Sample, values: Floats) -> tuple[Floats, Floats]:
    """Return sums of values, and counts of images, of each class in each resample: ``(R, K)``."""
    sums, images = [], []
    for weights in draw(sample, _SUMS, 0):
        sums.append(np.stack([weights[:, rows] @ values[rows] for rows in sample.rows], axis=1))
        images.append(np.stack([weights[:, rows].sum(axis=1) for rows in sample.rows], axis=1))
    return np.concatenate(sums), np.concatenate(images)


def mean_estimate(values: Floats, sums: Floats, images: Floats) -> Estimate:
    """Return the mean of ``(n,)`` with its interval from resamples ``(R,)``."""
    return _drawn(values.mean(), sums / images) if len(values) else Estimate(value=None)


def _drawn(value: float, draws: Floats) -> Estimate:
    """Return a value with its interval; where all draws agree, nothing is known about it."""
    low, high = shares.interval(draws, value)
    return Estimate.of(value, *(NONE if low == high else (low, high)))


def calibration(
    sample: Sample, temperature: float | Floats | None, mix: Floats | None, *, resamples: int = 1000
) -> Calibration:
    """Return ECE without the temperature, and both values in the ``mix (K,)`` of the model's prior.

    A temperature for each image, ``(N, 1)``, is in the order of the sample's rows. ``None`` is
    one that cannot be undone.
    """
    ece, before = METRICS["ece"], None
    if temperature is not None:
        plain = shares.without_temperature(sample.probabilities, temperature)
        before = Sample(sample.labels, plain, sample.tiers.tolist(), sample.groups)
    matched: list[float | None] = [None, None]
    if mix is not None:
        weights = shares.mix_weights(sample.labels, mix)[None]
        matched = [
            None if images is None else float(ece.function(Weighted(images, weights))[0])
            for images in (before, sample)
        ]
    estimate = Estimate(value=None)
    if before is not None:
        draws = bootstrap(before, ["ece"], resamples=resamples)["ece"]
        estimate = _drawn(ece.value(before), draws)
    return Calibration(before=estimate, matched_before=matched[0], matched_after=matched[1])


def definitions(resamples: int = 1000, grouped: bool = False) -> dict[str, Definition]:
    """Return title and definition of every number of ``score`` and of its interval.

    ``grouped`` says whether the patient or lesion of each image is known.
    """
    level = f"{100 * LEVEL:g} %"
    noun, alike = "groups" if grouped else "images", ""
    drawn, taken = noun, ", and treats every image as a patient of its own"
    if grouped:
        alike = (
            " Images of one group (patient or lesion) count less than images of different groups, "
            "by the design effect of Rao and Scott."
        )
        drawn, taken = "groups (patients or lesions) with all their images", ""
    texts = {
        "Recall": "Share of the images of the class that are predicted as the class. Interval: "
        f"Wilson's for a proportion, {level}.{alike}",
        "Precision": "Share of the images predicted as the class that are of the class; 0 if the "
        f"class is never predicted. Interval: Wilson's for a proportion, {level}; 0 to 1 if the "
        f"class is never predicted, because the part then says nothing about it.{alike}",
        "F1": "Harmonic mean of precision and recall. Interval: percentiles of F1 with recall and "
        f"false positive rate drawn from their Beta posteriors under Jeffreys' prior, {level}."
        f"{alike}",
        "Interval": f"{level} percentile interval of a bootstrap with {resamples} resamples that "
        f"draws {drawn} within each true class, widened to contain the value where the resamples "
        "of a biased metric leave it outside. In a mean over classes with a small one (fewer than "
        f"{SMALL_CLASS} {noun}), this interval would be too narrow, or have no width; the limits "
        "of the classes, as in the per-class columns, are then combined by squares (MOVER). AUC "
        "has no limits for classes, and then no interval. Kappa, MCC and ECE have none where all "
        "resamples agree. The interval "
        f"covers the choice of test images, not the randomness of training{taken}.",
    }
    metrics = {
        key: Definition(title=metric.title, definition=metric.definition)
        for key, metric in METRICS.items()
    }
    return metrics | {t.lower(): Definition(title=t, definition=d) for t, d in texts.items()}
