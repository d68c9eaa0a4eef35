"""Draw dots, bars, the confusion matrix and recall against class size as SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmd.report.svg import chart, element, line, mark, shorten, text, tip, upright
from lmd.report.words import percent, thousands

Row = Mapping[str, Any]
NARROW = 500
LABEL = 262.0  # px for class names beside the marks
SHAPES = {"head": "circle", "medium": "square", "tail": "diamond"}
RUN_SHAPES = ("circle", "diamond", "square", "triangle")
MOST_RUNS = 8  # side by side; each has a tone of its own


@dataclass(frozen=True)
class Point:
    """A value with its interval; ``tone`` is a colour class, ``tip`` the tooltip."""

    value: float | None
    low: float | None
    high: float | None
    tone: str
    shape: str
    tip: str


@dataclass(frozen=True)
class DotRow:
    """One row of a dot-and-whisker chart: its label, the numbers beside it, and its points."""

    label: str
    notes: Sequence[str]
    points: Sequence[Point]


def count_bars(name: str, rows: Sequence[Row], width: float) -> str:
    """Training images of each class as bars on a logarithmic scale, with the counts of all parts.

    A row has ``name``, ``tier`` and the counts ``train``, ``validation`` and ``test``, or ``None``.
    """
    narrow = width < NARROW
    left, right, step = (2.0, 8.0, 40.0) if narrow else (LABEL, 236.0, 26.0)
    top = 8.0 if narrow else 26.0
    powers = math.ceil(math.log10(max([row["train"] or 0 for row in rows] + [10])))
    bottom = top + step * len(rows)

    def x(count: float) -> float:
        return left + (width - left - right) * math.log10(max(count, 1)) / powers

    parts = []
    for power in range(powers + 1):
        at = x(10**power)
        anchor = ("start" if power == 0 else "end" if power == powers else "middle") * narrow
        parts.append(line(at, top, at, bottom, "grid"))
        parts.append(
            text(at, bottom + 15, thousands(10**power), class_="tick", text_anchor=anchor or None)
        )
    columns = {"training": width - 150, "validation": width - 70, "test": width - 2}
    if not narrow:
        parts += [text(at, 14, word, class_="tick end") for word, at in columns.items()]
    for i, row in enumerate(rows):
        y, label, train, tier = top + step * i, row["name"], row["train"] or 0, row["tier"]
        numbers = [thousands(n) for n in (train, row["validation"], row["test"])]
        drawn = max(x(train) - left, 3.0) if train else 0.0
        listed = ", ".join(f"{n} {part}" for n, part in zip(numbers, columns, strict=True))
        bar_y = y + 21 if narrow else y + 5
        bar = element(
            "rect", x=left, y=bar_y, width=drawn, height=15.0, rx=2, class_=f"fill {tier}"
        )
        if narrow:
            note = " / ".join(numbers)
            bar += text(left, y + 15, shorten(label, width - 7 * len(note) - 16))
            bar += text(width - 2, y + 15, note, class_="number end")
        else:
            bar += text(left - 10, y + 17, shorten(label, left - 14), class_="end")
            for at, value in zip(columns.values(), numbers, strict=True):
                bar += text(at, y + 17, value, class_="number end")
        parts.append(element("g", tip(f"{label} ({tier}): {listed}") + bar))
    title = "Images of each class, logarithmic scale"
    description = "; ".join(f"{row['name']}: {row['train'] or 0} for training" for row in rows)
    return chart(name, title, description, (width, bottom + 22), parts)


def dots(
    name: str, title: str, rows: Sequence[DotRow], width: float, reference: float | None = None
) -> str:
    """Shares between 0 and 1 as dots with whiskers; ``reference`` is a dashed vertical line."""
    narrow = width < NARROW
    left, right = (8.0, 12.0) if narrow else (LABEL, 236.0)
    head, top = (20.0 if narrow else 6.0), 6.0
    heights = [head + 8 + 13 * max(len(row.points), 1) for row in rows]
    bottom = top + sum(heights)

    def x(share: float) -> float:
        return left + (width - left - right) * min(max(share, 0.0), 1.0)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(x(share), top, x(share), bottom, "grid"))
        words = f"{100 * share:.0f}" + (" %" if share == 1 and not narrow else "")
        parts.append(text(x(share), bottom + 15, words, class_="tick"))
    if reference is not None:
        parts.append(line(x(reference), top, x(reference), bottom, "reference"))
    y = top
    for row, height in zip(rows, heights, strict=True):
        middle = y + head / 2 + 4 + 6.5 * len(row.points) + 1
        if narrow:
            note = " · ".join(row.notes)
            parts.append(text(0, y + 15, shorten(row.label, width - 7 * len(note) - 16)))
            parts.append(text(width, y + 15, note, class_="number end"))
        else:
            parts.append(
                text(left - 12, middle + 4, shorten(row.label, left - 16), class_="end label")
            )
            for column, note in enumerate(reversed(row.notes)):
                at = width - 2 - 110 * column
                parts.append(text(at, middle + 4, note, class_="number end"))
        for i, point in enumerate(row.points):
            parts.append(_point(point, x, y + head + 8 + narrow + 13 * i))
        y += height
    said = [f"{row.label}: {', '.join(percent(p.value) for p in row.points)}" for row in rows]
    return chart(name, title, "; ".join(said), (width, bottom + 22), parts)


def confusion(
    name: str, labels: Sequence[str], matrix: Sequence[Sequence[int]], width: float
) -> str:
    """A heat map: rows are true classes, shades are shares of the row, numbers are counts."""
    size = len(labels)
    left = 104.0 if width < NARROW else 200.0
    cell = min(max((width - left - 4) / size, 24.0), 56.0)
    longest = max(len(label) for label in labels)
    top = min(longest * 7.1, 140.0) + 30
    parts = [
        text(left + cell * size / 2, 12, "predicted class", class_="tick"),
        text(0, top - 8, "true class", class_="tick start"),
    ]
    for i, label in enumerate(labels):
        y, x = top + cell * i, left + cell * i
        short = text(left - 8, y + cell / 2 + 4, shorten(label, left - 20), class_="end")
        parts.append(element("g", tip(label) + short))
        turned = text(0, 0, shorten(label, 132), transform=upright(x + cell / 2 + 4, top - 7))
        parts.append(element("g", tip(label) + turned))
        total = sum(matrix[i])
        for j, count in enumerate(matrix[i]):
            share = count / total if total else None
            tooltip = f"true {label}, predicted {labels[j]}: {count} of {total} ({percent(share)})"
            square = _cell((left + cell * j, y), cell, count, share or 0.0, i == j)
            parts.append(element("g", tip(tooltip) + square))
    right = sum(matrix[i][i] for i in range(size))
    description = f"{right} of {sum(map(sum, matrix))} images are on the diagonal (right)."
    size_px = (left + cell * size + 4, top + cell * size + 4)
    return chart(name, "Confusion matrix", description, size_px, parts)


def _point(point: Point, x: Callable[[float], float], y: float) -> str:
    if point.value is None:
        return element("g", tip(point.tip) + text(x(0) + 6, y + 4, "no image", class_="absent"))
    drawn = ""
    if point.low is not None and point.high is not None:
        ends = (x(point.low), x(point.high))
        drawn += line(ends[0], y, ends[1], y, f"whisker {point.tone}")
        drawn += "".join(line(end, y - 3.5, end, y + 3.5, f"whisker {point.tone}") for end in ends)
    drawn += mark(point.shape, x(point.value), y, 4.8, f"fill {point.tone}")
    return element("g", tip(point.tip) + drawn)


def _cell(corner: tuple[float, float], size: float, count: int, share: float, right: bool) -> str:
    x, y = corner
    box = {"x": x + 0.5, "y": y + 0.5, "width": size - 1, "height": size - 1, "rx": 2}
    drawn = element("rect", "", **box, class_="cell")
    if not count:
        return drawn
    tone = "heat right" if right else "heat wrong"
    drawn += element("rect", "", **box, class_=tone, fill_opacity=0.08 + 0.92 * share)
    ink = "strong" if share > 0.75 else "plain"
    middle = (x + size / 2, y + size / 2)
    figure = "count" if size >= 32 and count < 10_000 else "count small"
    if size < 42:
        return drawn + text(middle[0], middle[1] + 4, str(count), class_=f"{figure} {ink}")
    drawn += text(*middle, str(count), class_=f"{figure} {ink}")
    return drawn + text(middle[0], middle[1] + 14, percent(share, 0), class_=f"count small {ink}")


def against_counts(name: str, points: Sequence[tuple[int, Point]], width: float) -> str:
    """Marks with whiskers at (training images, share), the images on a logarithmic scale."""
    width = min(width, 640.0)
    left, right, top, height = 48.0, 14.0, 10.0, 240.0 if width < NARROW else 280.0
    base = top + height
    counts = [count for count, _ in points]
    low, high = math.log10(min(counts)), math.log10(max(counts))
    span = (high - low) or 1.0
    low, span = low - 0.06 * span, 1.12 * span

    def x(count: float) -> float:
        return left + (width - left - right) * (math.log10(count) - low) / span

    def y(share: float) -> float:
        return base - height * min(max(share, 0.0), 1.0)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(left, y(share), width - right, y(share), "grid"))
        parts.append(text(left - 7, y(share) + 4, f"{100 * share:.0f}", class_="tick end"))
    powers = range(math.floor(low), math.ceil(low + span) + 1)
    factors = (1, 2, 5) if span < 2.5 else (1,)
    ticks = [factor * 10**power for power in powers if power >= 0 for factor in factors]
    ticks = [at for at in ticks if low <= math.log10(at) <= low + span]
    for at in ticks if len(ticks) > 1 else sorted({min(counts), max(counts)}):
        parts.append(line(x(at), base, x(at), base + 4, "axis"))
        parts.append(text(x(at), base + 17, thousands(at), class_="tick"))
    parts.append(line(left, base, width - right, base, "axis"))
    for count, point in points:
        assert point.value is not None
        drawn = ""
        if point.low is not None and point.high is not None:
            drawn += line(x(count), y(point.low), x(count), y(point.high), f"whisker {point.tone}")
        drawn += mark(point.shape, x(count), y(point.value), 4.8, f"fill {point.tone}")
        said = f"{point.tip}, {thousands(count)} for training"
        parts.append(element("g", tip(said) + drawn))
    middle = (left + width - right) / 2
    parts.append(text(middle, base + 35, "training images of the class", class_="tick"))
    parts.append(text(0, 0, "recall, %", class_="tick", transform=upright(12, top + height / 2)))
    title = "Recall of each class against its training images"
    said = "; ".join(f"{thousands(n)} training images: {percent(p.value)}" for n, p in points)
    return chart(name, title, said, (width, base + 42), parts)
