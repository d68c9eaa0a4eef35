"""Balanced accuracy of each method against the computing time of its training."""

from collections.abc import Sequence
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.figures.labels import label_points
from lmd.benchmark.figures.series import (
    Series,
    axis_title,
    check_metrics,
    group,
    one_device,
    reference_of,
    same_data,
)
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, GREY, Drawn, new_figure, plain_ticks
from lmd.benchmark.tables.results import Estimate
from lmd.scoring.metrics import METRICS

LABELLED = 12  # with more rows, only the front, the first and the reference are labelled


def cost_figure(
    study: Study,
    *,
    methods: Sequence[str] | None,
    metric: str,
    width: float,
    height: float | None,
) -> Drawn:
    """Rows that no other row beats in both time and metric form the front, drawn as a line."""
    check_metrics([metric])
    higher = METRICS[metric].higher_is_better
    series = group(study, methods)
    same_data(series, "cost")
    device = one_device(series)
    estimates = {i: e for i, one in enumerate(series) if (e := one.estimate(metric)[0]) is not None}
    points = {i: (series[i].minutes(), e.mean) for i, e in estimates.items()}
    if len(points) < 2 or max(x for x, _ in points.values()) <= 0:
        raise LmdError(
            f"the cost figure needs at least two rows with {metric} and recorded training times; "
            f"there are {len(points)}"
        )
    front = pareto(points, higher)
    figure = new_figure(width, height or 0.75 * width)
    axes = figure.add_subplot()
    main = reference_of(series, study)
    reference = [i for i in points if series[i].key == main]
    for i, (x, y) in points.items():
        low, high = estimates[i].low, estimates[i].high
        if low is not None and high is not None:
            axes.plot([x, x], [100 * low, 100 * high], color="#BBBBBB", linewidth=0.7, zorder=1)
        kind = 1 if i in reference else 0 if i in front else None
        axes.plot(
            x,
            100 * y,
            marker="D" if kind == 1 else "o",
            color=GREY if kind is None else COLOURS[kind],
            markerfacecolor="white" if kind is None else COLOURS[kind],
            linestyle="",
            zorder=3,
        )
    axes.plot(
        [points[i][0] for i in front],
        [100 * points[i][1] for i in front],
        color=COLOURS[0],
        linewidth=0.8,
        linestyle="--",
        zorder=2,
    )
    times = [x for x, _ in points.values()]
    if min(times) > 0 and max(times) > 4 * min(times):
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    axes.margins(x=0.12, y=0.08)
    several = any(len(one.runs) > 1 for one in series)
    axes.set_xlabel(f"{device} minutes of training" + (", mean over seeds" if several else ""))
    axes.set_ylabel(axis_title(metric))
    axes.grid()
    first = [i for i in points if series[i].key in study.order[:1]]
    shown = list(points) if len(points) <= LABELLED else [*reference, *first, *front]
    label_points(
        axes,
        [(points[i][0], 100 * points[i][1], series[i].title) for i in dict.fromkeys(shown)],
        [(x, 100 * y) for x, y in points.values()],
    )
    rows = [_row(series[i], estimates[i], points[i][0], metric, i in front) for i in points]
    notes = [
        "Dashed: rows that no other row beats in both. A first stage that rows share counts for "
        "each of them. Vertical lines: 95 % intervals.",
    ]
    if len(points) > LABELLED:
        notes.append(
            "Only the front, the reference and the first row of a plan are labelled; see the CSV."
        )
    return Drawn(figure, rows, tuple(notes))


def pareto(points: dict[int, tuple[float, float]], higher: bool = True) -> list[int]:
    """Those for which no other takes at most the same time and is better, from fast to slow.

    >>> pareto({0: (1.0, 0.5), 1: (2.0, 0.4), 2: (3.0, 0.7)})
    [0, 2]
    """
    sign = 1 if higher else -1
    found: list[int] = []
    for i, (_, value) in sorted(points.items(), key=lambda item: (item[1][0], -sign * item[1][1])):
        if not found or sign * value > sign * points[found[-1]][1]:
            found.append(i)
    return found


def _row(one: Series, found: Estimate, minutes: float, metric: str, front: bool) -> dict[str, Any]:
    return {
        "method": one.key,
        "title": one.title,
        "minutes": minutes,
        metric: found.mean,
        "low": found.low,
        "high": found.high,
        "seeds": len(one.runs),
        "front": front,
    }
