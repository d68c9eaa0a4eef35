"""Draw a metric, or the recall of each class, against a swept setting or the training images."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

from lmd.base.errors import LmdError
from lmd.benchmark.figures import style
from lmd.benchmark.figures.series import Request, Series, common_device
from lmd.benchmark.figures.style import COLOURS, GREY, MOST, Drawn, Style, legend_name, new_figure
from lmd.benchmark.trials import HEADLINE
from lmd.scoring.metrics import METRICS
from lmd.scoring.tiers import TIERS

DEFAULT = ("balanced_accuracy", "macro_f1", "auc")
FACTOR = "imbalance factor"
DASHES = ("--", ":", "-.")  # of rows without the setting
SHOWN = 5  # rows of a large benchmark, unless methods are named
NAMED = 14  # more class names than this do not fit above the axes


class Swept:
    """The swept setting, and the rows that have several values of it, by method.

    ``flat`` are the rows without the setting; ``places`` maps the values to the axis, by their
    logarithms if they span a factor of 20.
    """

    def __init__(self, series: Sequence[Series]) -> None:
        by_key: dict[str, list[Series]] = {}
        for row in series:
            by_key.setdefault(row.key, []).append(row)
        self.rows = {key: rows for key, rows in by_key.items() if len(rows) > 1}
        several = [row for rows in self.rows.values() for row in rows]
        names = list(dict.fromkeys(name for row in several for name in row.values))
        if several and not names:
            names = [FACTOR]
        if len(names) != 1:
            differ = f"these runs differ in {', '.join(names)}" if names else "no setting differs"
            raise LmdError(
                f"the sweep figure needs runs of one method that differ in one setting; {differ}: "
                "give the benchmark of a grid with a [sweep] of one setting"
            )
        self.setting = names[0]
        for rows in self.rows.values():
            rows.sort(key=self.value)
        for row in series if self.setting == FACTOR else ():  # one of several is finished so far
            if row.key not in self.rows and row.record.data.imbalance_factor is not None:
                self.rows[row.key] = [row]
        self.flat = [row for row in series if row.key not in self.rows]
        self.values = sorted({self.value(row) for rows in self.rows.values() for row in rows})
        self.logarithmic = self.values[0] > 0 and self.values[-1] >= 20 * self.values[0]
        places = [math.log10(v) if self.logarithmic else float(v) for v in self.values]
        self.places = dict(zip(self.values, places, strict=True))

    def value(self, row: Series) -> Any:
        """Return the value of the setting in a row."""
        factor = row.record.data.imbalance_factor
        value: Any = factor if self.setting == FACTOR else row.values[self.setting]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LmdError(
                f"the sweep figure needs numbers, but {self.setting} is {value!r} in "
                f"{row.runs[0].path}"
            )
        return value

    def cells(self, row: Series) -> dict[str, Any]:
        """Return setting and value of a row for the CSV file; empty for one without the setting."""
        if row.key not in self.rows:
            return {"setting": "", "value": None}
        return {"setting": self.setting, "value": self.value(row)}

    def shifted(self, values: Sequence[Any], place: int) -> list[float]:
        """Return the places of values, moved sideways so that whiskers do not cover each other."""
        span = self.places[self.values[-1]] - self.places[self.values[0]]
        return [self.places[value] + 0.012 * span * (place - 1) for value in values]

    def label_axis(self, axes: Axes, title: Axes | None = None) -> None:
        """Write the values below an axis, and the setting below it or below ``title``."""
        ticks = [f"{value:g}" for value in self.values]
        axes.set_xticks(list(self.places.values()), ticks)
        scale = " (logarithmic)" if self.logarithmic else ""
        (axes if title is None else title).set_xlabel(self.setting + scale)


def sweep_figure(request: Request) -> Drawn:
    """Draw one panel if one method is swept, else one for each metric; the last shows the time."""
    keys = request.metrics or DEFAULT
    series = request.series()
    device = common_device(series)
    swept = Swept(series)
    together = len(swept.rows) == 1
    panels = 1 if together else len(keys)
    tall = (0.5 * panels + 0.32) * request.width + 0.3
    figure = new_figure(request.width, request.height or tall)
    axes = figure.subplots(
        panels + 1, 1, sharex=True, squeeze=False, height_ratios=[1.0] * panels + [0.55]
    )[:, 0]
    rows: list[dict[str, Any]] = []
    for j, key in enumerate(keys):
        panel, place = (axes[0], j) if together else (axes[j], None)
        rows += _draw_metric(panel, key, swept, place)
    for i, points in enumerate(swept.rows.values()):
        # The only line of a time panel is black: it belongs to no metric.
        x = [swept.places[swept.value(row)] for row in points]
        axes[-1].plot(x, [row.minutes() for row in points], **style.row_style(6 if together else i))
    for panel, key in zip(axes[:-1], keys, strict=False):
        several = together and len(keys) > 1
        panel.set_ylabel("value × 100" if several else style.axis_title(key, short=True))
    axes[-1].set_ylabel(f"{device} minutes")
    axes[-1].set_ylim(0, 1.2 * max(axes[-1].get_ylim()[1], 1e-9))
    for panel in axes:
        panel.grid()
    swept.label_axis(axes[-1])
    handles, names = axes[0].get_legend_handles_labels()
    if len(names) > 1:
        style.legend_below(figure, names, handles)
    intervals = sorted({cells["interval"] for cells in rows if cells["interval"]})
    note = f"Whiskers: 95 % intervals over {' / '.join(intervals)}." if intervals else ""
    thin = " Thin lines: rows without this setting." if swept.flat else ""
    return Drawn(figure, rows, ((note or "No intervals.") + thin,))


def _draw_metric(panel: Axes, key: str, swept: Swept, place: int | None) -> list[dict[str, Any]]:
    """Draw swept methods as lines, other rows as levels; ``place`` is that among the metrics."""
    rows: list[dict[str, Any]] = []
    for i, points in enumerate(swept.rows.values()):
        look, title = i, points[0].record.method.title
        if place is not None:
            look, title = place, METRICS[key].title
        shown = [cells for row in points if (cells := _metric_row(row, key, swept))]
        x = swept.shifted([cells["value"] for cells in shown], look)
        line: Style = style.row_style(look) | {"label": title, "elinewidth": 0.7}
        _errorbar(panel, x, shown, "mean", **line)
        rows += shown
    for i, row in enumerate(swept.flat, start=len(swept.rows)):
        look, title = i, row.title
        if place is not None:
            look, title = place, f"{row.title}, {METRICS[key].short}"
        if cells := _metric_row(row, key, swept):
            line = {"color": COLOURS[look % MOST], "linestyle": style.LINES[(look + 1) % MOST]}
            panel.axhline(100 * cells["mean"], linewidth=0.7, label=title, **line)
            rows.append(cells)
    return rows


def _metric_row(row: Series, key: str, swept: Swept) -> dict[str, Any] | None:
    cells = row.metric_row(key, "mean", **swept.cells(row))
    return None if cells is None else cells | {"minutes": row.minutes()}


def class_sweep_figure(request: Request) -> Drawn:
    """Draw a line for each class; a row without the setting is a broken level line."""
    swept, width = Swept(request.series("classes")), request.width
    if len(swept.rows) > 1:
        raise LmdError(
            f"the classes figure shows one swept method, and {', '.join(swept.rows)} are swept: "
            "choose one with --methods"
        )
    (points,) = swept.rows.values()
    by_tier = {
        tier: [c["class"] for c in points[0].class_rows() if c["tier"] == tier] for tier in TIERS
    }
    by_tier = {tier: names for tier, names in by_tier.items() if names}
    most = max(map(len, by_tier.values()))
    below = 0.14 * (most + len(swept.flat)) + 0.1  # inches of the legends, which have own axes
    figure = new_figure(width, request.height or min(0.36 * width, 2.8) + 0.6 + below)
    ratios = [figure.get_figheight() - below, below]
    panels, legends = figure.subplots(2, len(by_tier), squeeze=False, height_ratios=ratios)
    values = [swept.value(row) for row in points]
    levels = list(zip(swept.flat, cycle(DASHES), strict=False))
    for panel, legend, (tier, names) in zip(panels, legends, by_tier.items(), strict=True):
        for i, name in enumerate(names):
            recalls = [_class(row, name) for row in points]
            line: Style = {"label": legend_name(name, 22), "elinewidth": 0.6}
            line |= style.point_style(i)
            _errorbar(panel, swept.shifted(values, i), recalls, "recall", **line)
            for row, dashes in levels:
                line = {"color": COLOURS[i % MOST], "linewidth": 0.8, "linestyle": dashes}
                panel.axhline(100 * _class(row, name)["recall"], **line)
        for row, dashes in levels:  # for the legend
            line = {"color": GREY, "linewidth": 0.8, "linestyle": dashes}
            panel.plot([], [], label=legend_name(row.title), **line)
        panel.set_title(tier)
        panel.set_ylim(-3, 103)
        panel.grid(axis="y")
        legend.axis("off")
        legend.legend(*panel.get_legend_handles_labels(), loc="upper center", fontsize=6.5)
        swept.label_axis(panel, panels[len(panels) // 2])
        longest = max(len(f"{value:g}") for value in swept.values)
        if longest * len(swept.values) > 10 * width / len(by_tier):
            panel.tick_params(axis="x", rotation=45)
    panels[0].set_ylabel(f"recall on the {points[0].record.part} part, %")
    rows = [cells for row in (*points, *swept.flat) for cells in row.class_rows(**swept.cells(row))]
    level = f" Level lines: {', '.join(row.title for row in swept.flat)}." if swept.flat else ""
    several = any(len(row.runs) > 1 for row in points)
    mean = "; recalls and limits are means over the seeds" if several else ""
    note = f"Whiskers: 95 % intervals of recall over test images (Wilson){mean}.{level}"
    return Drawn(figure, rows, (note,))


def _errorbar(
    axes: Axes, x: Sequence[float], rows: Sequence[dict[str, Any]], column: str, **line: Any
) -> None:
    values = [100 * row[column] for row in rows]
    axes.errorbar(x, values, style.whiskers(rows, column), capsize=1.5, **line)


def _class(row: Series, name: str) -> dict[str, Any]:
    cells = next((cells for cells in row.class_rows() if cells["class"] == name), None)
    if cells is None:
        raise LmdError(f"{row.runs[0].path} has no recall of the class {name!r}")
    return cells


def recall_figure(request: Request) -> Drawn:
    """Draw recall with 95 % intervals against training counts on a logarithmic axis."""
    series, width = request.series("recall"), request.width
    notes: list[str] = []
    if len(series) > MOST:
        if request.methods:
            raise LmdError(
                f"--methods: the recall figure shows at most {MOST} rows, not {len(series)}"
            )
        chosen = _choose_rows(series, request)
        notes.append(
            f"{len(chosen)} of {len(series)} rows ({', '.join(row.key for row in chosen)}): the "
            "reference, the first row of the plan, and the highest balanced accuracies without "
            "ablations; choose others with --methods."
        )
        series = chosen
    figure = new_figure(width, request.height or 0.78 * width)
    axes = figure.add_subplot()
    rows: list[dict[str, Any]] = []
    classes = series[0].class_rows()
    counts = [max(c["training_images"], 1) for c in classes]
    low, high = math.log10(min(counts)), math.log10(max(counts))
    span = (high - low) or 1.0
    for i, row in enumerate(series):
        # Side by side, so that intervals do not cover each other.
        shift = 10 ** (0.016 * span * (i - (len(series) - 1) / 2))
        recalls = row.class_rows()
        x = [max(cells["training_images"], 1) * shift for cells in recalls]
        line: Style = style.row_style(i) | {"label": row.title, "elinewidth": 0.7}
        _errorbar(axes, x, recalls, "recall", **line)
        rows += recalls
    axes.set_xscale("log")
    style.plain_ticks(axes.xaxis)
    axes.set_xlim(10 ** (low - 0.08 * span), 10 ** (high + 0.08 * span))
    axes.set_ylim(-3, 103)
    axes.set_xlabel("training images of the class")
    axes.set_ylabel(f"recall on the {series[0].record.part} part, %")
    axes.grid(axis="y")
    if len(classes) <= NAMED:
        _name_classes(axes, [c["class"] for c in classes], counts, width)
    style.legend_below(figure, [row.title for row in series])
    seeds = sorted({seed for row in series for seed in row.seeds})
    averaged = f", limits averaged over the seeds {', '.join(map(str, seeds))}"
    notes.append(
        "Bars: 95 % intervals of recall over test images (Wilson)"
        f"{averaged if len(seeds) > 1 else ''}. Rows are shifted sideways to keep them apart."
    )
    return Drawn(figure, rows, tuple(notes))


def _choose_rows(series: Sequence[Series], request: Request) -> list[Series]:
    """Choose the reference, the first row of a plan, and the best rows that are no ablations."""
    fixed = {request.study.reference, *request.study.order[:1]}
    candidates = request.without_ablations(series)
    candidates += [row for row in series if row.key in fixed and row not in candidates]
    ranked = sorted(candidates, key=lambda row: (row.key not in fixed, -(row.mean(HEADLINE) or 0)))
    return [row for row in series if row in ranked[:SHOWN]]


def _name_classes(axes: Axes, names: Sequence[str], counts: Sequence[int], width: float) -> None:
    """Write the names of classes with these counts above the axes."""
    left, right = (math.log10(x) for x in axes.get_xlim())
    places = [(math.log10(count) - left) / (right - left) for count in counts]
    moved = spread(places, 0.13 / (0.8 * width), 0.02, 0.98)
    line: Style = {"color": "#999999", "linewidth": 0.4, "clip_on": False}
    text: Style = {"rotation": 45, "rotation_mode": "anchor", "fontsize": 6.5}
    for name, place, at in zip(names, places, moved, strict=True):
        axes.plot([place, at], [1.0, 1.05], transform=axes.transAxes, **line)
        axes.text(at, 1.06, legend_name(name, 22), transform=axes.transAxes, **text)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places at least ``gap`` apart within ``[low, high]``, as little as possible.

    The order stays. If there is not enough room, the places are evenly spaced.

    >>> spread([0.0, 0.1, 5.0], 1.0, 0.0, 10.0)
    [0.0, 1.0, 5.0]
    """
    if len(places) < 2:
        return list(places)
    gap = min(gap, (high - low) / (len(places) - 1))
    steps = gap * np.arange(len(places))
    order = np.argsort(places, kind="stable")
    # Less i gaps, the places must not decrease.
    flat = isotonic_regression(np.array(places)[order] - steps).x
    moved = np.empty(len(places))
    moved[order] = np.clip(flat, low, high - steps[-1]) + steps
    return [float(place) for place in moved]
