"""Build SVG elements and pictures, and draw the figures of the report from them."""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from lmd.base.text import csv_text
from lmd.report.text import percent, thousands
from lmd.scoring.estimates import Estimate

Place = float | str  # px, or per cent of the width such as "12.5%"
CHARACTER = 7.1  # mean width of a character at the charts' 12.5 px, in px
PHONE = 342.0  # px that a drawing has at least; labels are cut to fit
EDGE = 1.5  # per cent of the width on both sides, for the marks of 0 and 1
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SHAPES = {"head": "circle", "medium": "square", "tail": "diamond"}
_CORNERS = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
    "triangle": [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
}


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element around markup; ``class_`` and ``stroke_width`` lose their underscores.

    >>> element("rect", x=1.23456, class_="a")
    '<rect x="1.23" class="a"/>'
    """
    pairs = ""
    for key, value in attributes.items():
        if value is not None:
            short = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
            pairs += f' {key.rstrip("_").replace("_", "-")}="{escape(str(short))}"'
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def text(x: Place, y: float, content: str, **attributes: object) -> str:
    """Return escaped text at a point."""
    return element("text", escape(content), x=x, y=y, **attributes)


def upward_text(x: float, y: float, content: str, **attributes: object) -> str:
    """Return text that reads upwards from a point."""
    return text(0, 0, content, **attributes, transform=f"translate({x:.1f} {y:.1f}) rotate(-90)")


def with_tip(tip: str, *parts: str) -> str:
    """Return a group with a title, which browsers show as a tooltip."""
    return element("g", element("title", escape(tip)) + "".join(parts))


def line(x1: Place, y1: float, x2: Place, y2: float, class_: str) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def mark(shape: str, x: Place, y: float, class_: str, size: float = 4.8) -> str:
    """Return a circle, square, diamond or triangle, so that colour is not the only difference."""
    if shape == "circle":
        return element("circle", cx=x, cy=y, r=size, class_=class_)
    points = " ".join(f"{size * dx:.2f},{size * dy:.2f}" for dx, dy in _CORNERS[shape])
    polygon = element("polygon", points=points, class_=class_)
    # The points of a polygon cannot be in per cent, but the corner of a drawing within can.
    return element("svg", polygon, x=x, y=y, overflow="visible")


def legend_mark(shape: str, tone: str) -> Markup:
    """Return one marker for a legend."""
    drawn = mark(shape, 7.0, 7.0, f"fill {tone}")
    return Markup(element("svg", drawn, width=14, height=14, aria_hidden="true", class_="key"))


def chart(
    name: str,
    title: str,
    description: str,
    size: tuple[float | None, float],
    parts: Iterable[str],
) -> str:
    """Return a drawing with an accessible name; ``name`` must be unique.

    ``size`` is width and height. Without a width it is as wide as the page allows, and the parts
    have horizontal places in per cent.
    """
    width, height = size
    head = element("title", escape(title), id=f"{name}-title")
    head += element("desc", escape(description), id=f"{name}-desc")
    return element(
        "svg",
        head + "".join(parts),
        role="img",
        viewBox=None if width is None else f"0 0 {width:g} {height:g}",
        width="100%" if width is None else width,
        height=height,
        aria_labelledby=f"{name}-title {name}-desc",
        class_="chart fluid" if width is None else "chart",
    )


def savable(name: str, drawing: str, rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a drawing with ``rows`` as its data; both are saved under ``name``."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    short = [
        {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in rows
    ]
    data = escape(csv_text(columns, short))
    return Markup(f'<div class="plot" data-name="{escape(name)}" data-csv="{data}">{drawing}</div>')


def shorten(label: str, width: float, character: float = CHARACTER) -> str:
    """Return text cut in the middle to about a width in px, because names often differ at the end.

    >>> shorten("ulcerative colitis grade 2", 100)
    'ulcerati…ade 2'
    """
    wide = sum(east_asian_width(letter) in "WF" for letter in label)
    if wide:  # Chinese, Japanese and Korean signs are nearly twice as wide
        character *= 1 + 0.8 * wide / len(label)
    room = max(int(width / character), 4)
    if len(label) <= room:
        return label
    end = (room - 1) * 2 // 5
    return label[: room - 1 - end].rstrip() + "…" + label[len(label) - end :].lstrip()


def data_uri(pixels: NDArray[np.uint8], side: int, quality: int = 72) -> str:
    """Return an image ``(H, W, 3)`` as a data URI, a JPEG of at most ``side`` pixels each way."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Point:
    """A named value with its interval; ``tone`` is a colour class, by default with its shape."""

    name: str
    estimate: Estimate
    tone: str
    shape: str = ""
    images: int | None = None

    @property
    def tip(self) -> str:
        """The tooltip: the name, the value, its interval and the images."""
        tip = f"{self.name}: {self.estimate.value_text('.1%')}"
        if self.estimate.low is not None and self.estimate.high is not None:
            tip += f" (95 % interval {percent(self.estimate.low)} to {percent(self.estimate.high)})"
        return tip if self.images is None else f"{tip}, {self.images} images"

    def mark(self, x: Place, y: float) -> str:
        """Draw the value."""
        return mark(self.shape or SHAPES.get(self.tone, "circle"), x, y, f"fill {self.tone}")


# A row of a dot-and-whisker chart: its label, the numbers beside it, and its points.
DotRow = tuple[str, str, Sequence[Point]]


