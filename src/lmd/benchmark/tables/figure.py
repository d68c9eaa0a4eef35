"""The figure of a sweep: balanced accuracy against the swept value, with intervals, as SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.tables.forms import HEADLINE
from lmd.benchmark.tables.results import Estimate, Results
from lmd.charts.curves import nice_ticks
from lmd.charts.svg import CHARACTER, chart, element, line, mark, text, tip, upright

SHAPES = ("circle", "square", "diamond", "triangle")
STYLE = """
svg { background: #fff; font-family: system-ui, "Liberation Sans", Arial, sans-serif; }
text { font-size: 12.5px; fill: #1c2126; }
.title { font-size: 14px; font-weight: 600; }
.tick { font-size: 11.5px; fill: #5b646d; text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: #e8e6e1; } .axis { stroke: #5b646d; }
.s0 { --tone: #0072b2; } .s1 { --tone: #d55e00; } .s2 { --tone: #009e73; } .s3 { --tone: #a86f9a; }
.fill { fill: var(--tone); } .whisker { stroke: var(--tone); stroke-width: 2; }
polyline { fill: none; stroke: var(--tone); stroke-width: 1.8; }
.baseline { stroke: var(--tone); stroke-width: 1.5; stroke-dasharray: 5 3; }
"""
LEFT, TOP, WIDTH, HEIGHT = 62.0, 40.0, 470.0, 260.0


BASE = TOP + HEIGHT


@dataclass(frozen=True)
class Series:
    """A method's estimates by index of the point; a baseline has one that holds at all points."""

    title: str
    points: list[tuple[int, Estimate]]
    baseline: bool


def sweep_figure(results: Results) -> str:
    """One self-contained drawing of all methods of a sweep.

    If one numeric setting is swept, the axis has its scale, logarithmic if all values are positive
    and the largest is at least twenty times the smallest. Otherwise the points are evenly spaced.
    """
    plan = results.plan
    if len(plan.points) < 2:
        raise LmdError(f"a figure needs a grid with a [sweep]; {plan.name} has none")
    series = [_series(results, row.key, row.title) for row in plan.rows]
    series = [each for each in series if each.points]
    if not series:
        raise LmdError(f"no run of {plan.name} is finished: run `lmd benchmark` first")
    known = [e for each in series for _, e in each.points]
    limits = [100 * x for e in known for x in (e.mean, e.low, e.high) if x is not None]
    ticks = nice_ticks(min(limits), max(limits))

    def y(percent: float) -> float:
        return TOP + HEIGHT * (1 - (percent - ticks[0]) / (ticks[-1] - ticks[0]))

    places, logarithmic = _places([list(point.values.values()) for point in plan.points])
    labels = [" / ".join(point.labels.values()) for point in plan.points]
    parts = [element("style", STYLE), text(LEFT, 18, plan.title, class_="title")]
    for tick in ticks:
        parts.append(line(LEFT, y(tick), LEFT + WIDTH, y(tick), "grid"))
        parts.append(text(LEFT - 8, y(tick) + 4, f"{tick:g}", class_="tick end"))
    parts.append(line(LEFT, BASE, LEFT + WIDTH, BASE, "axis"))
    for place, label in zip(places, labels, strict=True):
        parts.append(text(place, BASE + 17, label, class_="tick"))
    names = " / ".join(plan.points[0].labels) + (" (logarithmic)" if logarithmic else "")
    parts.append(text(LEFT + WIDTH / 2, BASE + 36, names, class_="tick"))
    side = upright(16, TOP + HEIGHT / 2)
    parts.append(text(0, 0, "balanced accuracy, %", class_="tick", transform=side))
    beside = 0.0
    for i, each in enumerate(series):
        parts += _drawn(each, i, [place + beside for place in places], labels, y)
        # Shifted, so that the intervals of several methods do not overlap.
        beside += 0.0 if each.baseline else 6.0
    if len(series) > 1:
        parts += _legend(series, BASE + 58)
    size = (LEFT + WIDTH + 24, BASE + 68 + 18 * (len(series) > 1))
    said = "Balanced accuracy with 95 % intervals over the test images"
    drawing = chart("sweep", plan.title, said, size, parts)
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def _series(results: Results, method: str, title: str) -> Series:
    swept = results.swept(method)
    points = range(len(results.plan.points) if swept else 1)
    found = [results.entry(method, i).estimate(HEADLINE) for i in points]
    return Series(title, [(i, e) for i, e in enumerate(found) if e is not None], not swept)


def _places(values: Sequence[Sequence[Any]]) -> tuple[list[float], bool]:
    """The place of each point in px, and whether the axis is logarithmic."""
    scale, logarithmic = [float(i) for i in range(len(values))], False
    if all(len(v) == 1 and type(v[0]) in (int, float) for v in values):
        scale = [float(v[0]) for v in values]
        logarithmic = min(scale) > 0 and max(scale) >= 20 * min(scale)
        scale = [math.log10(n) for n in scale] if logarithmic else scale
    low, high = min(scale), max(scale)
    return [LEFT + 30 + (WIDTH - 60) * (s - low) / (high - low) for s in scale], logarithmic


def _drawn(
    series: Series,
    index: int,
    places: Sequence[float],
    labels: Sequence[str],
    y: Callable[[float], float],
) -> list[str]:
    tone = f"s{index % 4}"
    if series.baseline:
        mean = 100 * series.points[0][1].mean
        rule = line(LEFT, y(mean), LEFT + WIDTH, y(mean), f"baseline {tone}")
        return [element("g", tip(f"{series.title}: {mean:.2f} %") + rule)]
    ordered = sorted(series.points, key=lambda pair: places[pair[0]])
    path = " ".join(f"{places[i]:.1f},{y(100 * e.mean):.1f}" for i, e in ordered)
    parts = [element("polyline", points=path, class_=tone)] if len(ordered) > 1 else []
    for i, estimate in ordered:
        x = places[i]
        drawn = tip(f"{series.title}, {labels[i]}: {100 * estimate.mean:.2f} %")
        if estimate.low is not None and estimate.high is not None:
            ends = y(100 * estimate.low), y(100 * estimate.high)
            drawn += line(x, ends[0], x, ends[1], f"whisker {tone}")
        drawn += mark(SHAPES[index % 4], x, y(100 * estimate.mean), 4.5, f"fill {tone}")
        parts.append(element("g", drawn))
    return parts


def _legend(series: Sequence[Series], height: float) -> list[str]:
    parts, x = [], LEFT
    for i, each in enumerate(series):
        tone = f"s{i % 4}"
        if each.baseline:
            parts.append(line(x - 6, height - 4, x + 8, height - 4, f"baseline {tone}"))
        else:
            parts.append(mark(SHAPES[i % 4], x, height - 4, 4.5, f"fill {tone}"))
        parts.append(text(x + 12, height, each.title))
        x += 36 + CHARACTER * len(each.title)
    return parts
