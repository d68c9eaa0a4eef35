"""The charts of the report: pure functions that return SVG markup.

Colours are classes of the style sheet (``head``, ``medium``, ``tail``, ``run0`` …), so a chart
follows the light or dark scheme of the reader. A width below 500 px stacks labels over marks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmd.report.svg import chart, element, line, mark, shorten, text, tip, upright
from lmd.report.words import percent, thousands

NARROW = 500
LABEL = 262.0  # room for class names beside the marks, in px
SHAPES = {"head": "circle", "medium": "square", "tail": "diamond"}
RUN_SHAPES = ("circle", "diamond", "square", "triangle")


@dataclass(frozen=True)
class CountRow:
    """Images of one class in each part; ``None`` where the part does not exist."""

    label: str
    tier: str
    train: int
    validation: int | None
    test: int | None


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
    """One line of a dot-and-whisker chart: a label, figures beside it, one point or several."""

    label: str
    notes: Sequence[str]
    points: Sequence[Point]


def count_bars(name: str, rows: Sequence[CountRow], width: float) -> str:
    """Images of each class as bars on a logarithmic scale, with the numbers of every part."""
    narrow = width < NARROW
    left, right, step = (2.0, 8.0, 40.0) if narrow else (LABEL, 236.0, 26.0)
    top = 8.0 if narrow else 26.0
    powers = math.ceil(math.log10(max([row.train for row in rows] + [10])))
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
    columns = [(width - 150, "training"), (width - 70, "validation"), (width - 2, "test")]
    if not narrow:
        parts += [text(at, 14, word, class_="tick end") for at, word in columns]
    for i, row in enumerate(rows):
        y = top + step * i
        numbers = [thousands(n) for n in (row.train, row.validation, row.test)]
        drawn = max(x(row.train) - left, 3.0) if row.train else 0.0
        words = f"{row.label} ({row.tier}): {', '.join(map(_counted, numbers, _PARTS))}"
        bar_y = y + 21 if narrow else y + 5
        bar = element(
            "rect", x=left, y=bar_y, width=drawn, height=15.0, rx=2, class_=f"fill {row.tier}"
        )
        if narrow:
            note = " / ".join(numbers)
            bar += text(left, y + 15, shorten(row.label, width - 7 * len(note) - 16))
            bar += text(width - 2, y + 15, note, class_="number end")
        else:
            bar += text(left - 10, y + 17, shorten(row.label, left - 14), class_="end")
            for (at, _), value in zip(columns, numbers, strict=True):
                bar += text(at, y + 17, value, class_="number end")
        parts.append(element("g", tip(words) + bar))
    title = "Images of each class, logarithmic scale"
    description = "; ".join(f"{row.label}: {row.train} for training" for row in rows)
    return chart(name, title, description, (width, bottom + 22), parts)


def dots(
    name: str, title: str, rows: Sequence[DotRow], width: float, reference: float | None = None
) -> str:
    """Shares between 0 and 1 as dots with whiskers; ``reference`` is a dashed upright line."""
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
            at = y + head + 9 + 13 * i if narrow else y + head + 8 + 13 * i
            parts.append(_point(point, x, at))
        y += height
    said = [f"{row.label}: {', '.join(percent(p.value) for p in row.points)}" for row in rows]
    return chart(name, title, "; ".join(said), (width, bottom + 22), parts)


def confusion(
    name: str, labels: Sequence[str], matrix: Sequence[Sequence[int]], width: float
) -> str:
    """A heat map: rows are true classes, shades are shares of the row, figures are counts."""
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
    description = f"{right} of {sum(map(sum, matrix))} images lie on the diagonal (right)."
    size_px = (left + cell * size + 4, top + cell * size + 4)
    return chart(name, "Confusion matrix", description, size_px, parts)


_PARTS = ("training", "validation", "test")


def _counted(value: str, part: str) -> str:
    return f"{value} {part}"


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
    tone = "right" if right else "wrong"
    drawn = element(
        "rect", x=x + 0.5, y=y + 0.5, width=size - 1, height=size - 1, rx=2, class_="cell"
    )
    if share:
        drawn += element(
            "rect",
            x=x + 0.5,
            y=y + 0.5,
            width=size - 1,
            height=size - 1,
            rx=2,
            class_=f"heat {tone}",
            fill_opacity=0.08 + 0.92 * share,
        )
    if not count:
        return drawn
    ink = "strong" if share > 0.75 else "plain"
    spacious = size >= 42
    middle = x + size / 2
    figure = "count" if size >= 32 and count < 10_000 else "count small"
    drawn += text(
        middle, y + size / 2 + (0 if spacious else 4), str(count), class_=f"{figure} {ink}"
    )
    if spacious:
        drawn += text(middle, y + size / 2 + 14, percent(share, 0), class_=f"count small {ink}")
    return drawn
