"""Draw the reliability diagram, and the learning curves of each stage."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup

from lmd.report import charts as svg
from lmd.report.page import Report, Values
from lmd.report.text import fitted_on, percent
from lmd.runs.record import HistoryRow
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import ECE_BINS, METRICS, Sample
from lmd.scoring.proportions import effective, wilson, without_temperature

M_STEP = "m_loss"  # a stage with this number is expectation-maximisation, an iteration per epoch
FIXED_COLUMNS = ("stage", "stage_name", "epoch", "lr", "seconds")
TITLES = {
    "val_bacc": "Validation balanced accuracy",
    "loss": "Loss",
    "psi": "Psi: distance to the own class",
    "phi": "Phi: distance to the other classes",
    M_STEP: "Loss of the M step",
    "m_grad_norm": "Gradient where the M step ended",
    "m_evaluations": "Evaluations in the M step",
    "shrinkage": "Shrinkage of the covariances",
    "weight_penalty": "Penalty on the classifier's weights",
}


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram: ``count`` images with a confidence in ``(left, right]``."""

    left: float
    right: float
    count: int
    confidence: float
    accuracy: float
    low: float
    high: float


def calibration_view(report: Report) -> Values | None:
    """Show the reliability diagram, with the temperature and without it."""
    sample, record = report.sample, report.record
    if sample is None:
        return None
    bins = reliability_bins(sample)
    before, temperature = None, record.model.temperature
    # A mean over mirror images has no logits that could be multiplied by it.
    if temperature != 1 and record.tta is None:
        plain = without_temperature(sample.probabilities, temperature)
        without = Sample(sample.labels, plain, groups=sample.groups)
        before = reliability("reliability-before", reliability_bins(without))
    gaps = sum(row.count * (row.confidence - row.accuracy) for row in bins)
    return {
        "figure": reliability("reliability", bins),
        "before": before,
        "error": report.metrics.get("ece") or Estimate(value=METRICS["ece"].value(sample)),
        "bins": len(bins),
        "gap": gaps / sum(row.count for row in bins),
        "errors": record.calibration.get(record.part) if record.part else None,
        "fitted_on": fitted_on(record),
    }


def reliability_bins(sample: Sample) -> list[Bin]:
    """Return the bins of the expected calibration error, each with its accuracy.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", equations 2 and 3. Images of one
    patient or lesion count as in the intervals of recall.
    """
    result = []
    for i in range(ECE_BINS):
        inside = sample.bins == i
        count, hits = int(inside.sum()), int(sample.right[inside].sum())
        low, high = wilson(*effective(sample.right[inside], sample.groups_in(inside)))
        mean = float(sample.confidence[inside].mean()) if count else (i + 0.5) / ECE_BINS
        share = hits / count if count else 0.0
        result.append(Bin(i / ECE_BINS, (i + 1) / ECE_BINS, count, mean, share, low, high))
    return result


def reliability(name: str, bins: Sequence[Bin]) -> Markup:
    """Draw accuracy against confidence with 95 % intervals, above the images in each bin."""
    size, left, top, below = 280.0, 46.0, 10.0, 56.0
    total = max(sum(row.count for row in bins), 1)
    tallest = max([row.count for row in bins] + [1])
    base = top + size + below + 12

    def x(share: float) -> float:
        return left + size * share

    def y(share: float) -> float:
        return top + size * (1 - share)

    parts = []
    for share in svg.SHARES:
        parts += [
            svg.line(left, y(share), left + size, y(share), "grid"),
            svg.line(x(share), top, x(share), top + size, "grid"),
            svg.text(left - 7, y(share) + 4, f"{100 * share:.0f}", class_="tick end"),
            svg.text(x(share), base + 15, f"{100 * share:.0f}", class_="tick"),
        ]
    parts.append(svg.line(x(0), y(0), x(1), y(1), "reference"))
    for row in (row for row in bins if row.count):
        height = below * row.count / tallest
        about = (
            f"confidence {percent(row.left, 0)} to {percent(row.right, 0)}: {row.count} images, "
            f"{percent(row.accuracy)} right at a mean confidence of {percent(row.confidence)}"
        )
        at, start, width = x(row.confidence), x(row.left) + 1, x(row.right) - x(row.left) - 2
        box = {"x": start, "y": base - height, "width": width, "height": height}
        bar = svg.element("rect", "", **box, class_="fill quiet")
        bar += svg.line(at, y(row.low), at, y(row.high), "whisker curve")
        bar += svg.mark("circle", at, y(row.accuracy), "fill curve", 4.5)
        parts.append(svg.with_tip(about, bar))
    parts.append(svg.line(left, base, left + size, base, "axis"))
    parts.append(svg.text(left + size / 2, base + 32, "confidence, %", class_="tick"))
    parts.append(svg.upward_text(12, top + size / 2, "accuracy, %", class_="tick"))
    parts.append(svg.upward_text(12, base - below / 2, "images", class_="tick"))
    gaps = sum(row.count * abs(row.accuracy - row.confidence) for row in bins) / total
    title, px = "Reliability diagram", (left + size + 14, base + 40)
    description = f"Mean gap between confidence and accuracy: {gaps:.3f}"
    drawing = svg.chart(name, title, description, px, parts)
    return svg.savable(name, drawing, [asdict(row) for row in bins])


