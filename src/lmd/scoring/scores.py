"""The numbers of a record from predictions: metrics, intervals, per-class table, notes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.estimates import ClassScore, Definition, Estimate, PartScores
from lmd.scoring.intervals import (
    SMALL_CLASS,
    bootstrap,
    class_limits,
    draw,
    limits_of,
    small_classes,
    units,
)
from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.proportions import (
    LEVEL,
    Floats,
    Labels,
    Probabilities,
    effective,
    interval,
    wilson,
)
from lmd.scoring.sample import Sample
from lmd.scoring.tiers import Tiers


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
    """All numbers of one part from labels ``(N,)`` and probabilities ``(N, K)``.

    Images with the same number in ``groups (N,)`` are of one patient or lesion. ``part`` is the
    name used in notes.
    """
    if len(train_counts) != len(classes):
        raise LmdError(
            f"train_counts must have one entry for each of the {len(classes)} classes; it has "
            f"{len(train_counts)}"
        )
    sample = Sample(labels, probabilities, tiers.assignment, groups)
    metrics = metric_estimates(sample, resamples=resamples, seed=seed)
    return PartScores(
        metrics=metrics,
        per_class=[_class_score(sample, k, name, train_counts) for k, name in enumerate(classes)],
        confusion=sample.plain.confusion[0].astype(int).tolist(),
        notes=[f"{part}: {note}" for note in _notes(sample, classes, metrics)],
    )


def _estimate(value: float, low: float, high: float) -> Estimate:
    numbers = {"value": value, "low": low, "high": high}
    return Estimate(**{k: float(x) if math.isfinite(x) else None for k, x in numbers.items()})


def metric_estimates(
    sample: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """The metrics ``keys`` with their intervals."""
    keys = list(keys)
    draws = bootstrap(sample, keys, resamples=resamples, seed=seed)
    found = {}
    for key in keys:
        metric = METRICS[key]
        value = metric.value(sample)
        found[key] = _estimate(value, *limits_of(sample, metric, interval(draws[key], value)))
    return found


def _class_score(
    sample: Sample,
    k: int,
    name: str,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
) -> ClassScore:
    limits = class_limits(sample, k)
    values = {key: getattr(sample.plain, key)[0, k] for key in PER_CLASS}
    return ClassScore(
        name=name,
        tier=str(sample.tiers[k]),
        train=int(train_counts[k]),
        support=int(sample.support[k]),
        units=None if sample.groups is None else units(sample, k),
        **{key: _estimate(values[key], *limits[key]) for key in PER_CLASS},
    )


def _notes(sample: Sample, classes: Sequence[str], metrics: dict[str, Estimate]) -> list[str]:
    notes = []
    absent = [name for name, images in zip(classes, sample.support, strict=True) if not images]
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
    small = _small_class_note(sample, classes)
    return [*notes, small] if small else notes


def _small_class_note(sample: Sample, classes: Sequence[str]) -> str | None:
    """What classes with fewer than ``SMALL_CLASS`` patients mean for the intervals."""
    support, small = sample.support, small_classes(sample)
    if not small:
        return None
    points = 100 / (sum(support > 0) * min(support[small]))
    named = []
    for k in small:
        own = units(sample, k)
        of = f" of {own} patients or lesions" if own < support[k] else ""
        named.append(f"{classes[k]} ({support[k]}{of})")
    return (
        f"Few images of {', '.join(named)}: one image moves balanced accuracy by up to "
        f"{points:.2f} points. Intervals of means over these classes are combined from the limits "
        "of the classes, because a bootstrap of so few images is too narrow. AUC has no such "
        "limits, and no interval."
    )


_SUMS = 500  # resamples of a mean


def share_of(outcomes: NDArray[Any], groups: NDArray[np.integer] | None) -> Estimate:
    """A share of images with Wilson's interval; images of one patient or lesion count less."""
    if not len(outcomes):
        return Estimate(value=None)
    low, high = wilson(*effective(outcomes, groups))
    return Estimate(value=float(outcomes.mean()), low=low, high=high)


def resampled_sums(sample: Sample, values: Floats) -> tuple[Floats, Floats]:
    """Sums of the values, and numbers of images, of each class in each resample: ``(R, K)``."""
    sums, images = [], []
    for weights in draw(sample, _SUMS, 0):
        sums.append(np.stack([weights[:, own] @ values[own] for own in sample.rows], axis=1))
        images.append(np.stack([weights[:, own].sum(axis=1) for own in sample.rows], axis=1))
    return np.concatenate(sums), np.concatenate(images)


def mean_estimate(values: Floats, sums: Floats, images: Floats) -> Estimate:
    """The mean of ``(n,)`` with its interval from resamples ``(R,)``."""
    if not len(values):
        return Estimate(value=None)
    mean = float(values.mean())
    low, high = interval(sums / images, mean)
    # Where all resamples agree, nothing is known about how sure the mean is.
    return Estimate(value=mean) if low == high else Estimate(value=mean, low=low, high=high)


def definitions(resamples: int = 1000, grouped: bool = False) -> dict[str, Definition]:
    """Return title and definition of every number of ``score`` and of its interval.

    ``grouped`` says whether the patient or lesion of each image is known.
    """
    level = f"{100 * LEVEL:g} %"
    alike = (
        " Images of one group (patient or lesion) count less than images of different groups, "
        "by the design effect of Rao and Scott."
        if grouped
        else ""
    )
    drawn, taken, units = (
        ("groups (patients or lesions) with all their images", "", "groups")
        if grouped
        else ("images", ", and treats every image as a patient of its own", "images")
    )
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
        f"{SMALL_CLASS} {units}), this interval would be too narrow, or have no width; the limits "
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
