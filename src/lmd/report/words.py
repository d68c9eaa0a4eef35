"""Numbers as people read them, and the sentences that sum up a run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lmd.runfolder.record import Record
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import METRICS, PER_CLASS

WEAK = 0.5
WIDE = 0.3
NONE = "–"


def is_rate(key: str) -> bool:
    """Whether a metric is a share of images and so is shown in per cent.

    >>> is_rate("balanced_accuracy"), is_rate("ece")
    (True, False)
    """
    return key in PER_CLASS or (key in METRICS and METRICS[key].rate)


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent.

    >>> percent(0.7125), percent(None)
    ('71.2\\u202f%', '–')
    """
    return NONE if value is None else f"{100 * value:.{digits}f}\u202f%"


def signed(value: float) -> str:
    """A difference of two shares, in points.

    >>> signed(0.0525), signed(-0.01)
    ('+5.2', '−1.0')
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def measure(key: str, value: float | None) -> str:
    """One value of a metric."""
    if value is None or is_rate(key):
        return percent(value)
    return f"{value:.3f}".replace("-", "−")


def interval(key: str, found: Estimate) -> str:
    """The interval of a metric; empty where there is none.

    >>> interval("recall", Estimate(value=0.5, low=0.41, high=0.6))
    '41.0–60.0\\u202f%'
    """
    low, high = found.low, found.high
    if low is None or high is None:
        return ""
    if is_rate(key):
        return f"{100 * low:.1f}–{percent(high)}"
    return f"{low:.3f} to {high:.3f}".replace("-", "−")


def seconds(value: float | None) -> str:
    """A duration.

    >>> seconds(42.31), seconds(754), seconds(9000)
    ('42.3 s', '12 min 34 s', '2 h 30 min')
    """
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def moment(value: Any) -> str:
    """A time to the minute.

    >>> moment("2026-03-02T10:41:12+00:00")
    '2026-03-02 10:41 UTC'
    """
    words = str(value or "")
    return words[:16].replace("T", " ") + (" UTC" if words.endswith(("Z", "+00:00")) else "")


def thousands(value: float | None) -> str:
    """A count with thin spaces.

    >>> thousands(11689512)
    '11\\u202f689\\u202f512'
    """
    return NONE if value is None else f"{int(value):,}".replace(",", "\u202f")


def setting(value: Any) -> str:
    """A setting's value as it would be typed."""
    if isinstance(value, str):
        return value
    return NONE if value is None else json.dumps(value, ensure_ascii=False)


def listing(items: Sequence[str], most: int = 8) -> str:
    """Names in a sentence.

    >>> listing(["a", "b", "c"]), listing(["a", "b", "c"], most=2)
    ('a, b and c', 'a, b and 1 more')
    """
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


def classes_and_verb(count: int) -> str:
    """The words that follow "n of K" as a subject."""
    return "classes has" if count == 1 else "classes have"


def summary(record: Record, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Plain sentences about the reported part: which classes are weak, which are uncertain."""
    known = [row for row in rows if row["recall"] is not None]
    sentences = []
    if not known:
        return ["No class could be scored in this run."]
    weak = sorted((row for row in known if row["recall"] < WEAK), key=lambda row: row["recall"])
    if weak:
        names = listing([f"{row['name']} ({percent(row['recall'], 0)})" for row in weak])
        sentences.append(
            f"{len(weak)} of {len(rows)} {classes_and_verb(len(weak))} recall below 50\u202f%: "
            f"{names}."
        )
    else:
        worst = min(known, key=lambda row: row["recall"])
        sentences.append(
            f"No class has recall below 50\u202f%; the weakest is {worst['name']} "
            f"({percent(worst['recall'], 0)})."
        )
    sentences += _never_predicted(record)
    mistaken = _mistaken(record, min(known, key=lambda row: row["recall"])["name"])
    if mistaken:
        sentences.append(mistaken)
    wide = [r["name"] for r in known if r["low"] is not None and r["high"] - r["low"] > WIDE]
    if wide:
        sentences.append(
            f"{len(wide)} of {len(rows)} {classes_and_verb(len(wide))} an interval wider than 30 "
            f"points, mostly because there are few images: read {listing(wide)} with care."
        )
    absent = [row["name"] for row in rows if row["recall"] is None]
    if absent:
        sentences.append(f"Nothing is known about {listing(absent)}: no image in this part.")
    return sentences


def _confusion(record: Record) -> list[list[int]]:
    return record.confusion.get(record.part, []) if record.part else []


def _never_predicted(record: Record) -> list[str]:
    columns = [sum(column) for column in zip(*_confusion(record), strict=True)]
    never = [name for name, said in zip(record.data.classes, columns, strict=False) if not said]
    return [f"The model never predicts {listing(never)}."] if never else []


def _mistaken(record: Record, name: str) -> str:
    matrix, classes = _confusion(record), record.data.classes
    if not matrix:
        return ""
    true = classes.index(name)
    row = list(matrix[true])
    total, row[true] = sum(row), 0
    guess = max(range(len(row)), key=row.__getitem__)
    # A single image, or as many for another class, is no pattern.
    if row[guess] < 2 or row.count(row[guess]) > 1:
        return ""
    return (
        f"Images of {name} are most often mistaken for {classes[guess]} "
        f"({thousands(row[guess])} of {thousands(total)})."
    )
