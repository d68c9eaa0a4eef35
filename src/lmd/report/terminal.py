"""The numbers of a run as text for the terminal."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import clipped, text_table
from lmd.runs.record import Record
from lmd.scoring.differences import Difference
from lmd.scoring.estimates import Definition
from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.proportions import LEVEL

WIDTH = 80
HEADLINES = ("balanced_accuracy", "bacc_head", "bacc_medium", "bacc_tail", "macro_f1", "auc", "ece")
Table = list[Sequence[str] | None]


def format_summary(record: Record) -> str:
    """Return the main numbers of one run with bars, at most 80 columns wide."""
    head = f"{record.method.title} on {clipped(record.data.source, 40)} ({record.name})"
    if record.part is None:
        return f"{head}\n{record.status}: no numbers yet"
    metrics = record.metrics[record.part]
    numbers: Table = [("metric", "value", "interval", ""), None]
    for key in (key for key in HEADLINES if key in metrics):
        title = record.definitions[key].title if key in record.definitions else key
        numbers.append((title, *metrics[key].cells(".1p"), bar(metrics[key].value)))
    classes: Table = [("class", "tier", "train", "images", "recall", "interval", ""), None]
    for row in sorted(record.per_class[record.part], key=lambda row: -row.train):
        counts = (row.name, row.tier, str(row.train), str(row.support))
        classes.append((*counts, *row.recall.cells(".1p"), bar(row.recall.value, 12)))
    lines = [
        clipped(head, WIDTH),
        f"{record.part_title}, values in %, intervals 95 %",
        "",
        text_table(numbers, "lrrl", limits=(30, 6, 14, 24)),
        "",
        text_table(classes, "llrrrrl", limits=(18, 6, 6, 6, 6, 14, 12)),
    ]
    return "\n".join(lines)


def bar(share: float | None, width: int = 24) -> str:
    """Return a bar for a share of 1, in eighths of a character.

    >>> bar(0.5, 4), bar(0.03, 4), bar(None)
    ('██', '▏', '')
    """
    if share is None:
        return ""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    if not eighths and share > 0:
        eighths = 1
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def format_scores(record: Record) -> str:
    """Return all numbers of the reported part: values, intervals, classes and notes."""
    part = record.part
    if part is None:
        raise LmdError(f"{record.name} has no validation or test part to score")
    lines = [f"{record.method.title} on {record.data.source}, {record.part_title}"]
    metrics = record.metrics[part]
    rows = [(record.definitions[key].title, *one.cells()) for key, one in metrics.items()]
    lines.append(text_table([("Metric", "value", f"{100 * LEVEL:g} % interval"), None, *rows]))
    grouped = any(row.units is not None for row in record.per_class[part])
    header = ["Class", "tier", "train", "images (lesions, patients)" if grouped else "images"]
    for column in PER_CLASS:
        header += [column, "interval"]
    table: Table = [header, None]
    for row in record.per_class[part]:
        images = f"{row.support} ({row.units})" if grouped else str(row.support)
        cells = [row.name, row.tier, str(row.train), images]
        for column in PER_CLASS:
            cells += getattr(row, column).cells()
        table.append(cells)
    lines += ["", text_table(table)]
    if record.notes:
        lines += ["", "Notes", *(_wrapped(note) for note in record.notes)]
    return "\n".join(lines)


def format_definitions(definitions: Mapping[str, Definition]) -> str:
    """Return what each number means."""
    return "\n".join(_wrapped(f"{one.title}: {one.definition}") for one in definitions.values())


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="- ", subsequent_indent="  ")


def format_comparison(differences: Mapping[str, Difference], title: str) -> str:
    """Return the differences between two runs, in 98 columns."""
    lines = [textwrap.fill(title, 98)]
    for key, gap in differences.items():
        name = METRICS[key].title
        if not gap.known:
            lines.append(f"  {name:<26} not computable")
        elif gap.same_as:
            lines.append(f"  {name:<26} the same as {METRICS[gap.same_as].title.lower()}")
        else:
            span = f"95 % {100 * gap.low:+.2f} to {100 * gap.high:+.2f}"
            span = span if np.isfinite(gap.low) else f"no interval: {gap.why}"
            p = ""
            if gap.corrected is not None:
                p = "   p < 0.001" if gap.corrected < 0.001 else f"   p = {gap.corrected:.3f}"
            lines.append(f"  {name:<26} {100 * gap.value:+7.2f}   {span}{p}")
    return "\n".join(lines)