def nice_ticks(low: float, high: float) -> list[float]:
    """Return about three to six evenly spaced round numbers that enclose a range.

    >>> nice_ticks(0.13, 1.9)
    [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    span = (high - low) or abs(high) or 1.0
    rough = span / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, final = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(final, first + 1) + 1)]


class Stage(NamedTuple):
    """The numbers of a stage: its epochs, and for each a row of what was measured."""

    name: str
    epochs: list[Any]
    rows: list[dict[str, float]]
    keys: list[str]


class Group(NamedTuple):
    """What one stage has alone, or all stages share: small charts, or numbers of a single epoch."""

    heading: str
    figures: list[tuple[str, Markup]]
    numbers: list[tuple[str, str]]


def curves_view(report: Report) -> Values:
    """Show the learning curves of the run."""
    return {"groups": curve_groups(report.history)}


def curve_groups(history: Sequence[HistoryRow]) -> list[Group]:
    """Return every number of the history, drawn over the epochs of the stages that have it.

    One that only one of several stages has is drawn over the epochs of that stage, and written
    down if that is a single epoch.
    """
    stages = _stages(history)
    uses = Counter(key for stage in stages for key in stage.keys)
    keys = sorted(uses, key=lambda key: key != "val_bacc")
    shared = [key for key in keys if key == "val_bacc" or uses[key] > 1 or len(stages) == 1]
    groups = [Group("", [_figure(key, stages) for key in shared], [])]
    for stage in stages:
        alone = [key for key in keys if key in stage.keys and key not in shared]
        if len(stage.rows) == 1:
            numbers = [(TITLES.get(key, key), f"{stage.rows[0][key]:.4g}") for key in alone]
            groups.append(Group(stage.name, [], numbers))
        else:
            heading = stage.name + (", over its EM iterations" if M_STEP in stage.keys else "")
            groups.append(Group(heading, [_figure(key, [stage]) for key in alone], []))
    return [group for group in groups if group.figures or group.numbers]


def _stages(history: Sequence[HistoryRow]) -> list[Stage]:
    stages = []
    for name, group in groupby(
        history, key=lambda row: str(row.get("stage_name") or f"stage {row.get('stage')}")
    ):
        rows = list(group)
        numbers = [
            {
                key: float(value)
                for key, value in row.items()
                if key not in FIXED_COLUMNS and isinstance(value, int | float)
            }
            for row in rows
        ]
        keys = list(dict.fromkeys(key for row in numbers for key in row))
        stages.append(Stage(name, [row.get("epoch") for row in rows], numbers, keys))
    return stages


def _figure(key: str, stages: Sequence[Stage]) -> tuple[str, Markup]:
    """Return the title of a number, and its drawing over the epochs of the stages.

    No line connects two stages, because their losses are different quantities.
    """
    width, height, left, right, top, bottom = 340.0, 204.0, 50.0, 12.0, 22.0, 38.0
    unit = "EM iteration" if len(stages) == 1 and M_STEP in stages[0].keys else "epoch"
    values = [row[key] for stage in stages for row in stage.rows if key in row]
    epochs = sum(len(stage.rows) for stage in stages)
    ticks = nice_ticks(min(values), max(values))

    def x(epoch: float) -> float:
        return left + (width - left - right) * (epoch - 1) / (max(epochs, 2) - 1)

    def y(value: float) -> float:
        share = (value - ticks[0]) / (ticks[-1] - ticks[0])
        return top + (height - top - bottom) * (1 - share)

    parts = []
    for tick in ticks:
        parts.append(svg.line(left, y(tick), width - right, y(tick), "grid"))
        parts.append(svg.text(left - 6, y(tick) + 4, f"{tick:.6g}", class_="tick end"))
    for epoch in sorted({1, epochs} if epochs < 5 else {1, epochs // 2, epochs}):
        parts.append(svg.text(x(epoch), height - 21, str(epoch), class_="tick"))
    parts.append(svg.text((left + width - right) / 2, height - 5, unit, class_="tick"))
    data, dots, first = [], [], 1
    for stage in stages:
        start = x(first if first == 1 else first - 0.5)
        room = x(first + len(stage.rows) - 0.5) - start
        if first > 1:
            parts.append(svg.line(start, top - 14, start, height - bottom, "boundary"))
        name = svg.shorten(stage.name, room - 10, 6)
        parts.append(svg.text(start + 4, top - 6, name, class_="tick start"))
        for measured, rows in groupby(enumerate(stage.rows, first), key=lambda row: key in row[1]):
            points = [(epoch, row[key]) for epoch, row in rows if measured]
            path = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in points)
            if len(points) > 1:
                parts.append(svg.element("polyline", points=path, class_="curve"))
            for epoch, value in points:
                dot = svg.mark("circle", x(epoch), y(value), "fill curve", 2.5)
                dots.append(svg.with_tip(f"{unit} {epoch}: {value:.4g}", dot))
        data += [
            {"stage": stage.name, "epoch": epoch, key: row.get(key)}
            for epoch, row in zip(stage.epochs, stage.rows, strict=True)
        ]
        first += len(stage.rows)
    title = TITLES.get(key, key)
    about = f"from {values[0]:.4g} to {values[-1]:.4g} in {epochs} {unit}s"
    parts += dots if len(values) <= 40 else []
    drawing = svg.chart(f"curve-{key}", title, about, (width, height), parts)
    return title, svg.savable(key, drawing, data)
