"""Draw the figures of the report: dots, bars, recall against class size, the confusion matrix."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lmd.report.svg import (
    chart,
    element,
    legend_mark,
    line,
    mark,
    savable,
    shorten,
    text,
    upright,
    with_tip,
)
from lmd.report.wording import percent, thousands
from lmd.scoring.estimates import Estimate

SHAPES = {"head": "circle", "medium": "square", "tail": "diamond"}
RUN_SHAPES = ("circle", "diamond", "square", "triangle")
MOST_RUNS = 8  # side by side; each has a tone of its own
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
PHONE = 342.0  # px that a drawing has at least; labels are cut to fit
EDGE = 1.5  # per cent of the width on both sides, for the marks of 0 and 1


@dataclass(frozen=True)
class Point:
    """A value with its interval; ``tone`` is a colour class, ``tip`` the tooltip."""

    estimate: Estimate
    tone: str
    shape: str
    tip: str

    @classmethod
    def make(
        cls, name: str, estimate: Estimate, tone: str, shape: str = "", images: int | None = None
    ) -> "Point":
        """Return a point whose tooltip has the name, the value, its interval and the images."""
        tip = f"{name}: {estimate.value_text('.1%')}"
        if estimate.low is not None and estimate.high is not None:
            low, high = percent(estimate.low), percent(estimate.high)
            tip += f" (95 % interval {low} to {high})"
        if images is not None:
            tip += f", {images} images"
        return cls(estimate, tone, shape or SHAPES.get(tone, "circle"), tip)


@dataclass(frozen=True)
class DotRow:
    """One row of a dot-and-whisker chart: its label, the numbers beside it, and its points."""

    label: str
    note: str
    points: Sequence[Point]


def dots_figure(
    name: str,
    title: str,
    rows: Sequence[DotRow],
    data: Sequence[Mapping[str, Any]],
    reference: float | None = None,
) -> Markup:
    """Return ``dots`` with their ``data``."""
    drawing = dots(name.replace(" ", "-"), f"{title} with 95 % intervals", rows, reference)
    return savable(name, drawing, data)


def dots(name: str, title: str, rows: Sequence[DotRow], reference: float | None = None) -> str:
    """Draw shares from 0 to 1 as dots with whiskers; ``reference`` is a dashed vertical line."""
    top, head = 6.0, 21.0
    heights = [head + 8 + 13 * max(len(row.points), 1) for row in rows]
    bottom = top + sum(heights)
    parts = []
    for share in SHARES:
        x = _across(share)
        parts.append(line(x, top, x, bottom, "grid"))
        sign = " %" if share == 1 else ""
        parts.append(_tick(share, bottom + 15, f"{100 * share:.0f}{sign}"))
    if reference is not None:
        x = _across(reference)
        parts.append(line(x, top, x, bottom, "reference"))
    y = top
    for row, height in zip(rows, heights, strict=True):
        parts.append(_heading(row.label, row.note, y + 15))
        parts += [_point(point, y + head + 8 + 13 * i) for i, point in enumerate(row.points)]
        y += height
    values = [", ".join(point.estimate.value_text(".1%") for point in row.points) for row in rows]
    about = "; ".join(f"{row.label}: {text}" for row, text in zip(rows, values, strict=True))
    return chart(name, title, about, (None, bottom + 22), parts)


def count_bars(name: str, rows: Sequence[tuple[str, str, Sequence[int | None]]]) -> str:
    """Draw the training images of each class as a bar on a logarithmic scale.

    A row has the name of the class, its tier, and its images for training, validation and test.
    """
    top, step = 8.0, 40.0
    bottom = top + step * len(rows)
    powers = math.ceil(math.log10(max([counts[0] or 0 for _, _, counts in rows] + [10])))
    parts = []
    for power in range(powers + 1):
        x = _across(power / powers)
        parts.append(line(x, top, x, bottom, "grid"))
        parts.append(_tick(power / powers, bottom + 15, thousands(10**power)))
    for i, (label, tier, counts) in enumerate(rows):
        y, train = top + step * i, counts[0] or 0
        numbers = [thousands(count) for count in (train, *counts[1:])]
        length = max(math.log10(max(train, 1)) / powers, 0.005) if train else 0.0
        bar = element(
            "rect",
            x=_across(0),
            y=y + 21,
            width=f"{(100 - 2 * EDGE) * length:.2f}%",
            height=15.0,
            rx=2,
            class_=f"fill {tier}",
        )
        parts_of_data = ("training", "validation", "test")
        listed = ", ".join(f"{n} {part}" for n, part in zip(numbers, parts_of_data, strict=True))
        heading = _heading(label, " / ".join(numbers), y + 15)
        parts.append(with_tip(f"{label} ({tier}): {listed}", bar, heading))
    title = "Images of each class, logarithmic scale"
    about = "; ".join(f"{label}: {counts[0] or 0} for training" for label, _, counts in rows)
    return chart(name, title, about, (None, bottom + 22), parts)


def against_counts(name: str, points: Sequence[tuple[int, Point]]) -> str:
    """Draw marks with whiskers at (training images, share), the images on a logarithmic scale."""
    top, height, left = 24.0, 260.0, 9.0
    base = top + height
    counts = [count for count, _ in points]
    low, high = math.log10(min(counts)), math.log10(max(counts))
    span = (high - low) or 1.0
    low, span = low - 0.06 * span, 1.12 * span

    def across(count: float) -> str:
        return f"{left + (100 - EDGE - left) * (math.log10(count) - low) / span:.2f}%"

    def up(share: float) -> float:
        return base - height * min(max(share, 0.0), 1.0)

    ends = f"{left}%", f"{100 - EDGE}%"
    parts = [text(0, 11, "recall, %", class_="tick start")]
    for share in SHARES:
        parts.append(line(ends[0], up(share), ends[1], up(share), "grid"))
        parts.append(text(f"{left - 1.5}%", up(share) + 4, f"{100 * share:.0f}", class_="tick end"))
    for count in _count_ticks(low, span) or sorted({min(counts), max(counts)}):
        parts.append(line(across(count), base, across(count), base + 4, "axis"))
        parts.append(text(across(count), base + 17, thousands(count), class_="tick"))
    parts.append(line(ends[0], base, ends[1], base, "axis"))
    for count, point in points:
        x, estimate = across(count), point.estimate
        assert estimate.value is not None
        drawn = mark(point.shape, x, up(estimate.value), f"fill {point.tone}")
        if estimate.low is not None and estimate.high is not None:
            whisker = line(x, up(estimate.low), x, up(estimate.high), f"whisker {point.tone}")
            drawn = whisker + drawn
        parts.append(with_tip(f"{point.tip}, {thousands(count)} for training", drawn))
    parts.append(text("50%", base + 35, "training images of the class", class_="tick"))
    title = "Recall of each class against its training images"
    about = "; ".join(
        f"{thousands(count)} training images: {point.estimate.value_text('.1%')}"
        for count, point in points
    )
    return chart(name, title, about, (None, base + 42), parts)


def confusion(name: str, labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Draw a heat map: rows are true classes, shades are shares of the row, numbers are counts."""
    size, left = len(labels), 130.0
    cell = min(max(620 / size, 26.0), 52.0)
    top = min(7.1 * max(map(len, labels)), 140.0) + 30
    parts = [
        text(left + cell * size / 2, 12, "predicted class", class_="tick"),
        text(0, top - 8, "true class", class_="tick start"),
    ]
    for i, label in enumerate(labels):
        y, x = top + cell * i, left + cell * i
        short = text(left - 8, y + cell / 2 + 4, shorten(label, left - 12), class_="end")
        turned = text(0, 0, shorten(label, 132), transform=upright(x + cell / 2 + 4, top - 7))
        parts += [with_tip(label, short), with_tip(label, turned)]
        total = sum(matrix[i])
        for j, count in enumerate(matrix[i]):
            share = count / total if total else 0.0
            shown = percent(share if total else None)
            tip = f"true {label}, predicted {labels[j]}: {count} of {total} ({shown})"
            parts.append(with_tip(tip, _cell(left + cell * j, y, cell, count, share, i == j)))
    right = sum(matrix[i][i] for i in range(size))
    about = f"{right} of {sum(map(sum, matrix))} images are on the diagonal (right)."
    size_px = (left + cell * size + 4, top + cell * size + 4)
    return chart(name, "Confusion matrix", about, size_px, parts)


