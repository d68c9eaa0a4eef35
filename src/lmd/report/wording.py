"""Numbers as text, and the sentences that summarise a run."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lmd.scoring.estimates import MISSING, number_text
from lmd.scoring.metrics import number_form

if TYPE_CHECKING:
    from lmd.report.sections import ClassRow
    from lmd.runs.record import Record

WEAK = 0.5
WIDE = 0.3


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as per cent.

    >>> percent(0.7125), percent(None)
    ('71.2\\u202f%', '–')
    """
    return number_text(value, f".{digits}%")


def signed(value: float | None) -> str:
    """Return a difference of two shares, in points.

    >>> signed(0.0525), signed(-0.01)
    ('+5.2', '−1.0')
    """
    return number_text(value, "+.1p")


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
    "signed": signed,
    "thousands": thousands,
    "seconds": seconds,
    "moment": moment,
    "setting": setting,
    "listing": listing,
}


def fitted_on(record: "Record") -> str | None:
    """Return the images that gave the temperature; ``None`` if none was fitted and it is 1."""
    if record.folds is not None:
        fitted = any(fold.temperature != 1 for fold in record.folds.runs)
        return "its validation part" if fitted else None
    if record.model.temperature == 1:
        return None
    validation = record.data.counts.get("validation", [])
    return "the validation part" if any(validation) else "images held out of training"


def summary(record: "Record", rows: Sequence["ClassRow"]) -> list[str]:
    """Return sentences about the reported part: which classes are weak or uncertain."""
    recalls = [(row.recall.value, row.name) for row in rows if row.recall.value is not None]
    if not recalls:
        return ["No class could be scored in this run."]
    recalls.sort(key=lambda pair: pair[0])
    named = [f"{name} ({percent(value, 0)})" for value, name in recalls]
    weak = sum(value < WEAK for value, _ in recalls)
    sentences = [f"No class has recall below 50\u202f%; the weakest is {named[0]}."]
    if weak:
        have = f"{weak} of {len(rows)} classes {'has' if weak == 1 else 'have'}"
        sentences = [f"{have} recall below 50\u202f%: {listing(named[:weak])}."]
    matrix = record.confusion.get(record.part) if record.part else None
    if matrix:
        sentences += _confusions(matrix, record.data.classes, recalls[0][1])
    wide = [row.name for row in rows if (row.recall.high or 0) - (row.recall.low or 0) > WIDE]
    if wide:
        have = f"{len(wide)} of {len(rows)} classes {'has' if len(wide) == 1 else 'have'}"
        sentences.append(
            f"{have} an interval wider than 30 points, mostly because there are few images: "
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
