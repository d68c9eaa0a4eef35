"""From predictions to the numbers of a record: metrics, intervals, per-class table, notes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.definitions import definitions
from lmd.scoring.intervals import (
    bootstrap,
    effective,
    f1_interval,
    interval,
    mean_recall_interval,
    wilson,
)
from lmd.scoring.metrics import (
    GROUP_METRICS,
    METRICS,
    absent_classes,
    confusion_matrix,
    group_balanced_accuracy,
    per_class,
)
from lmd.scoring.resampling import Draws, Labels, Probabilities
from lmd.scoring.tiers import GROUPS, Groups

SMALL_CLASS = 10


def score(
    labels: Labels,
    probabilities: Probabilities,
    classes: Sequence[str],
    groups: Groups,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
    *,
    units: NDArray[Any] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    part: str = "test",
) -> dict[str, Any]:
    """All numbers of one part from labels ``(N,)`` and probabilities ``(N, K)``, ready for JSON.

    ``metrics``, ``per_class`` and ``confusion`` are what a record holds under the part's name,
    ``definitions`` and ``notes`` what it holds for all parts. ``part`` names the part in notes.
    Where ``units (N,)`` tell which images are of one patient or lesion, the intervals know it.
    """
    check_predictions(labels, probabilities, classes)
    _check_per_class("groups", groups.assignment, classes)
    _check_per_class("train_counts", train_counts, classes)
    draws = bootstrap(
        labels, probabilities, groups=groups.assignment, units=units, resamples=resamples, seed=seed
    )
    found = Predicted(labels, probabilities, units)
    metrics = _metrics(found, groups, draws)
    return {
        "metrics": metrics,
        "per_class": _per_class(found, classes, groups, train_counts=train_counts),
        "confusion": found.confusion.tolist(),
        "definitions": definitions(resamples, grouped=units is not None),
        "notes": [f"{part}: {note}" for note in _notes(found, classes, groups, metrics)],
    }


@dataclass(frozen=True)
class Predicted:
    """Labels ``(N,)``, probabilities ``(N, K)``, and which images are of one patient ``(N,)``."""

    labels: Labels
    probabilities: Probabilities
    units: NDArray[Any] | None = None

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """Rows are true classes ``(K, K)``."""
        return confusion_matrix(self.labels, self.probabilities)

    @cached_property
    def given(self) -> NDArray[np.intp]:
        """The class that each image was given ``(N,)``."""
        given: NDArray[np.intp] = self.probabilities.argmax(axis=1)
        return given

    def effective(self, rows: NDArray[np.bool_], right: NDArray[np.bool_]) -> tuple[float, float]:
        """How many of the chosen images are right, of how many, as independent images count."""
        return effective(right[rows], None if self.units is None else self.units[rows])

    @cached_property
    def recalls(self) -> list[tuple[float, float]]:
        """Hits and images of each class, as independent images count."""
        right = self.given == self.labels
        return [self.effective(self.labels == k, right) for k in range(len(self.confusion))]

    def patients(self, k: int) -> int:
        """Of how many patients or lesions the images of a class are."""
        own = self.labels == k
        return int(own.sum()) if self.units is None else len(np.unique(self.units[own]))


def check_predictions(labels: Labels, probabilities: Probabilities, classes: Sequence[str]) -> None:
    """Labels and probabilities fit each other and the classes, or an error that says what not."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise LmdError(f"labels must be whole numbers (N,); they are {labels.dtype} {labels.shape}")
    shape = (len(labels), len(classes))
    if probabilities.shape != shape:
        raise LmdError(
            f"probabilities must be (N, K) = {shape}, a row for each label and a column for each "
            f"class; they are {probabilities.shape}"
        )
    if len(labels) == 0:
        raise LmdError("there is no image to score: labels are empty; give a part with images")
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


def small_class_note(found: Predicted, classes: Sequence[str], groups: Groups) -> str | None:
    """Why not to lean on the bootstrap of a mean over classes here; ``None`` if one may.

    A class whose few images are all right or all wrong varies in no resample. The note names the
    classes below ``SMALL_CLASS`` images (patients, lesions), says how far one image moves balanced
    accuracy, and gives the intervals of ``mean_recall_interval`` instead.
    """
    support = found.confusion.sum(axis=1).tolist()
    hits = found.confusion.diagonal().tolist()
    patients = [found.patients(k) for k in range(len(support))]
    small = [k for k, n in enumerate(patients) if 0 < n < SMALL_CLASS]
    if not small:
        return None
    points = 100 / (sum(n > 0 for n in support) * min(support[k] for k in small))
    stuck = [classes[k] for k in small if hits[k] in (0, support[k])]
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
    spans = []
    means = {"balanced accuracy": list(range(len(support)))} | {
        f"the {group} classes": groups.members(group)
        for group in GROUPS
        if any(groups.assignment[k] == group for k in small)
    }
    for name, members in means.items():
        limits = _combined(found, members)
        spans.append(f"{limits[0]:.3f} to {limits[1]:.3f} for {name}")
    return (
        f"Few images of {', '.join(named)}: one image "
        f"moves balanced accuracy by up to {points:.2f} points, and the bootstrap interval of a "
        f"mean over classes is {trouble}. Wilson limits of the recalls, combined over the classes, "
        f"give {', '.join(spans)}."
    )


