"""A run as text: numbers and sentences of the report, and tables for the terminal."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import clipped, counted, text_table
from lmd.runs.record import Record
from lmd.scoring.estimates import MISSING, Definition, number_text
from lmd.scoring.metrics import METRICS, PER_CLASS
from lmd.scoring.proportions import LEVEL

if TYPE_CHECKING:
    from lmd.report.page import ClassRow
    from lmd.scoring.differences import Difference

WEAK = 0.5
WIDE = 0.3
WIDTH = 80
HEADLINES = ("balanced_accuracy", "bacc_head", "bacc_medium", "bacc_tail", "macro_f1", "auc", "ece")
Table = list[Sequence[str] | None]
_ITEM = textwrap.TextWrapper(98, initial_indent="- ", subsequent_indent="  ")


def number_form(key: str) -> str:
    """Return how a metric is shown, for ``number_text``: shares of images are in per cent.

    >>> number_form("balanced_accuracy"), number_form("ece")
    ('.1%', '.3f')
    """
    rate = key in PER_CLASS or (key in METRICS and METRICS[key].rate)
    return ".1%" if rate else ".3f"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as per cent.

    >>> percent(0.7125), percent(None)
    ('71.2\\u202f%', '–')
    """
    return number_text(value, f".{digits}%")


def thousands(value: float | None) -> str:
    """Return a count with thin spaces.

    >>> thousands(11689512)
    '11\\u202f689\\u202f512'
    """
    return MISSING if value is None else f"{int(value):,}".replace(",", "\u202f")


def seconds(value: float | None) -> str:
    """Return a duration.

    >>> seconds(42.31), seconds(754), seconds(9000)
    ('42.3 s', '12 min 34 s', '2 h 30 min')
    """
    if value is None:
        return MISSING
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def moment(value: Any) -> str:
    """Return a time to the minute.

    >>> moment("2026-03-02T10:41:12+00:00")
    '2026-03-02 10:41 UTC'
    """
    text = str(value or "")
    return text[:16].replace("T", " ") + (" UTC" if text.endswith(("Z", "+00:00")) else "")


def setting(value: Any) -> str:
    """Return the value of a setting as users type it."""
    if isinstance(value, str):
        return value
    return MISSING if value is None else json.dumps(value, ensure_ascii=False)


def listing(items: Sequence[str], most: int = 8) -> str:
    """Return names in a sentence.

    >>> listing(["a", "b", "c"]), listing(["a", "b", "c"], most=2)
    ('a, b and c', 'a, b and 1 more')
    """
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


FILTERS = {
    "form": number_form,
    "number": number_text,
    "percent": percent,
    "thousands": thousands,
    "seconds": seconds,
    "moment": moment,
    "setting": setting,
    "listing": listing,
}


def fitted_on(record: Record) -> str | None:
    """Return the images that gave the temperature; ``None`` if none was fitted and it is 1."""
    if record.folds is not None:
        fitted = any(fold.temperature != 1 for fold in record.folds.runs)
        return "its validation part" if fitted else None
    if record.model.temperature == 1:
        return None
    validation = record.data.counts.get("validation", [])
    return "the validation part" if any(validation) else "images held out of training"


def summary(record: Record, rows: Sequence["ClassRow"]) -> list[str]:
    """Return sentences about the reported part: which classes are weak or uncertain."""
    recalls = [(row.recall.value, row.name) for row in rows if row.recall.value is not None]
    if not recalls:
        return ["No class could be scored in this run."]
    recalls.sort(key=lambda pair: pair[0])
    named = [f"{name} ({percent(value, 0)})" for value, name in recalls]
    weak = sum(value < WEAK for value, _ in recalls)
    sentences = [f"No class has recall below 50\u202f%; the weakest is {named[0]}."]
    if weak:
        has = counted(weak, f"{{n}} of {len(rows)} classes [has|have]")
        sentences = [f"{has} recall below 50\u202f%: {listing(named[:weak])}."]
    matrix = record.confusion.get(record.part) if record.part else None
    if matrix:
        sentences += _confusions(matrix, record.data.classes, recalls[0][1])
    wide = [row.name for row in rows if (row.recall.high or 0) - (row.recall.low or 0) > WIDE]
    if wide:
        has = counted(len(wide), f"{{n}} of {len(rows)} classes [has|have]")
        sentences.append(
            f"{has} an interval wider than 30 points, mostly because there are few images: "
            f"interpret the recall of {listing(wide)} with care."
        )
    absent = [row.name for row in rows if row.recall.value is None]
    if absent:
        sentences.append(f"Nothing is known about {listing(absent)}: no image in this part.")
    return sentences


def _confusions(
    matrix: Sequence[Sequence[int]], classes: Sequence[str], weakest: str
) -> Iterator[str]:
    """Yield the classes that are never predicted, and the usual mistake for the weakest class."""
    columns = [sum(column) for column in zip(*matrix, strict=True)]
    never = [name for name, images in zip(classes, columns, strict=True) if not images]
    if never:
        yield f"The model never predicts {listing(never)}."
    true = classes.index(weakest)
    row = list(matrix[true])
    total, row[true] = sum(row), 0
    guess = max(range(len(row)), key=row.__getitem__)
    # A single mistake, or a tie between two classes, is not a pattern.
    if row[guess] >= 2 and row.count(row[guess]) == 1:
        share = f"{thousands(row[guess])} of {thousands(total)}"
        yield f"Images of {weakest} are most often mistaken for {classes[guess]} ({share})."


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
    eighths = round(8 * width * min(max(share, 0.0), 1.0)) or int(share > 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def format_scores(record: Record) -> str:
    """Return all numbers of the reported part: values, intervals, classes and notes."""
    part = record.part
    if part is None:
        raise LmdError(f"{record.name} has no validation or test part to score")
    lines = [f"{record.method.title} on {record.data.source}, {record.part_title}"]
    metrics = record.metrics[part]
    rows = [(record.definitions[key].title, *metric.cells()) for key, metric in metrics.items()]
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
        lines += ["", "Notes", *(_ITEM.fill(note) for note in record.notes)]
    return "\n".join(lines)


def format_definitions(definitions: Mapping[str, Definition]) -> str:
    """Return what each number means."""
    return "\n".join(_ITEM.fill(f"{x.title}: {x.definition}") for x in definitions.values())


def format_comparison(differences: Mapping[str, "Difference"], title: str) -> str:
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
