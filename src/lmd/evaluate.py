"""From predictions to the numbers of a record: metrics, intervals, per-class table, notes."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.errors import LmdError
from lmd.groups import GROUPS, Groups
from lmd.intervals import (
    LEVEL,
    Draws,
    bootstrap,
    f1_interval,
    interval,
    mean_recall_interval,
    wilson,
)
from lmd.metrics import (
    GROUP_METRICS,
    METRICS,
    absent_classes,
    confusion_matrix,
    group_balanced_accuracy,
    per_class,
)

Labels = NDArray[np.integer[Any]]
Probabilities = NDArray[np.floating[Any]]

SMALL_CLASS = 10


def score(
    labels: Labels,
    probabilities: Probabilities,
    classes: Sequence[str],
    groups: Groups,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
    *,
    resamples: int = 1000,
    seed: int = 0,
    part: str = "test",
) -> dict[str, Any]:
    """All numbers of one part from labels ``(N,)`` and probabilities ``(N, K)``, ready for JSON.

    ``metrics``, ``per_class`` and ``confusion`` are what a record holds under the part's name,
    ``definitions`` and ``notes`` what it holds for all parts. ``part`` names the part in notes.
    """
    check_predictions(labels, probabilities, classes)
    _check_per_class("groups", groups.assignment, classes)
    _check_per_class("train_counts", train_counts, classes)
    draws = bootstrap(
        labels, probabilities, groups=groups.assignment, resamples=resamples, seed=seed
    )
    metrics = _metrics(labels, probabilities, groups, draws)
    confusion = confusion_matrix(labels, probabilities)
    return {
        "metrics": metrics,
        "per_class": _per_class(labels, probabilities, classes, groups, train_counts=train_counts),
        "confusion": confusion.tolist(),
        "definitions": definitions(resamples),
        "notes": [f"{part}: {note}" for note in _notes(confusion, classes, groups, metrics)],
    }


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


def definitions(resamples: int = 1000) -> dict[str, dict[str, str]]:
    """Title and definition of every number that ``score`` gives, and of its interval."""
    texts = {
        key: {"title": metric.title, "definition": metric.definition}
        for table in (METRICS, GROUP_METRICS)
        for key, metric in table.items()
    }
    level = f"{100 * LEVEL:g} %"
    texts["recall"] = {
        "title": "Recall",
        "definition": "Share of the class's images that were given the class. Interval: "
        f"Wilson's for a proportion, {level}.",
    }
    texts["precision"] = {
        "title": "Precision",
        "definition": "Share of the images given the class that are of the class; 0 if the class "
        f"is never predicted. Interval: Wilson's for a proportion, {level}; 0 to 1 if the class "
        "is never predicted, as the part then says nothing about it.",
    }
    texts["f1"] = {
        "title": "F1",
        "definition": "Harmonic mean of precision and recall. Interval: percentiles of F1 with "
        "recall and false positive rate drawn from their Beta posteriors under Jeffreys' prior, "
        f"{level}.",
    }
    texts["interval"] = {
        "title": "Interval",
        "definition": f"{level} percentile interval of a bootstrap with {resamples} resamples that "
        "draws images within each true class; widened to contain the value where the resamples of "
        "a biased metric leave it outside. Where every class of a mean of recalls is all right or "
        "all wrong it would have no width: Wilson limits of the recalls are then combined. It "
        "speaks of the choice of test images, not of the randomness of training, and takes every "
        "image for a patient of its own. The columns of the per-class table have their own.",
    }
    return texts


def small_class_note(
    hits: Sequence[int], support: Sequence[int], classes: Sequence[str], groups: Groups
) -> str | None:
    """Why not to lean on the bootstrap of a mean over classes here; ``None`` if one may.

    A class whose few images are all right or all wrong varies in no resample. The note names the
    classes below ``SMALL_CLASS`` images, says how far one image moves balanced accuracy, and gives
    the intervals of ``mean_recall_interval`` instead.
    """
    small = [k for k, n in enumerate(support) if 0 < n < SMALL_CLASS]
    if not small:
        return None
    points = 100 / (sum(n > 0 for n in support) * min(support[k] for k in small))
    stuck = [classes[k] for k in small if hits[k] in (0, support[k])]
    trouble = (
        f"too narrow, as {', '.join(stuck)} (all right or all wrong) cannot vary in it"
        if stuck
        else "coarse"
    )
    spans = []
    means = {"balanced accuracy": list(range(len(support)))} | {
        f"the {group} classes": groups.members(group)
        for group in GROUPS
        if any(groups.assignment[k] == group for k in small)
    }
    for name, members in means.items():
        limits = mean_recall_interval([hits[k] for k in members], [support[k] for k in members])
        spans.append(f"{limits[0]:.3f} to {limits[1]:.3f} for {name}")
    return (
        f"Few images of {', '.join(f'{classes[k]} ({support[k]})' for k in small)}: one image "
        f"moves balanced accuracy by up to {points:.2f} points, and the bootstrap interval of a "
        f"mean over classes is {trouble}. Wilson limits of the recalls, combined over the classes, "
        f"give {', '.join(spans)}."
    )


def format_scores(scores: Mapping[str, Any]) -> str:
    """What ``score`` returned as plain text: values, intervals, classes, notes, definitions."""
    texts = scores["definitions"]
    rows = [
        (texts[key]["title"], _plain(entry), _span(entry))
        for key, entry in scores["metrics"].items()
    ]
    lines = _columns([("Metric", "value", f"{100 * LEVEL:g} % interval"), *rows])
    header = ["Class", "group", "train", "images"]
    for column in ("recall", "precision", "f1"):
        header += [column, "interval"]
    table = [tuple(header)]
    for row in scores["per_class"]:
        cells = [row["name"], row["group"], str(row["train"]), str(row["support"])]
        for column in ("recall", "precision", "f1"):
            cells += [_plain(row[column]), _span(row[column])]
        table.append(tuple(cells))
    lines += ["", *_columns(table)]
    if scores["notes"]:
        lines += ["", "Notes", *(_wrapped(note, "- ") for note in scores["notes"])]
    lines += ["", "Definitions"]
    lines += [_wrapped(f"{t['title']}: {t['definition']}", "- ") for t in texts.values()]
    return "\n".join(lines)


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


def _metrics(
    labels: Labels, probabilities: Probabilities, groups: Groups, draws: Draws
) -> dict[str, dict[str, float | None]]:
    values = {key: metric.function(labels, probabilities) for key, metric in METRICS.items()}
    for key, metric in GROUP_METRICS.items():
        members = groups.members(metric.group)
        values[key] = group_balanced_accuracy(labels, probabilities, members)
    found = {key: _entry(value, *interval(draws[key], value)) for key, value in values.items()}
    confusion = confusion_matrix(labels, probabilities)
    hits, support = np.diag(confusion), confusion.sum(1)
    means = {key: groups.members(metric.group) for key, metric in GROUP_METRICS.items()}
    everyone = list(range(len(confusion)))
    means |= {"balanced_accuracy": everyone, "macro_recall": everyone}
    for key, members in means.items():
        if found[key]["low"] is not None and found[key]["low"] == found[key]["high"]:
            # Every class all right or all wrong: resampling sees no spread where there is one.
            limits = mean_recall_interval(hits[members].tolist(), support[members].tolist())
            found[key] = _entry(values[key], *limits)
    return found


def _per_class(
    labels: Labels,
    probabilities: Probabilities,
    classes: Sequence[str],
    groups: Groups,
    *,
    train_counts: Sequence[int] | NDArray[np.integer[Any]],
) -> list[dict[str, Any]]:
    values = per_class(labels, probabilities)
    confusion = confusion_matrix(labels, probabilities)
    rows = []
    for k, name in enumerate(classes):
        hits, support = int(confusion[k, k]), int(values.support[k])
        predicted = int(confusion[:, k].sum())
        nothing = (math.nan, math.nan)
        limits = {
            "recall": wilson(hits, support) if support else nothing,
            "precision": wilson(hits, predicted) if support else nothing,
            "f1": f1_interval(hits, support, predicted, len(labels)),
        }
        rows.append(
            {"name": name, "group": groups.assignment[k], "train": int(train_counts[k])}
            | {"support": support}
            | {key: _entry(getattr(values, key)[k], *limits[key]) for key in limits}
        )
    return rows


def _notes(
    confusion: NDArray[np.int64],
    classes: Sequence[str],
    groups: Groups,
    metrics: Mapping[str, Mapping[str, float | None]],
) -> list[str]:
    support = confusion.sum(axis=1)
    notes = []
    absent = absent_classes(np.repeat(np.arange(len(classes)), support), len(classes))
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
    hits = confusion.diagonal().tolist()
    small = small_class_note(hits, support.tolist(), classes, groups)
    return [*notes, small] if small else notes


def _plain(entry: Mapping[str, float | None]) -> str:
    value = entry["value"]
    return "-" if value is None else f"{value:.3f}"


def _span(entry: Mapping[str, float | None]) -> str:
    low, high = entry["low"], entry["high"]
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *rest]))
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _wrapped(text: str, mark: str) -> str:
    return textwrap.fill(text, 98, initial_indent=mark, subsequent_indent=" " * len(mark))
