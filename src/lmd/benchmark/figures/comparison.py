"""Draw rows beside each other: ablations, differences from the reference, accuracy and cost."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from lmd.base.errors import LmdError
from lmd.benchmark.figures import style
from lmd.benchmark.figures.series import RESAMPLES, Request, Series, common_device, family_of
from lmd.benchmark.figures.style import COLOURS, GREY, Drawn, Style, new_figure
from lmd.benchmark.tables import COLUMNS
from lmd.benchmark.trials import HEADLINE
from lmd.scoring.metrics import METRICS
from lmd.scoring.proportions import Floats

PALETTE = (*COLOURS, GREY)
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "||||")
DEFAULT = (HEADLINE, *(key for key in COLUMNS["tiers"] if key != HEADLINE))
LABELLED = 12  # with more rows, only the front, the first and the reference are labelled


def ablation_figure(request: Request) -> Drawn:
    """Draw one group of bars for each metric, with 95 % intervals as whiskers."""
    keys = request.metrics or DEFAULT
    series = _ablations(request)
    if len(series) > len(HATCHES):
        raise LmdError(f"the ablation figure shows at most {len(HATCHES)} rows, not {len(series)}")
    figure = new_figure(request.width, request.height or 0.66 * request.width)
    axes = figure.add_subplot()
    wide = 0.84 / len(series)
    rows: list[dict[str, Any]] = []
    for i, row in enumerate(series):
        bar: Style = {"color": PALETTE[i], "hatch": HATCHES[i], "alpha": 0.85, "linewidth": 0}
        bar["edgecolor"] = "white" if HATCHES[i] else PALETTE[i]
        bar["error_kw"] = {"elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8}
        bars = {j: cells for j, key in enumerate(keys) if (cells := row.metric_row(key, "value"))}
        x = [j + (i - (len(series) - 1) / 2) * wide for j in bars]
        shown = list(bars.values())
        limits = np.maximum(style.whiskers(shown, "value"), 0)
        values = [100 * cells["value"] for cells in shown]
        axes.bar(x, values, 0.92 * wide, yerr=limits, label=row.title, **bar)
        rows += shown
    if not rows:
        raise LmdError(f"no row of the ablation has the metrics {', '.join(keys)}")
    names = {key: METRICS[key].tier or METRICS[key].short for key in keys} | {HEADLINE: "overall"}
    axes.set_xticks(range(len(keys)), [names[key] for key in keys])
    axes.tick_params(axis="x", length=0)
    only_recalls = all(key in DEFAULT for key in keys)
    axes.set_ylabel("balanced accuracy, %" if only_recalls else "value × 100")
    axes.set_ylim(bottom=min(0, *axes.get_ylim()))
    axes.grid(axis="y")
    style.legend_below(figure, [row.title for row in series])
    intervals = sorted({cells["interval"] for cells in rows})
    return Drawn(figure, rows, (f"Whiskers: 95 % intervals over {' / '.join(intervals)}.",))


def _ablations(request: Request) -> list[Series]:
    """Return the methods to show, or else the reference and its ablations."""
    if request.methods:
        return request.series("ablation")
    everything, keys = request.series(), request.study.own
    if request.reference is not None:
        request.reference_row(everything)
        keys = family_of(request.reference, (row.key for row in everything))
    shown = [row.key for row in everything if row.key in keys]
    if len(shown) < 2:
        raise LmdError(
            "there are no ablations among these runs: an ablation figure needs the reference and "
            "at least one row without a part of it; choose with --reference or --methods"
        )
    return replace(request, methods=shown).series("ablation")


def difference_figure(request: Request) -> Drawn:
    """Draw one line for each row, the best on top; ablations are below the others."""
    study, metric = request.study, request.metric
    main = request.reference_row(request.series("difference", every=True))
    if main is None:
        raise LmdError("these runs have no reference row: name one with --reference")
    series = [row for row in request.series() if row.key != main.key]
    pairs = [(row, gap) for row in series if (gap := row.difference(main, metric)) is not None]
    if not pairs:
        raise LmdError(
            f"no row can be compared with {main.title} in {metric}: differences need the "
            "predictions of both rows on the same test images, and a common seed"
        )
    sign = -1 if METRICS[metric].higher_is_better else 1
    pairs.sort(key=lambda pair: (pair[0].key in study.own, sign * pair[1].value))
    figure = new_figure(request.width, request.height or 0.75 + 0.15 * len(pairs))
    axes = figure.add_subplot()
    axes.axvline(0, color="#555555", linewidth=0.8, zorder=1)
    rows: list[dict[str, Any]] = []
    for place, (row, gap) in enumerate(pairs):
        certain, ablation = gap.low > 0 or gap.high < 0, row.key in study.own
        tone, marker = (COLOURS[1], "D") if ablation else (COLOURS[0], "o")
        axes.plot([100 * gap.low, 100 * gap.high], [place, place], color=tone, zorder=2)
        mark: Style = {"color": tone, "marker": marker, "zorder": 3}
        axes.plot(100 * gap.value, place, markerfacecolor=tone if certain else "white", **mark)
        cells = row.row(reference=main.key, metric=metric, difference=gap.value)
        for key, number in (("low", gap.low), ("high", gap.high), ("p", gap.p_value)):
            cells[key] = number if math.isfinite(number) else None
        rows.append(cells | {"seeds": len({*row.seeds} & {*main.seeds})})
    others = sum(row.key not in study.own for row, _ in pairs)
    if 0 < others < len(pairs):
        axes.axhline(others - 0.5, color=GREY, linewidth=0.5)
    axes.set_yticks(range(len(pairs)), [row.title for row, _ in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    title, percent = style.axis_title(metric), ", %"
    if title.endswith(percent):
        label = f"{title.removesuffix(percent)} minus that of {main.title}, points"
    else:
        label = f"{title}, minus that of {main.title}"
    figure.supxlabel(label, fontsize=8)
    axes.grid(axis="x")
    over = "the mean over common seeds on " if any(len(row.runs) > 1 for row, _ in pairs) else ""
    notes = [
        f"Lines: 95 % intervals of {over}{RESAMPLES} paired resamples of the test images; "
        "filled marks: zero is outside. The intervals are not corrected for the number of rows "
        "(`lmd table` has p-values with Holm's correction) and do not cover training again."
    ]
    if any(cells["low"] is None for cells in rows):
        why = "a class has too few images, or all resamples agree"
        notes.append(f"A mark without a line has no interval: {why}.")
    return Drawn(figure, rows, tuple(notes))


def cost_figure(request: Request) -> Drawn:
    """Draw a metric against minutes; rows that no other row beats in both form the front."""
    study, metric = request.study, request.metric
    everything = request.series("cost")
    device = common_device(everything)
    pairs = [(row, e) for row in everything if (e := row.estimate(metric)[0]) is not None]
    minutes = [row.minutes() for row, _ in pairs]
    values = [100 * estimate.mean for _, estimate in pairs]
    if len(pairs) < 2 or max(minutes) <= 0:
        raise LmdError(
            f"the cost figure needs at least two rows with {metric} and recorded training times; "
            f"there are {len(pairs)}"
        )
    front = pareto(minutes, values, METRICS[metric].higher_is_better)
    figure = new_figure(request.width, request.height or 0.75 * request.width)
    axes = figure.add_subplot()
    rows: list[dict[str, Any]] = []
    for i, (row, estimate) in enumerate(pairs):
        main, on_front = row.key == study.reference, i in front
        low, high = estimate.low, estimate.high
        if low is not None and high is not None:
            line: Style = {"color": "#BBBBBB", "linewidth": 0.7, "zorder": 1}
            axes.plot([minutes[i]] * 2, [100 * low, 100 * high], **line)
        colour = COLOURS[1] if main else COLOURS[0] if on_front else GREY
        mark: Style = {"marker": "D" if main else "o", "color": colour, "linestyle": ""}
        mark["markerfacecolor"] = colour if main or on_front else "white"
        axes.plot(minutes[i], values[i], zorder=3, **mark)
        cells = row.row(minutes=minutes[i], **{metric: estimate.mean}, low=low, high=high)
        rows.append(cells | {"seeds": len(row.runs), "front": on_front})
    line = {"color": COLOURS[0], "linewidth": 0.8, "linestyle": "--", "zorder": 2}
    axes.plot([minutes[i] for i in front], [values[i] for i in front], **line)
    if min(minutes) > 0 and max(minutes) > 4 * min(minutes):
        axes.set_xscale("log")
        style.plain_ticks(axes.xaxis)
    axes.margins(x=0.12, y=0.08)
    several = any(len(row.runs) > 1 for row in everything)
    axes.set_xlabel(f"{device} minutes of training" + (", mean over seeds" if several else ""))
    axes.set_ylabel(style.axis_title(metric))
    axes.grid()
    notes = [
        "Dashed: rows that no other row beats in both. A first stage that rows share counts for "
        "each of them. Vertical lines: 95 % intervals."
    ]
    names = {i: row.title for i, (row, _) in enumerate(pairs)}
    if len(pairs) > LABELLED:
        first = {study.reference, *study.order[:1]}
        names = {i: names[i] for i, (row, _) in enumerate(pairs) if row.key in first or i in front}
        notes.append(
            "Only the front, the reference and the first row of a plan are labelled; see the CSV."
        )
    label_points(figure, axes, np.column_stack([minutes, values]), names)
    return Drawn(figure, rows, tuple(notes))


def pareto(minutes: Sequence[float], values: Sequence[float], higher: bool = True) -> list[int]:
    """Return those that are better than all that take at most the same time, fastest first.

    >>> pareto([1.0, 2.0, 3.0], [0.5, 0.4, 0.7])
    [0, 2]
    """
    gains = [value if higher else -value for value in values]
    front: list[int] = []
    for i in sorted(range(len(gains)), key=lambda i: (minutes[i], -gains[i])):
        if not front or gains[i] > gains[front[-1]]:
            front.append(i)
    return front


NEAR = [(5, 0), (-5, 0), (0, 6), (0, -6), (5, 5), (-5, 5), (5, -5), (-5, -5)]
# Candidate places of a label in points from its mark, near ones first.
OFFSETS = [(dx * k, dy * k) for k in (1, 2, 3, 4.5, 6.5, 9, 12) for dx, dy in NEAR]


def label_points(figure: Figure, axes: Axes, points: Floats, names: dict[int, str]) -> None:
    """Write names beside some of ``points (N, 2)``, each where it hides and confuses least."""
    figure.draw_without_rendering()
    frame = np.array([axes.get_window_extent().extents])
    size, marks = figure.dpi / 72, np.tile(axes.transData.transform(points), 2)
    around = np.array([-1, -1, 1, 1]) * size
    # What must stay readable: labels, and the points that have one.
    weights = np.array([10.0 if i in names else 1.0 for i in range(len(points))])
    labels = np.empty((0, 4))
    for i, name in names.items():
        others = np.arange(len(points)) != i
        costs, boxes = [], []
        for offset in OFFSETS:
            text = _annotate(axes, points[i], name, offset)
            box = np.array(text.get_window_extent().extents)
            text.remove()
            hidden = weights @ _overlap(box, marks + 4.5 * around)
            hidden += 10 * _overlap(box, labels).sum()
            # A label close to another mark could be taken for its own.
            close = weights[others] @ _overlap(box, marks[others] + 9 * around)
            area = (box[2] - box[0]) * (box[3] - box[1])
            outside = area - _overlap(box, frame)[0]
            far = size * max(map(abs, offset))
            costs.append(hidden + close + 5 * outside + 0.5 * far)
            boxes.append(box)
        best = int(np.argmin(costs))
        _annotate(axes, points[i], name, OFFSETS[best])
        labels = np.vstack([labels, boxes[best]])


def _annotate(axes: Axes, point: Floats, name: str, offset: tuple[float, float]) -> Annotation:
    dx, dy = offset
    arrow = {"arrowstyle": "-", "linewidth": 0.4, "color": "#555555", "shrinkA": 0, "shrinkB": 2}
    return axes.annotate(
        name,
        (point[0], point[1]),
        xytext=offset,
        textcoords="offset points",
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top" if dy < 0 else "center",
        fontsize=6.5,
        path_effects=[withStroke(linewidth=1.5, foreground="white")],
        arrowprops=arrow if max(abs(dx), abs(dy)) > 7 else None,
    )


def _overlap(box: Floats, others: Floats) -> Floats:
    """Return the areas that a box ``(4,)`` and each of ``others (N, 4)`` have in common."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    areas: Floats = np.maximum(high - low, 0).prod(axis=1)
    return areas
