"""What differs between the images of another place and a run's own, as the page shows it."""

from collections.abc import Sequence
from typing import Any

from lmd.base.text import text_table
from lmd.decisions.record import SetScores
from lmd.evaluation.record import External
from lmd.report.view import Row
from lmd.report.words import NONE, interval, listing, measure, percent, signed
from lmd.runs.record import Record
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import METRICS

FAR = 0.1  # a distance of class mixes, or a change of a share, that is worth a sentence


def external_view(record: Record, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Tables and sentences about both places; ``rows`` give the order of the classes."""
    found = record.external
    if found is None:
        return None
    metrics: list[dict[str, Any]] = [
        {
            "title": METRICS[key].title,
            "cells": [_number(key, one.home), _number(key, one.here)],
            "difference": _gap(key, one.difference),
        }
        for key, one in found.metrics.items()
    ]
    confidence = found.confidence
    pairs = [("Mean confidence", confidence.home, confidence.here)]
    if found.coverage is not None and record.sets is not None:
        title = f"Coverage of {100 * record.sets.requested:g} % sets, all images"
        pairs.append((title, found.coverage, record.sets.coverage))
    if found.flagged is not None and record.novelty is not None and record.novelty.flagged:
        title = "Unlike the training images, all images"
        pairs.append((title, record.novelty.flagged, found.flagged))
    for title, home, here in pairs:
        cells = [_number("recall", home), _number("recall", here)]
        metrics.append({"title": title, "cells": cells, "difference": None})
    return {
        "home": f"{found.home_part} part of {found.run}",
        "metrics": metrics,
        "classes": [_class_row(found, row) for row in rows],
        "sentences": _sentences(record, found),
    }


def _class_row(found: External, row: Row) -> dict[str, Any]:
    one = found.classes[row["order"]]
    return {
        "name": one.name,
        "shares": [(percent(share), share) for share in (one.train, one.home, one.here)],
        "home": _number("recall", one.recall),
        "here": {
            "text": row["recall_text"],
            "interval": row["recall_interval"],
            "value": NONE if row["recall"] is None else row["recall"],
        },
    }


def _sentences(record: Record, found: External) -> list[str]:
    moved = percent(found.mix_distance, 0)
    sentences = [
        f"The class mix differs: {moved} of the images would need another class to have the mix of "
        f"the {found.home_part} part. Accuracy, precision and predictive values depend on the mix; "
        "recall and balanced accuracy do not."
        if found.mix_distance > FAR
        else f"The class mix is nearly that of the {found.home_part} part."
    ]
    mean = found.confidence
    sentences.append(
        f"Mean confidence is {percent(mean.here.value)} here and {percent(mean.home.value)} there "
        f"({percent(mean.expected)} there with images counted in the mix of here); the two "
        f"distributions differ by at most {percent(mean.distance)}."
    )
    absent = [one.name for one in found.classes if not one.here]
    if absent:
        sentences.append(
            f"No images of {listing(absent)} are here. Means over classes leave them out in both "
            "places; predicting one of them is a mistake like any other."
        )
    if found.flagged is not None:
        own = record.novelty.flagged if record.novelty is not None else None
        there = f" ({percent(own.value)} there)" if own is not None else ""
        sentences.append(
            f"{percent(found.flagged.value)} of the images{there} are flagged as unlike the "
            "training images. A higher share than there may mean other devices, other ways of "
            "taking images, or other patients."
        )
    for one in found.unknown:
        flags = "" if one.flagged is None else f"; {percent(one.flagged)} of them are flagged"
        sentences.append(
            f"{one.images} images of {one.name}, which the model does not know, are not scored. It "
            f"answers them with a mean confidence of {percent(one.confidence)}{flags}."
        )
    return sentences


def _number(key: str, found: Estimate) -> dict[str, Any]:
    return {
        "text": measure(key, found.value),
        "interval": interval(key, found),
        "value": -1 if found.value is None else found.value,
    }


def _gap(key: str, found: Estimate) -> dict[str, Any]:
    """A difference in points, or in its own unit if the metric is no share."""
    if found.value is None:
        return {"text": NONE, "interval": "", "value": NONE}
    show = signed if METRICS[key].rate else _plain_sign
    limits = [found.low, found.high]
    span = " to ".join(show(x) for x in limits if x is not None)
    return {"text": show(found.value), "interval": span, "value": found.value}


def _plain_sign(value: float) -> str:
    """A difference with its sign.

    >>> _plain_sign(-0.0123)
    '−0.012'
    """
    return f"{value:+.3f}".replace("-", "−")


def format_external(found: External, sets: SetScores | None) -> str:
    """What differs between the images of another place and the run's own, as plain text."""
    home = f"{found.run}, {found.home_part}"
    rows: list[Sequence[str] | None] = [
        ("", home, "interval", "here", "interval", "difference", "interval"),
        None,
    ]
    for key, one in found.metrics.items():
        numbers = (*one.home.cells(), *one.here.cells(), *one.difference.cells())
        rows.append((METRICS[key].title, *numbers))
    mean = found.confidence
    pairs = {"Mean confidence": (mean.home, mean.here)}
    if found.coverage is not None and sets is not None:
        title = f"Coverage of {100 * sets.requested:g} % sets, all images"
        pairs[title] = (found.coverage, sets.coverage)
    for title, both in pairs.items():
        rows.append((title, *both[0].cells(), *both[1].cells(), "", ""))
    lines = [f"Here and in {home} part, on the classes that both have", text_table(rows)]
    shares: list[Sequence[str] | None] = [("Class", "train", found.home_part, "here"), None]
    shares += [
        (one.name, *(f"{100 * share:.1f} %" for share in (one.train, one.home, one.here)))
        for one in found.classes
    ]
    apart = f"differs by {100 * found.mix_distance:.0f} % (0: the same, 100: no class in common)"
    lines += ["", f"Class mix: {apart}", text_table(shares)]
    lines.append(
        f"If {home} part had the class mix of here, its mean confidence would be "
        f"{mean.expected:.3f}."
    )
    if found.flagged is not None:
        lines.append(f"Unlike the training images: {found.flagged.text()}")
    for other in found.unknown:
        flags = ""
        if other.flagged is not None:
            flags = f", unlike the training images: {other.flagged:.3f}"
        lines.append(
            f"Not scored, unknown to the model: {other.name} ({other.images} images, mean "
            f"confidence {other.confidence:.3f}{flags})"
        )
    return "\n".join(lines)