def _check_per_class(
    name: str, values: Sequence[Any] | NDArray[Any], classes: Sequence[str]
) -> None:
    if len(values) != len(classes):
        raise LmdError(
            f"{name} must have one entry for each of the {len(classes)} classes; it has "
            f"{len(values)}"
        )


def _entry(value: float, low: float, high: float) -> dict[str, float | None]:
    limits = {"value": value, "low": low, "high": high}
    return {name: float(x) if math.isfinite(x) else None for name, x in limits.items()}


def _combined(found: Predicted, members: Sequence[int]) -> tuple[float, float]:
    """Limits of the mean recall of some classes, from those of each."""
    counts = [found.recalls[k] for k in members]
    return mean_recall_interval([hits for hits, _ in counts], [images for _, images in counts])


def _metrics(found: Predicted, groups: Groups, draws: Draws) -> dict[str, dict[str, float | None]]:
    given = found.labels, found.probabilities
    values = {key: metric.function(*given) for key, metric in METRICS.items()}
    for key, metric in GROUP_METRICS.items():
        values[key] = group_balanced_accuracy(*given, groups.members(metric.group))
    entries = {key: _entry(value, *interval(draws[key], value)) for key, value in values.items()}
    means = {key: groups.members(metric.group) for key, metric in GROUP_METRICS.items()}
    everyone = list(range(len(found.confusion)))
    means |= {"balanced_accuracy": everyone, "macro_recall": everyone}
    for key, members in means.items():
        if entries[key]["low"] is not None and entries[key]["low"] == entries[key]["high"]:
            # Every class all right or all wrong: resampling sees no spread where there is one.
            entries[key] = _entry(values[key], *_combined(found, members))
    return entries


def _per_class(
    found: Predicted,
    classes: Sequence[str],
    groups: Groups,
    *,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
) -> list[dict[str, Any]]:
    values = per_class(found.labels, found.probabilities)
    rows = []
    for k, name in enumerate(classes):
        support = int(values.support[k])
        row = {"name": name, "group": groups.assignment[k], "train": int(train_counts[k])}
        row["support"] = support
        if found.units is not None:
            row["units"] = found.patients(k)
        limits = _class_limits(found, k) if support else {}
        for key in ("recall", "precision", "f1"):
            row[key] = _entry(getattr(values, key)[k], *limits.get(key, (math.nan, math.nan)))
        rows.append(row)
    return rows


def _class_limits(found: Predicted, k: int) -> dict[str, tuple[float, float]]:
    """Intervals of recall, precision and F1 of a class that has images."""
    own, called = found.labels == k, found.given == k
    recall, alarms = found.recalls[k], found.effective(~own, called)
    support, others = int(own.sum()), int((~own).sum())
    return {
        "recall": wilson(*recall),
        "precision": wilson(*found.effective(called, own)),
        "f1": f1_interval(
            int((own & called).sum()),
            support,
            int(called.sum()),
            support + others,
            shrink=(recall[1] / support, alarms[1] / max(others, 1)),
        ),
    }


def _notes(
    found: Predicted,
    classes: Sequence[str],
    groups: Groups,
    metrics: Mapping[str, Mapping[str, float | None]],
) -> list[str]:
    notes = []
    absent = absent_classes(found.labels, len(classes))
    if absent:
        notes.append(
            f"No image of {', '.join(classes[k] for k in absent)}: recall, precision and F1 "
            "cannot be computed, and means over classes leave these classes out."
        )
    for group in GROUP_METRICS.values():
        if metrics[group.key]["value"] is None:
            why = "has an image" if groups.members(group.group) else f"is {group.group} by the rule"
            notes.append(f"{group.title} cannot be computed: no class of this part {why}.")
    if metrics["auc"]["value"] is None:
        notes.append("Macro AUC cannot be computed: all images are of one class.")
    if metrics["kappa"]["value"] is None:
        notes.append(
            "Quadratic kappa cannot be computed: all images are of one class, and given it."
        )
    small = small_class_note(found, classes, groups)
    return [*notes, small] if small else notes
