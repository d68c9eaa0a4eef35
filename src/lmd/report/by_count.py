"""Recall against the number of training images of a class."""

import math
from collections.abc import Sequence

from lmd.report.charts import NARROW, Point
from lmd.report.svg import chart, element, line, mark, text, tip, upright
from lmd.report.words import percent, thousands


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