def tier_legend(tiers: Sequence[str]) -> list[tuple[str, Markup]]:
    """Return the mark of each tier."""
    return [(tier, legend_mark(SHAPES[tier], tier)) for tier in tiers]


def _across(share: float) -> str:
    """Return the horizontal place of a share, in per cent of the width."""
    return f"{EDGE + (100 - 2 * EDGE) * min(max(share, 0.0), 1.0):.2f}%"


def _tick(share: float, y: float, content: str) -> str:
    anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
    return text(_across(share), y, content, class_="tick", style=f"text-anchor: {anchor}")


def _heading(label: str, note: str, y: float) -> str:
    """Return a label at the left and a note at the right, above a bar or a point."""
    short = text(0, y, shorten(label, PHONE - 7 * len(note) - 16))
    return with_tip(label, short) + text("100%", y, note, class_="number end")


def _point(point: Point, y: float) -> str:
    estimate, whisker = point.estimate, f"whisker {point.tone}"
    if estimate.value is None:
        return with_tip(point.tip, text(_across(0), y + 4, "no image", class_="absent"))
    drawn = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = _across(estimate.low), _across(estimate.high)
        drawn += line(low, y, high, y, whisker)
        drawn += "".join(line(x, y - 3.5, x, y + 3.5, whisker) for x in (low, high))
    return with_tip(
        point.tip, drawn, mark(point.shape, _across(estimate.value), y, f"fill {point.tone}")
    )


def _count_ticks(low: float, span: float) -> list[int]:
    """Return round numbers on a logarithmic axis; none if fewer than two lie on it."""
    powers = range(max(math.floor(low), 0), math.ceil(low + span) + 1)
    factors = (1, 2, 5) if span < 2.5 else (1,)
    ticks = [factor * 10**power for power in powers for factor in factors]
    ticks = [count for count in ticks if low <= math.log10(count) <= low + span]
    return ticks if len(ticks) > 1 else []


def _cell(x: float, y: float, size: float, count: int, share: float, right: bool) -> str:
    def square(**style: object) -> str:
        side = size - 1
        return element("rect", "", x=x + 0.5, y=y + 0.5, width=side, height=side, rx=2, **style)

    drawn = square(class_="cell")
    if not count:
        return drawn
    tone = "heat right" if right else "heat wrong"
    drawn += square(class_=tone, fill_opacity=0.08 + 0.92 * share)
    ink = "strong" if share > 0.75 else "plain"
    middle = x + size / 2
    number = "count" if size >= 32 and count < 10_000 else "count small"
    if size < 42:
        return drawn + text(middle, y + size / 2 + 4, str(count), class_=f"{number} {ink}")
    drawn += text(middle, y + size / 2, str(count), class_=f"{number} {ink}")
    return drawn + text(middle, y + size / 2 + 14, percent(share, 0), class_=f"count small {ink}")
