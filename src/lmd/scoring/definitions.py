"""What the numbers of a record mean, and a record's numbers as plain text."""

import textwrap
from collections.abc import Mapping, Sequence

from lmd.scoring.estimates import Estimate, PartScores
from lmd.scoring.intervals import LEVEL
from lmd.scoring.metrics import METRICS, PER_CLASS


def definitions(resamples: int = 1000, grouped: bool = False) -> dict[str, dict[str, str]]:
    """Title and definition of every number that ``score`` gives, and of its interval.

    ``grouped`` where it is known which images are of one patient or lesion.
    """
    texts = {
        key: {"title": metric.title, "definition": metric.definition}
        for key, metric in METRICS.items()
    }
    level = f"{100 * LEVEL:g} %"
    alike = (
        " Images of one group (patient or lesion) count for less than as many of different ones, "
        "by the design effect of Rao and Scott."
        if grouped
        else ""
    )
    drawn, taken = (
        ("groups (patients or lesions) with all their images", "")
        if grouped
        else ("images", ", and takes every image for a patient of its own")
    )
    texts["recall"] = {
        "title": "Recall",
        "definition": "Share of the class's images that were given the class. Interval: "
        f"Wilson's for a proportion, {level}.{alike}",
    }
    texts["precision"] = {
        "title": "Precision",
        "definition": "Share of the images given the class that are of the class; 0 if the class "
        f"is never predicted. Interval: Wilson's for a proportion, {level}; 0 to 1 if the class "
        f"is never predicted, as the part then says nothing about it.{alike}",
    }
    texts["f1"] = {
        "title": "F1",
        "definition": "Harmonic mean of precision and recall. Interval: percentiles of F1 with "
        "recall and false positive rate drawn from their Beta posteriors under Jeffreys' prior, "
        f"{level}.{alike}",
    }
    texts["interval"] = {
        "title": "Interval",
        "definition": f"{level} percentile interval of a bootstrap with {resamples} resamples that "
        f"draws {drawn} within each true class; widened to contain the value where the resamples "
        "of a biased metric leave it outside. Where every class of a mean of recalls is all right "
        "or all wrong it would have no width: Wilson limits of the recalls are then combined. It "
        f"speaks of the choice of test images, not of the randomness of training{taken}. The "
        "columns of the per-class table have their own.",
    }
    return texts


def format_scores(scores: PartScores, texts: Mapping[str, Mapping[str, str]]) -> str:
    """One part as plain text: values, intervals, classes, notes, and ``texts``, the definitions."""
    rows = [
        (texts[key]["title"], _plain(entry), _span(entry)) for key, entry in scores.metrics.items()
    ]
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
    lines += [_wrapped(f"{t['title']}: {t['definition']}", "- ") for t in texts.values()]
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
