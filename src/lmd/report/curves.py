"""Draw the reliability diagram, and the learning curves of each stage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lmd.report.svg import chart, element, line, mark, savable, shorten, text, upright, with_tip
from lmd.report.wording import percent
from lmd.runs.record import HistoryRow

if TYPE_CHECKING:
    from lmd.report.sections import Report


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


def reliability(name: str, bins: Sequence[Bin]) -> str:
    """Accuracy against confidence with 95 % intervals, above the share of images in each bin."""
    size, left, top, below = 280.0, 46.0, 10.0, 56.0
    total = max(sum(each.count for each in bins), 1)
    tallest = max([each.count for each in bins] + [1])
    base = top + size + below + 12

    def x(share: float) -> float:
        return left + size * share

    def y(share: float) -> float:
        return top + size * (1 - share)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            line(left, y(share), left + size, y(share), "grid"),
            line(x(share), top, x(share), top + size, "grid"),
            text(left - 7, y(share) + 4, f"{100 * share:.0f}", class_="tick end"),
            text(x(share), base + 15, f"{100 * share:.0f}", class_="tick"),
        ]
    parts.append(line(x(0), y(0), x(1), y(1), "reference"))
    for each in bins:
        height = below * each.count / tallest
        about = (
            f"confidence {percent(each.left, 0)} to {percent(each.right, 0)}: {each.count} images, "
            f"{percent(each.accuracy)} right at a mean confidence of {percent(each.confidence)}"
        )
        bar = element(
            "rect",
            x=x(each.left) + 1,
            y=base - height,
            width=x(each.right) - x(each.left) - 2,
            height=height,
            class_="fill quiet",
        )
        if each.count:
            at = x(each.confidence)
            bar += line(at, y(each.low), at, y(each.high), "whisker curve")
            bar += mark("circle", at, y(each.accuracy), "fill curve", 4.5)
            parts.append(with_tip(about, bar))
    parts.append(line(left, base, left + size, base, "axis"))
    parts.append(text(left + size / 2, base + 32, "confidence, %", class_="tick"))
    parts.append(text(0, 0, "accuracy, %", class_="tick", transform=upright(12, top + size / 2)))
    parts.append(text(0, 0, "images", class_="tick", transform=upright(12, base - below / 2)))
    gaps = sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / total
    title = "Reliability diagram"
    description = f"Mean gap between confidence and accuracy: {gaps:.3f}"
    return chart(name, title, description, (left + size + 14, base + 40), parts)


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


FIXED_COLUMNS = ("stage", "stage_name", "epoch", "lr", "seconds")
M_STEP = "m_loss"  # a stage with this number is expectation-maximisation, an iteration per epoch
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
class Stage:
    """The numbers of a stage: its epochs, and for each a row of what was measured."""

    name: str
    epochs: list[Any]
    rows: list[dict[str, float]]

    def has(self, key: str) -> bool:
        """Whether any epoch has a number."""
        return any(key in row for row in self.rows)


@dataclass(frozen=True)
class Group:
    """What one stage has alone, or all stages share: small charts, or numbers of a single epoch."""

    heading: str
    figures: list[tuple[str, Markup]] = field(default_factory=list)
    numbers: list[tuple[str, str]] = field(default_factory=list)


def curves_view(report: "Report") -> dict[str, Any]:
    """The learning curves of the run."""
    return {"groups": curve_groups(report.run.history)}


def curve_groups(history: Sequence[HistoryRow]) -> list[Group]:
    """Return every number of the history, drawn over the epochs of the stages that have it.

    One that only one of several stages has is drawn over the epochs of that stage, and written
    down if that is a single epoch.
    """
    stages = _stages(history)
    keys = list(dict.fromkeys(key for stage in stages for row in stage.rows for key in row))
    keys.sort(key=lambda key: key != "val_bacc")
    if len(stages) == 1:
        figures = [_figure(key, stages, _unit(stages[0])) for key in keys]
        return [Group("", figures)] if figures else []
    owners = {key: [stage for stage in stages if stage.has(key)] for key in keys}
    shared = [key for key in keys if key == "val_bacc" or len(owners[key]) > 1]
    groups = [Group("", [_figure(key, stages, "epoch") for key in shared])]
    for stage in stages:
        own = [key for key in keys if key not in shared and owners[key] == [stage]]
        if len(stage.rows) == 1:
            row = stage.rows[0]
            numbers = [(TITLES.get(key, key), f"{row[key]:.4g}") for key in own]
            groups.append(Group(stage.name, numbers=numbers))
            continue
        heading = stage.name + (", over its EM iterations" if stage.has(M_STEP) else "")
        groups.append(Group(heading, [_figure(key, [stage], _unit(stage)) for key in own]))
    return [group for group in groups if group.figures or group.numbers]


def _stages(history: Sequence[HistoryRow]) -> list[Stage]:
    def name(row: HistoryRow) -> str:
        return str(row.get("stage_name") or f"stage {row.get('stage')}")

    stages = []
    for title, group in groupby(history, key=name):
        rows = list(group)
        numbers = [
            {
                key: float(value)
                for key, value in row.items()
                if key not in FIXED_COLUMNS and isinstance(value, int | float)
            }
            for row in rows
        ]
        stages.append(Stage(title, [row.get("epoch") for row in rows], numbers))
    return stages


def _unit(stage: Stage) -> str:
    return "EM iteration" if stage.has(M_STEP) else "epoch"


def _figure(key: str, stages: Sequence[Stage], unit: str) -> tuple[str, Markup]:
    """Return the title of a number, and its drawing over the epochs of the stages.

    No line connects two stages, because their losses are different quantities.
    """
    width, height, left, right, top, bottom = 340.0, 204.0, 50.0, 12.0, 22.0, 38.0
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
        parts.append(line(left, y(tick), width - right, y(tick), "grid"))
        parts.append(text(left - 6, y(tick) + 4, f"{tick:.6g}", class_="tick end"))
    for epoch in sorted({1, epochs} if epochs < 5 else {1, epochs // 2, epochs}):
        parts.append(text(x(epoch), height - 21, str(epoch), class_="tick"))
    parts.append(text((left + width - right) / 2, height - 5, unit, class_="tick"))
    data, dots, first = [], [], 1
    for stage in stages:
        start = x(first if first == 1 else first - 0.5)
        room = x(first + len(stage.rows) - 0.5) - start
        if first > 1:
            parts.append(line(start, top - 14, start, height - bottom, "boundary"))
        name = shorten(stage.name, room - 10, 6)
        parts.append(text(start + 4, top - 6, name, class_="tick start"))
        measured = [
            (first + i, row[key]) if key in row else None for i, row in enumerate(stage.rows)
        ]
        for known, run in groupby(measured, key=bool):
            points = [point for point in run if point is not None]
            path = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in points)
            if known and len(points) > 1:
                parts.append(element("polyline", points=path, class_="curve"))
            for epoch, value in points:
                dot = mark("circle", x(epoch), y(value), "fill curve", 2.5)
                dots.append(with_tip(f"{unit} {epoch}: {value:.4g}", dot))
        data += [
            {"stage": stage.name, "epoch": epoch, key: row.get(key)}
            for epoch, row in zip(stage.epochs, stage.rows, strict=True)
        ]
        first += len(stage.rows)
    title = TITLES.get(key, key)
    about = f"from {values[0]:.4g} to {values[-1]:.4g} in {epochs} {unit}s"
    parts += dots if len(values) <= 40 else []
    drawing = chart(f"curve-{key}", title, about, (width, height), parts)
    return title, savable(key, drawing, data)
