"""Draw the reliability diagram, and the learning curves of each stage."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
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


def curve(
    name: str,
    title: str,
    values: Sequence[float | None],
    stages: Sequence[tuple[str, int]],
    unit: str = "epoch",
) -> str:
    """One quantity over epochs; ``stages`` are pairs of name and number of epochs."""
    width, height, left, right, top, bottom = 340.0, 204.0, 50.0, 12.0, 22.0, 38.0
    known = [value for value in values if value is not None]
    ticks = nice_ticks(min(known, default=0.0), max(known, default=1.0))
    low, high = ticks[0], ticks[-1]
    last = max(len(values), 2)

    def x(epoch: float) -> float:
        return left + (width - left - right) * (epoch - 1) / (last - 1)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - (value - low) / (high - low))

    parts = []
    for tick in ticks:
        parts.append(line(left, y(tick), width - right, y(tick), "grid"))
        parts.append(text(left - 6, y(tick) + 4, f"{tick:.6g}", class_="tick end"))
    for epoch in sorted(
        {1, len(values)} if len(values) < 5 else {1, len(values) // 2, len(values)}
    ):
        parts.append(text(x(epoch), height - 21, str(epoch), class_="tick"))
    parts.append(text((left + width - right) / 2, height - 5, unit, class_="tick"))
    parts += _stage_marks(stages, x, top, height - bottom)
    for run in _runs(values, stages):
        path = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in run)
        parts.append(element("polyline", points=path, class_="curve"))
    if len(known) <= 40:
        for epoch, value in enumerate(values, 1):
            if value is not None:
                dot = mark("circle", x(epoch), y(value), "fill curve", 2.5)
                parts.append(with_tip(f"{unit} {epoch}: {value:.4g}", dot))
    said = (
        f"from {known[0]:.4g} to {known[-1]:.4g} in {len(values)} {unit}s" if known else "no value"
    )
    return chart(name, title, said, (width, height), parts)


def nice_ticks(low: float, high: float) -> list[float]:
    """About three to six evenly spaced round numbers that enclose a range.

    >>> nice_ticks(0.13, 1.9)
    [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    span = (high - low) or abs(high) or 1.0
    rough = span / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, final = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(final, first + 1) + 1)]


def _stage_marks(
    stages: Sequence[tuple[str, int]], x: Callable[[float], float], top: float, bottom: float
) -> list[str]:
    parts, first = [], 1
    for i, (stage, epochs) in enumerate(stages):
        start = x(first if i == 0 else first - 0.5)
        room = x(first + epochs - 0.5) - start
        if i:
            parts.append(line(start, top - 14, start, bottom, "boundary"))
        parts.append(text(start + 4, top - 6, shorten(stage, room - 10, 6), class_="tick start"))
        first += epochs
    return parts


def _runs(
    values: Sequence[float | None], stages: Sequence[tuple[str, int]]
) -> list[list[tuple[int, float]]]:
    """Stretches without gaps, as pairs of epoch (from 1) and value.

    No line connects two stages, because their losses are different quantities.
    """
    firsts = {1 + sum(epochs for _, epochs in stages[:i]) for i in range(len(stages))}
    runs: list[list[tuple[int, float]]] = [[]]
    for epoch, value in enumerate(values, 1):
        if value is None or epoch in firsts:
            runs.append([])
        if value is not None:
            runs[-1].append((epoch, value))
    return [run for run in runs if len(run) > 1]


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
Rows = Sequence[HistoryRow]
Stages = Sequence[tuple[str, Rows]]
Figures = list[tuple[str, Markup]]


@dataclass(frozen=True)
class Group:
    """What one stage has alone, or all stages share: small charts, or numbers of a single epoch."""

    heading: str
    figures: Figures = field(default_factory=list)
    numbers: list[tuple[str, str]] = field(default_factory=list)


def curves_view(report: "Report") -> dict[str, Any]:
    """The learning curves of the run."""
    return {"groups": curve_groups(report.run.history)}


def curve_groups(history: Rows) -> list[Group]:
    """Every number of the history, drawn over the epochs of the stages that have it.

    One that only one of several stages has is drawn over the epochs of that stage, and written
    down if that is a single epoch.
    """
    stages = [(name, list(rows)) for name, rows in groupby(history, key=_stage)]
    keys = dict.fromkeys(("val_bacc", *(key for row in history for key in row)))
    known = [key for key in keys if key not in FIXED_COLUMNS and _has(history, key)]
    shared = [key for key in known if key == "val_bacc" or _owners(stages, key) > 1]
    numbers = count()
    if len(stages) < 2:
        unit = "EM iteration" if _has(history, M_STEP) else "epoch"
        figures = [_figure(next(numbers), key, stages, unit) for key in known]
        return [Group("", figures)] if figures else []
    groups = [Group("", [_figure(next(numbers), key, stages, "epoch") for key in shared])]
    for name, rows in stages:
        own = [key for key in known if key not in shared and _has(rows, key)]
        if len(rows) == 1:
            values = [(TITLES.get(key, key), f"{_number(rows[0], key):.4g}") for key in own]
            groups.append(Group(name, numbers=values))
            continue
        em = _has(rows, M_STEP)
        unit = "EM iteration" if em else "epoch"
        figures = [_figure(next(numbers), key, [(name, rows)], unit) for key in own]
        groups.append(Group(f"{name}, over its EM iterations" if em else name, figures))
    return [group for group in groups if group.figures or group.numbers]


def _figure(number: int, key: str, stages: Stages, unit: str) -> tuple[str, Markup]:
    title = TITLES.get(key, key)
    rows = [row for _, each in stages for row in each]
    values = [_number(row, key) for row in rows]
    lengths = [(name, len(each)) for name, each in stages]
    drawing = curve(f"curve-{number}", title, values, lengths, unit)
    data = [
        {"stage": _stage(row), "epoch": row.get("epoch"), key: value}
        for row, value in zip(rows, values, strict=True)
    ]
    return title, savable(key, drawing, data)


def _owners(stages: Stages, key: str) -> int:
    return sum(_has(rows, key) for _, rows in stages)


def _has(rows: Rows, key: str) -> bool:
    return any(_number(row, key) is not None for row in rows)


def _number(row: HistoryRow, key: str) -> float | None:
    found = row.get(key)
    return float(found) if isinstance(found, int | float) else None


def _stage(row: HistoryRow) -> str:
    return str(row.get("stage_name") or f"stage {row.get('stage')}")