def dots_figure(
    name: str,
    title: str,
    rows: Sequence[DotRow],
    data: Sequence[Mapping[str, Any]],
    reference: float | None = None,
) -> Markup:
    """Draw shares from 0 to 1 as dots with whiskers; ``reference`` is a dashed vertical line."""
    top = y = 6.0
    bottom = top + sum(29.0 + 13 * max(len(points), 1) for _, _, points in rows)
    labels = {share: f"{100 * share:.0f}{' %' if share == 1 else ''}" for share in SHARES}
    parts = _grid(top, bottom, labels)
    if reference is not None:
        x = _across(reference)
        parts.append(line(x, top, x, bottom, "reference"))
    for label, note, points in rows:
        parts.append(_heading(label, note, y + 15))
        parts += [_whiskers(point, y + 29 + 13 * i) for i, point in enumerate(points)]
        y += 29 + 13 * max(len(points), 1)
    about = "; ".join(
        f"{label}: {', '.join(point.estimate.value_text('.1%') for point in points)}"
        for label, _, points in rows
    )
    size, title = (None, bottom + 22), f"{title} with 95 % intervals"
    return savable(name, chart(name.replace(" ", "-"), title, about, size, parts), data)


def count_bars(name: str, rows: Sequence[tuple[str, str, Sequence[int | None]]]) -> str:
    """Draw the training images of each class as a bar on a logarithmic scale.

    A row has the name of the class, its tier, and its images for training, validation and test.
    """
    top, step = 8.0, 40.0
    bottom = top + step * len(rows)
    powers = math.ceil(math.log10(max([counts[0] or 0 for _, _, counts in rows] + [10])))
    labels = {power / powers: thousands(10**power) for power in range(powers + 1)}
    parts = _grid(top, bottom, labels)
    for i, (label, tier, counts) in enumerate(rows):
        y, train = top + step * i, counts[0] or 0
        numbers = [thousands(count) for count in (train, *counts[1:])]
        length = max(math.log10(max(train, 1)) / powers, 0.005) if train else 0.0
        wide = f"{(100 - 2 * EDGE) * length:.2f}%"
        box = {"x": _across(0), "y": y + 21, "width": wide, "height": 15, "rx": 2}
        bar = element("rect", "", **box, class_=f"fill {tier}")
        names = ("training", "validation", "test")
        listed = ", ".join(f"{n} {part}" for n, part in zip(numbers, names, strict=True))
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
    factors = (1, 2, 5) if span < 2.5 else (1,)
    ticks = [factor * 10**power for power in range(10) for factor in factors]
    ticks = [count for count in ticks if low <= math.log10(count) <= low + span]
    for count in ticks if len(ticks) > 1 else sorted({min(counts), max(counts)}):
        parts.append(line(across(count), base, across(count), base + 4, "axis"))
        parts.append(text(across(count), base + 17, thousands(count), class_="tick"))
    parts.append(line(ends[0], base, ends[1], base, "axis"))
    for count, point in points:
        x, estimate = across(count), point.estimate
        assert estimate.value is not None
        drawn = point.mark(x, up(estimate.value))
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
        turned = upward_text(x + cell / 2 + 4, top - 7, shorten(label, 132))
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


def _across(share: float) -> str:
    """Return the horizontal place of a share, in per cent of the width."""
    return f"{EDGE + (100 - 2 * EDGE) * min(max(share, 0.0), 1.0):.2f}%"


def _grid(top: float, bottom: float, labels: Mapping[float, str]) -> list[str]:
    """Draw a vertical line at each share of the width, with its label below."""
    parts = []
    for share, label in labels.items():
        x, anchor = _across(share), {0.0: "start", 1.0: "end"}.get(share, "middle")
        parts.append(line(x, top, x, bottom, "grid"))
        parts.append(text(x, bottom + 15, label, class_="tick", style=f"text-anchor: {anchor}"))
    return parts


def _heading(label: str, note: str, y: float) -> str:
    """Return a label at the left and a note at the right, above a bar or a point."""
    short = text(0, y, shorten(label, PHONE - 7 * len(note) - 16))
    return with_tip(label, short) + text("100%", y, note, class_="number end")


def _whiskers(point: Point, y: float) -> str:
    estimate, drawn, class_ = point.estimate, "", f"whisker {point.tone}"
    if estimate.value is None:
        return with_tip(point.tip, text(_across(0), y + 4, "no image", class_="absent"))
    if estimate.low is not None and estimate.high is not None:
        low, high = _across(estimate.low), _across(estimate.high)
        drawn += line(low, y, high, y, class_)
        drawn += "".join(line(x, y - 3.5, x, y + 3.5, class_) for x in (low, high))
    return with_tip(point.tip, drawn, point.mark(_across(estimate.value), y))


def _cell(x: float, y: float, size: float, count: int, share: float, right: bool) -> str:
    side, middle = size - 1, x + size / 2
    box: dict[str, object] = {"x": x + 0.5, "y": y + 0.5, "width": side, "height": side, "rx": 2}
    drawn = element("rect", "", **box, class_="cell")
    if not count:
        return drawn
    tone = "heat right" if right else "heat wrong"
    drawn += element("rect", "", **box, class_=tone, fill_opacity=0.08 + 0.92 * share)
    ink = "strong" if share > 0.75 else "plain"
    number = "count" if size >= 32 and count < 10_000 else "count small"
    if size < 42:
        return drawn + text(middle, y + size / 2 + 4, str(count), class_=f"{number} {ink}")
    drawn += text(middle, y + size / 2, str(count), class_=f"{number} {ink}")
    return drawn + text(middle, y + size / 2 + 14, percent(share, 0), class_=f"count small {ink}")
