"""What differs between the images of another place and a run's own, in the report and as text."""

from collections.abc import Sequence

from lmd.base.text import text_table
from lmd.report.page import Report, Values
from lmd.runs.record import Record
from lmd.scoring.estimates import Estimate, number_text
from lmd.scoring.metrics import METRICS, number_form

FAR = 0.1  # a distance of class mixes that is worth a sentence
# What is compared, home, here, the difference if there is one, and the form of the numbers.
Comparison = tuple[str, Estimate, Estimate, Estimate | None, str]


def external_view(report: Report) -> Values | None:
    """Both places side by side: metrics, class mix and recall."""
    shift = report.record.external
    if shift is None:
        return None
    return {
        "shift": shift,
        "far": shift.mix_distance > FAR,
        "rows": _comparisons(report.record),
        "classes": [(shift.classes[row.index], row) for row in report.classes],
    }


def _comparisons(record: Record) -> list[Comparison]:
    """Return what both places have: metrics, confidence, coverage and flagged images."""
    shift = record.external
    assert shift is not None
    rows: list[Comparison] = [
        (METRICS[key].title, one.home, one.here, one.difference, number_form(key))
        for key, one in shift.metrics.items()
    ]
    rows.append(("Mean confidence", shift.confidence.home, shift.confidence.here, None, ".1%"))
    if shift.coverage is not None and record.sets is not None:
        title = f"Coverage of {100 * record.sets.requested:g} % sets, all images"
        rows.append((title, shift.coverage, record.sets.coverage, None, ".1%"))
    if shift.flagged is not None and record.novelty is not None and record.novelty.flagged:
        title = "Unlike the training images, all images"
        rows.append((title, record.novelty.flagged, shift.flagged, None, ".1%"))
    return rows


def format_external(record: Record) -> str:
    """Return what differs between both places as plain text."""
    shift = record.external
    assert shift is not None
    home = f"{shift.run}, {shift.home_part}"
    rows: list[Sequence[str] | None] = [
        ("", home, "interval", "here", "interval", "difference", "interval"),
        None,
    ]
    for title, there, here, difference, _ in _comparisons(record):
        gap = ("", "") if difference is None else difference.cells()
        rows.append((title, *there.cells(), *here.cells(), *gap))
    shares: list[Sequence[str] | None] = [("Class", "train", shift.home_part, "here"), None]
    shares += [
        (one.name, *(number_text(share, ".1%") for share in (one.train, one.home, one.here)))
        for one in shift.classes
    ]
    lines = [
        f"Here and in {home} part, on the classes that both have",
        text_table(rows),
        "",
        f"Class mix: differs by {100 * shift.mix_distance:.0f} % (0: the same, 100: no class in "
        "common)",
        text_table(shares),
        f"If {home} part had the class mix of here, its mean confidence would be "
        f"{shift.confidence.expected:.3f}.",
    ]
    for other in shift.unknown:
        flags = ""
        if other.flagged is not None:
            flags = f", unlike the training images: {other.flagged:.3f}"
        lines.append(
            f"Not scored, unknown to the model: {other.name} ({other.images} images, mean "
            f"confidence {other.confidence:.3f}{flags})"
        )
    return "\n".join(lines)
