"""The numbers of a record from predictions: metrics, intervals, per-class table, notes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.confusion import Labels
from lmd.scoring.estimates import ClassScore, Estimate, PartScores
from lmd.scoring.intervals import effective, f1_interval, interval, mean_recall_interval, wilson
from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.resampling import bootstrap
from lmd.scoring.sample import Probabilities, Sample
from lmd.scoring.tiers import TIERS, Tiers

SMALL_CLASS = 10
Limits = tuple[float, float]


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
    _check_predictions(labels, probabilities, classes)
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


def _check_predictions(
    labels: Labels, probabilities: Probabilities, classes: Sequence[str]
) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise LmdError(f"labels must be whole numbers (N,); they are {labels.dtype} {labels.shape}")
    shape = (len(labels), len(classes))
    if probabilities.shape != shape:
        raise LmdError(
            f"probabilities must be (N, K) = {shape}, a row for each label and a column for each "
            f"class; they are {probabilities.shape}"
        )
    if len(labels) == 0:
        raise LmdError("there are no images to score: labels are empty; give a part with images")
    outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(outside):
        raise LmdError(
            f"labels must lie from 0 to {len(classes) - 1}; row {outside[0]} is "
            f"{labels[outside[0]]} ({len(outside)} such rows)"
        )
    with np.errstate(invalid="ignore"):  # infinities of both signs: the first rule reports them
        sums = probabilities.sum(axis=1, dtype=np.float64)
    rules = {
        "be finite": ~np.isfinite(probabilities).all(axis=1),
        "lie from 0 to 1": ((probabilities < 0) | (probabilities > 1 + 1e-3)).any(axis=1),
        "sum to 1 within 0.001": np.abs(sums - 1) > 1e-3,
    }
    for rule, broken in rules.items():
        rows = np.flatnonzero(broken)
        if len(rows):
            values = ", ".join(f"{p:.4g}" for p in probabilities[rows[0]][:8])
            raise LmdError(
                f"probabilities must {rule} in every row; row {rows[0]} is [{values}"
                f"{', …' if len(classes) > 8 else ''}] ({len(rows)} such rows of {len(labels)}); "
                "give softmax outputs, not logits"
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
        low, high = interval(draws[key], value)
        if metric.mean_recall and low == high:
            # Resampling classes that are all right or all wrong shows no spread.
            low, high = _combined(sample, metric.tier)
        found[key] = _estimate(value, low, high)
    return found


def _combined(sample: Sample, tier: str | None) -> Limits:
    """Limits of the mean recall of a tier, combined from those of its classes."""
    members = np.flatnonzero(sample.members(tier))
    counts = [_effective(sample, sample.labels == k, sample.right) for k in members]
    return mean_recall_interval([hits for hits, _ in counts], [images for _, images in counts])


def _effective(sample: Sample, rows: NDArray[np.bool_], hits: NDArray[np.bool_]) -> Limits:
    """Hits among the chosen images and their number, counted as independent images."""
    return effective(hits[rows], None if sample.groups is None else sample.groups[rows])


def _patients(sample: Sample, k: int) -> int:
    """The number of patients or lesions of a class."""
    return len(np.unique(sample.groups_of(k)))


def _class_score(
    sample: Sample,
    k: int,
    name: str,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
) -> ClassScore:
    nothing = (math.nan, math.nan)
    limits = _class_limits(sample, k) if sample.support[k] else dict.fromkeys(PER_CLASS, nothing)
    values = {key: getattr(sample.plain, key)[0, k] for key in PER_CLASS}
    return ClassScore(
        name=name,
        tier=str(sample.tiers[k]),
        train=int(train_counts[k]),
        support=int(sample.support[k]),
        units=None if sample.groups is None else _patients(sample, k),
        **{key: _estimate(values[key], *limits[key]) for key in PER_CLASS},
    )


def _class_limits(sample: Sample, k: int) -> dict[str, Limits]:
    """Intervals of recall, precision and F1 of a class that has images."""
    own, called = sample.labels == k, sample.predicted == k
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
    """A warning about bootstrap intervals if classes have fewer than ``SMALL_CLASS`` patients."""
    support, recall = sample.support, sample.plain.recall[0]
    patients = [_patients(sample, k) for k in range(len(classes))]
    small = [k for k, n in enumerate(patients) if 0 < n < SMALL_CLASS]
    if not small:
        return None
    points = 100 / (sum(support > 0) * min(support[small]))
    stuck = [classes[k] for k in small if recall[k] in (0, 1)]
    trouble = (
        f"too narrow, as {', '.join(stuck)} (all right or all wrong) cannot vary in it"
        if stuck
        else "coarse"
    )
    named = [
        f"{classes[k]} ({support[k]}"
        + (f" of {patients[k]} patients or lesions)" if patients[k] < support[k] else ")")
        for k in small
    ]
    means: dict[str, str | None] = {"balanced accuracy": None}
    means |= {f"the {tier} classes": tier for tier in TIERS if tier in sample.tiers[small]}
    spans = []
    for name, tier in means.items():
        low, high = _combined(sample, tier)
        spans.append(f"{low:.3f} to {high:.3f} for {name}")
    return (
        f"Few images of {', '.join(named)}: one image "
        f"moves balanced accuracy by up to {points:.2f} points, and the bootstrap interval of a "
        f"mean over classes is {trouble}. Wilson limits of the recalls, combined over the classes, "
        f"give {', '.join(spans)}."
    )
