"""How images from another place (here) differ from a run's own (home), and what that changes."""

from collections.abc import Sequence

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import text_table
from lmd.evaluation.record import ClassShift, ConfidenceShift, MetricShift
from lmd.report.page import Report, Values
from lmd.report.text import number_form
from lmd.runs.record import Record
from lmd.scoring.estimates import Estimate, number_text
from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.proportions import Floats, interval, mix_weights
from lmd.scoring.scores import bootstrap, mean_estimate, metric_estimates, resampled_sums, too_small

FAR = 0.1  # a distance of class mixes that is worth a sentence
COMPARED = (
    "balanced_accuracy",
    "bacc_head",
    "bacc_medium",
    "bacc_tail",
    "accuracy",
    "macro_f1",
    "auc",
    "ece",
)


def class_shifts(home: Sample, here: Sample, record: Record) -> list[ClassShift]:
    """Return the share of each class in all places, and its recall in the run at home."""
    counts = np.array([record.data.counts["train"], home.support, here.support])
    shares = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).T.tolist()
    scores = record.per_class[record.part or "test"]
    return [
        ClassShift(name=name, train=a, home=b, here=c, recall=score.recall)
        for name, (a, b, c), score in zip(record.data.classes, shares, scores, strict=True)
    ]


def shared(home: Sample, here: Sample) -> tuple[Sample, Sample]:
    """Leave out images of classes that one place lacks; every class may be predicted."""
    both = (home.support > 0) & (here.support > 0)
    if not both.any():
        raise LmdError("the two places have no class in common: they cannot be compared")

    def within(sample: Sample) -> Sample:
        rows = both[sample.labels]
        tiers, groups = sample.tiers.tolist(), sample.groups_in(rows)
        return Sample(sample.labels[rows], sample.probabilities[rows], tiers, groups)

    return within(home), within(here)


def compare_metrics(home: Sample, here: Sample, *, resamples: int = 1000) -> dict[str, MetricShift]:
    """Compare metrics of both places, which should have the same classes (``shared``).

    The two places have different images, so that their resamples are independent. With small
    classes, or where the resamples have no width, the limits of the difference are combined from
    those of both places, if these have any. Metrics that cannot be computed in one of the places
    are left out.
    """
    shifts, both = {}, (home, here)
    draws = [bootstrap(s, COMPARED, resamples=resamples, seed=i) for i, s in enumerate(both)]
    values = [metric_estimates(s, COMPARED, resamples=resamples) for s in both]
    for key in COMPARED:
        a, b = (METRICS[key].value(sample) for sample in both)
        if np.isnan(a) or np.isnan(b):
            continue
        low, high = interval(draws[1][key] - draws[0][key], b - a)
        gap = Estimate(value=b - a, low=low, high=high)
        if low == high or any(too_small(sample, METRICS[key]) for sample in both):
            gap = independent_difference(values[1][key], values[0][key])
        shifts[key] = MetricShift(home=values[0][key], here=values[1][key], difference=gap)
    return shifts


def independent_difference(a: Estimate, b: Estimate) -> Estimate:
    """Return ``a - b`` of different images, with limits from theirs (MOVER; Zou and Donner 2008).

    >>> found = independent_difference(
    ...     Estimate(value=0.0, low=0.0, high=0.6), Estimate(value=1.0, low=0.5, high=1.0)
    ... )
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (-1.0, -1.0, -0.219)
    """
    assert a.value is not None
    assert b.value is not None
    value = a.value - b.value
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return Estimate(value=value)
    below = np.hypot(a.value - a.low, b.high - b.value)
    above = np.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value=value, low=float(value - below), high=float(value + above))


def confidence_shift(home: Sample, here: Sample) -> ConfidenceShift:
    """Compare the mean confidence; ``expected`` is at home with the class mix of here."""
    weights = mix_weights(home.labels, here.support / here.support.sum())
    means = []
    for sample in (home, here):
        sums, images = resampled_sums(sample, sample.confidence)
        means.append(mean_estimate(sample.confidence, sums.sum(axis=1), images.sum(axis=1)))
    return ConfidenceShift(
        home=means[0],
        here=means[1],
        expected=float(weights @ home.confidence),
        distance=ks_distance(home.confidence, here.confidence),
    )


def ks_distance(a: Floats, b: Floats) -> float:
    """Return the largest difference of the distribution functions of two samples."""
    places = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(x), places, side="right") / len(x) for x in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


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


def _comparisons(record: Record) -> list[tuple[str, Estimate, Estimate, Estimate | None, str]]:
    """Return title, home, here, difference and number form of what both places have."""
    shift = record.external
    assert shift is not None
    rows: list[tuple[str, Estimate, Estimate, Estimate | None, str]] = [
        (METRICS[key].title, metric.home, metric.here, metric.difference, number_form(key))
        for key, metric in shift.metrics.items()
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
        (row.name, *(number_text(share, ".1%") for share in (row.train, row.home, row.here)))
        for row in shift.classes
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
