"""Definitions of a record's numbers, and the numbers as plain text."""

import textwrap
from collections.abc import Mapping, Sequence

from lmd.scoring.estimates import Definition, Estimate, PartScores
from lmd.scoring.intervals import LEVEL
from lmd.scoring.metrics import METRICS, PER_CLASS


def definitions(resamples: int = 1000, grouped: bool = False) -> dict[str, Definition]:
    """Title and definition of every number of ``score`` and of its interval.

    ``grouped`` says whether the patient or lesion of each image is known.
    """
    level = f"{100 * LEVEL:g} %"
    alike = (
        " Images of one group (patient or lesion) count less than images of different groups, "
        "by the design effect of Rao and Scott."
        if grouped
        else ""
    )
    drawn, taken = (
        ("groups (patients or lesions) with all their images", "")
        if grouped
        else ("images", ", and treats every image as a patient of its own")
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
        "of a biased metric leave it outside. If all images of each class in a mean of recalls "
        "are right, or all are wrong, this interval would have no width; Wilson limits of the "
        "recalls are then combined instead. The interval covers the choice of test images, not "
        f"the randomness of training{taken}. The per-class columns have their own intervals.",
    }
    found = {
        key: Definition(title=metric.title, definition=metric.definition)
        for key, metric in METRICS.items()
    }
    return found | {t.lower(): Definition(title=t, definition=d) for t, d in texts.items()}


def format_scores(scores: PartScores, texts: Mapping[str, Definition]) -> str:
    """One part as plain text: values, intervals, classes, notes and the definitions ``texts``."""
    rows = [(texts[key].title, _plain(one), _span(one)) for key, one in scores.metrics.items()]
    lines = _columns([("Metric", "value", f"{100 * LEVEL:g} % interval"), *rows])
    grouped = any(row.units is not None for row in scores.per_class)
    header = ["Class", "tier", "train", "images (lesions, patients)" if grouped else "images"]
    for column in PER_CLASS:
        header += [column, "interval"]
    table = [tuple(header)]
    for row in scores.per_class:
        images = f"{row.support} ({row.units})" if grouped else str(row.support)
        cells = [row.name, row.tier, str(row.train), images]
        for column in PER_CLASS:
            entry = getattr(row, column)
            cells += [_plain(entry), _span(entry)]
        table.append(tuple(cells))
    lines += ["", *_columns(table)]
    if scores.notes:
        lines += ["", "Notes", *(_wrapped(note, "- ") for note in scores.notes)]
    lines += ["", "Definitions"]
    lines += [_wrapped(f"{text.title}: {text.definition}", "- ") for text in texts.values()]
    return "\n".join(lines)


def _plain(entry: Estimate) -> str:
    return "-" if entry.value is None else f"{entry.value:.3f}"


def _span(entry: Estimate) -> str:
    low, high = entry.low, entry.high
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
