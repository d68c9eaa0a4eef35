"""Definitions of a record's numbers, and the numbers as plain text."""

import textwrap
from collections.abc import Mapping, Sequence

from lmd.base.text import text_table
from lmd.scoring.estimates import Definition, PartScores
from lmd.scoring.intervals import SMALL_CLASS
from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.proportions import LEVEL


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
    found = {
        key: Definition(title=metric.title, definition=metric.definition)
        for key, metric in METRICS.items()
    }
    return found | {t.lower(): Definition(title=t, definition=d) for t, d in texts.items()}


def format_scores(scores: PartScores, texts: Mapping[str, Definition]) -> str:
    """Return one part as plain text: values, intervals, classes and notes."""
    rows = [(texts[key].title, *one.cells()) for key, one in scores.metrics.items()]
    lines = [text_table([("Metric", "value", f"{100 * LEVEL:g} % interval"), None, *rows])]
    grouped = any(row.units is not None for row in scores.per_class)
    header = ["Class", "tier", "train", "images (lesions, patients)" if grouped else "images"]
    for column in PER_CLASS:
        header += [column, "interval"]
    table: list[Sequence[str] | None] = [header, None]
    for row in scores.per_class:
        images = f"{row.support} ({row.units})" if grouped else str(row.support)
        cells = [row.name, row.tier, str(row.train), images]
        for column in PER_CLASS:
            cells += getattr(row, column).cells()
        table.append(cells)
    lines += ["", text_table(table)]
    if scores.notes:
        lines += ["", "Notes", *(_wrapped(note, "- ") for note in scores.notes)]
    return "\n".join(lines)


def format_definitions(texts: Mapping[str, Definition]) -> str:
    """Return what each number means as plain text."""
    return "\n".join(_wrapped(f"{text.title}: {text.definition}", "- ") for text in texts.values())


def _wrapped(text: str, mark: str) -> str:
    return textwrap.fill(text, 98, initial_indent=mark, subsequent_indent=" " * len(mark))
