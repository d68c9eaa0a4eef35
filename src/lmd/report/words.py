"""Numbers as text, and the sentences that summarise a run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmd.runs.record import Record
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import METRICS, PER_CLASS

WEAK = 0.5
WIDE = 0.3
NONE = "–"


def is_rate(key: str) -> bool:
    """Whether a metric is a share of images and is shown in per cent.

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


def novelty(record: Record) -> list[str]:
    """What the report says about the flag for images unlike the training images."""
    found = record.novelty
    if found is None:
        return []
    sentences = [
        "The model flags an image as unlike the training images if its features are farther from "
        f"every class of the training part than those of {percent(found.above, 0)} of the "
        f"{thousands(found.images)} validation images. Do not rely on the prediction for such an "
        "image: it may be of another kind, from another device, or of a disease that the model "
        "does not know. An image without a flag may still be one of these."
    ]
    if found.flagged is not None:
        whose = f" of {record.external.run}" if record.external is not None else ""
        sentences.append(
            f"In the test part{whose} it flags {percent(found.flagged.value)} of the images (95 % "
            f"interval {interval('recall', found.flagged)}). These are false flags, because the "
            "test images are of the same kind as the training images."
        )
    if (found.images + 1) * (1 - found.above) < 1 - 1e-9:
        sentences.append(
            f"{thousands(found.images)} validation images are too few for "
            f"{percent(found.above, 0)}: the most distant one gives the threshold, so that about "
            f"1 in {thousands(found.images + 1)} images of the same kind is flagged."
        )
    return sentences


def fitted_on(record: Record) -> str | None:
    """The images that gave the temperature; ``None`` if none was fitted and it is 1."""
    if record.folds is not None:
        fitted = any(fold.temperature != 1 for fold in record.folds.runs)
        return "its validation part" if fitted else None
    if record.model.temperature == 1:
        return None
    validation = record.data.counts.get("validation", [])
    return "the validation part" if any(validation) else "images held out of training"


def interval(key: str, found: Estimate) -> str:
    """The interval of a metric; empty if there is none.

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
    """The value of a setting as users type it."""
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


def summary(record: Record, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about the reported part: which classes are weak, and which are uncertain."""
    known = sorted((r for r in rows if r["recall"] is not None), key=lambda row: row["recall"])
    if not known:
        return ["No class could be scored in this run."]
    named = [f"{row['name']} ({percent(row['recall'], 0)})" for row in known]
    weak = sum(row["recall"] < WEAK for row in known)
    if weak:
        have = f"{weak} of {len(rows)} classes {'has' if weak == 1 else 'have'}"
        sentences = [f"{have} recall below 50\u202f%: {listing(named[:weak])}."]
    else:
        sentences = [f"No class has recall below 50\u202f%; the weakest is {named[0]}."]
    matrix = record.confusion.get(record.part) if record.part else None
    if matrix:
        sentences += _confusions(matrix, record.data.classes, known[0]["name"])
    wide = [r["name"] for r in rows if r["low"] is not None and r["high"] - r["low"] > WIDE]
    if wide:
        have = f"{len(wide)} of {len(rows)} classes {'has' if len(wide) == 1 else 'have'}"
        sentences.append(
            f"{have} an interval wider than 30 points, mostly because there are few images: "
            f"interpret the recall of {listing(wide)} with care."
        )
    absent = [row["name"] for row in rows if row["recall"] is None]
    if absent:
        sentences.append(f"Nothing is known about {listing(absent)}: no image in this part.")
    return sentences


def _confusions(
    matrix: Sequence[Sequence[int]], classes: Sequence[str], weakest: str
) -> Iterator[str]:
    """Classes that are never predicted, and the usual mistake for the weakest class."""
    columns = [sum(column) for column in zip(*matrix, strict=True)]
    never = [name for name, said in zip(classes, columns, strict=True) if not said]
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
