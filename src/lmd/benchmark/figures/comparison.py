"""Draw rows beside each other: ablations, differences from the reference, accuracy and cost."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.benchmark.figures.series import (
    RESAMPLES,
    Request,
    Series,
    check_metrics,
    check_same_data,
    common_device,
    family_of,
    make_series,
    reference_row,
)
from lmd.benchmark.figures.style import (
    COLOURS,
    GREY,
    HATCHES,
    Drawn,
    axis_title,
    legend_below,
    new_figure,
    plain_ticks,
    whiskers,
)
from lmd.benchmark.tables.forms import COLUMNS, HEADLINE
from lmd.scoring.differences import Difference
from lmd.scoring.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

Floats = NDArray[np.float64]
PALETTE = (*COLOURS, GREY)
DEFAULT = (HEADLINE, *(key for key in COLUMNS["tiers"] if key != HEADLINE))
LABELLED = 12  # with more rows, only the front, the first and the reference are labelled


def ablation_figure(request: Request) -> Drawn:
    """Draw one group of bars for each metric, with 95 % intervals as whiskers."""
    keys = check_metrics(request.metrics or DEFAULT)
    series = make_series(request.study, request.methods)
    if not request.methods:
        series = _reference_and_ablations(series, request)
    check_same_data(series, "ablation")
    if len(series) > len(HATCHES):
        raise LmdError(f"the ablation figure shows at most {len(HATCHES)} rows, not {len(series)}")
    figure = new_figure(request.width, request.height or 0.66 * request.width)
    axes = figure.add_subplot()
    bar = 0.84 / len(series)
    rows: list[dict[str, Any]] = []
    for i, one in enumerate(series):
        titles = {row["title"] for row in rows}
        for j, key in enumerate(keys):
            estimate, interval = one.estimate(key)
            if estimate is None:
                continue
            named = one.title not in titles
            titles.add(one.title)
            row = {"method": one.key, "title": one.title, "metric": key, "value": estimate.mean}
            row |= {"low": estimate.low, "high": estimate.high, "sd_over_seeds": estimate.sd}
            rows.append(row | {"seeds": len(one.runs), "interval": interval})
            axes.bar(
                j + (i - (len(series) - 1) / 2) * bar,
                100 * estimate.mean,
                0.92 * bar,
                yerr=np.maximum(whiskers([(estimate.mean, estimate.low, estimate.high)]), 0),
                color=PALETTE[i],
                alpha=0.85,
                edgecolor="white" if HATCHES[i] else PALETTE[i],
                hatch=HATCHES[i],
                linewidth=0,
                label=one.title if named else None,
                error_kw={"elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8},
            )
    if not rows:
        raise LmdError(f"no row of the ablation has the metrics {', '.join(keys)}")
    axes.set_xticks(range(len(keys)), [_tier_or_metric(key) for key in keys])
    axes.tick_params(axis="x", length=0)
    only_recalls = all(key in DEFAULT for key in keys)
    axes.set_ylabel("balanced accuracy, %" if only_recalls else "value × 100")
    axes.set_ylim(bottom=min(0, *axes.get_ylim()))
    axes.grid(axis="y")
    legend_below(figure, [one.title for one in series])
    intervals = sorted({row["interval"] for row in rows})
    return Drawn(figure, rows, (f"Whiskers: 95 % intervals over {' / '.join(intervals)}.",))


def _reference_and_ablations(series: Sequence[Series], request: Request) -> list[Series]:
    keys = request.study.own
    if request.reference is not None:
        reference_row(series, request)
        keys = family_of(request.reference, (one.key for one in series))
    rows = [one for one in series if one.key in keys]
    if len(rows) < 2:
        raise LmdError(
            "there are no ablations among these runs: an ablation figure needs the reference and "
            "at least one row without a part of it; choose with --reference or --methods"
        )
    return rows


def _tier_or_metric(key: str) -> str:
    if key == HEADLINE:
        return "overall"
    return key.removeprefix("bacc_") if key.startswith("bacc_") else METRICS[key].short


def difference_figure(request: Request) -> Drawn:
    """Draw one line for each row, the best on top; ablations are below the others."""
    study, metric = request.study, request.metric
    check_metrics([metric])
    everything = make_series(study)
    check_same_data(everything, "difference")
    main = reference_row(everything, request)
    if main is None:
        raise LmdError("these runs have no reference row: name one with --reference")
    series = [one for one in make_series(study, request.methods) if one.key != main.key]
    pairs = [(one, gap) for one in series if (gap := one.difference(main, metric)) is not None]
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
    for place, (one, gap) in enumerate(pairs):
        certain = gap.low > 0 or gap.high < 0
        ablation = one.key in study.own
        tone = COLOURS[1 if ablation else 0]
        axes.plot([100 * gap.low, 100 * gap.high], [place, place], color=tone, zorder=2)
        axes.plot(
            100 * gap.value,
            place,
            marker="D" if ablation else "o",
            color=tone,
            markerfacecolor=tone if certain else "white",
            zorder=3,
        )
    others = sum(one.key not in study.own for one, _ in pairs)
    if 0 < others < len(pairs):
        axes.axhline(others - 0.5, color=GREY, linewidth=0.5)
    axes.set_yticks(range(len(pairs)), [one.title for one, _ in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    title, percent = axis_title(metric), ", %"
    if title.endswith(percent):
        label = f"{title.removesuffix(percent)} minus that of {main.title}, points"
    else:
        label = f"{title}, minus that of {main.title}"
    figure.supxlabel(label, fontsize=8)
    axes.grid(axis="x")
    rows = [_difference_row(one, gap, metric, main) for one, gap in pairs]
    over = ""
    if any(len(one.runs) > 1 for one, _ in pairs):
        over = "the mean over common seeds on "
    notes = [
        f"Lines: 95 % intervals of {over}{RESAMPLES} paired resamples of the test images; filled "
        "marks: zero is outside. The intervals are not corrected for the number of rows (`lmd "
        "table` has p-values with Holm's correction) and do not cover training again."
    ]
    if any(row["low"] is None for row in rows):
        why = "a class has too few images, or all resamples agree"
        notes.append(f"A mark without a line has no interval: {why}.")
    return Drawn(figure, rows, tuple(notes))


def _difference_row(one: Series, gap: Difference, metric: str, main: Series) -> dict[str, Any]:
    finite = {
        key: number if math.isfinite(number) else None
        for key, number in (("low", gap.low), ("high", gap.high), ("p", gap.p_value))
    }
    return {
        "method": one.key,
        "title": one.title,
        "reference": main.key,
        "metric": metric,
        "difference": gap.value,
        **finite,
        "seeds": len({run.seed for run in one.runs} & {run.seed for run in main.runs}),
    }


def cost_figure(request: Request) -> Drawn:
    """Draw a metric against minutes; rows that no other row beats in both form the front."""
    study, metric = request.study, request.metric
    check_metrics([metric])
    everything = make_series(study, request.methods)
    check_same_data(everything, "cost")
    device = common_device(everything)
    pairs = [(one, one.estimate(metric)[0]) for one in everything]
    series = [one for one, estimate in pairs if estimate is not None]
    estimates = [estimate for _, estimate in pairs if estimate is not None]
    minutes = [one.minutes() for one in series]
    values = [100 * estimate.mean for estimate in estimates]
    if len(series) < 2 or max(minutes) <= 0:
        raise LmdError(
            f"the cost figure needs at least two rows with {metric} and recorded training times; "
            f"there are {len(series)}"
        )
    front = pareto(minutes, values, METRICS[metric].higher_is_better)
    figure = new_figure(request.width, request.height or 0.75 * request.width)
    axes = figure.add_subplot()
    for i, one in enumerate(series):
        main, on_front = one.key == study.reference, i in front
        if estimates[i].low is not None and estimates[i].high is not None:
            limits = [100 * (estimates[i].low or 0), 100 * (estimates[i].high or 0)]
            axes.plot([minutes[i]] * 2, limits, color="#BBBBBB", linewidth=0.7, zorder=1)
        colour = COLOURS[1] if main else COLOURS[0] if on_front else GREY
        axes.plot(
            minutes[i],
            values[i],
            marker="D" if main else "o",
            color=colour,
            markerfacecolor=colour if main or on_front else "white",
            linestyle="",
            zorder=3,
        )
    axes.plot(
        [minutes[i] for i in front],
        [values[i] for i in front],
        color=COLOURS[0],
        linewidth=0.8,
        linestyle="--",
        zorder=2,
    )
    if min(minutes) > 0 and max(minutes) > 4 * min(minutes):
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    axes.margins(x=0.12, y=0.08)
    several = any(len(one.runs) > 1 for one in everything)
    axes.set_xlabel(f"{device} minutes of training" + (", mean over seeds" if several else ""))
    axes.set_ylabel(axis_title(metric))
    axes.grid()
    notes = [
        "Dashed: rows that no other row beats in both. A first stage that rows share counts for "
        "each of them. Vertical lines: 95 % intervals."
    ]
    shown = list(range(len(series)))
    if len(series) > LABELLED:
        first = {study.reference, *study.order[:1]}
        shown = [i for i in shown if series[i].key in first or i in front]
        notes.append(
            "Only the front, the reference and the first row of a plan are labelled; see the CSV."
        )
    points = np.column_stack([minutes, values])
    label_points(axes, points, {i: series[i].title for i in shown})
    rows: list[dict[str, Any]] = []
    for i, one in enumerate(series):
        row = {"method": one.key, "title": one.title, "minutes": minutes[i]}
        row |= {metric: estimates[i].mean, "low": estimates[i].low, "high": estimates[i].high}
        rows.append(row | {"seeds": len(one.runs), "front": i in front})
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


def label_points(axes: "Axes", points: Floats, names: dict[int, str]) -> None:
    """Write names beside some of ``points (N, 2)``, each where it hides and confuses least."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    assert isinstance(figure.canvas, FigureCanvasAgg)
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[no-untyped-call]
    frame = np.array([axes.get_window_extent(renderer).extents])
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
            box = np.array(text.get_window_extent(renderer).extents)
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


def _annotate(axes: "Axes", point: Floats, name: str, offset: tuple[float, float]) -> "Annotation":
    from matplotlib.patheffects import withStroke

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
