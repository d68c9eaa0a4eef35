"""Draw a metric, or the recall of each class, against a swept setting or the training images."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from lmd.base.errors import LmdError
from lmd.benchmark.figures.series import (
    ClassRecall,
    Request,
    Series,
    Study,
    check_metrics,
    check_same_data,
    common_device,
    make_series,
    without_ablations,
)
from lmd.benchmark.figures.style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    Drawn,
    Style,
    axis_title,
    legend_below,
    legend_name,
    new_figure,
    plain_ticks,
    row_style,
    whiskers,
)
from lmd.benchmark.tables.forms import HEADLINE
from lmd.scoring.metrics import METRICS
from lmd.scoring.tiers import TIERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT = ("balanced_accuracy", "macro_f1", "auc")
FACTOR = "imbalance factor"
DASHES = ("--", ":", "-.")  # of rows without the setting
MOST = len(COLOURS)  # rows that colours and markers can tell apart
SHOWN = 5  # rows of a large benchmark, unless methods are named
NAMED = 14  # more class names than this do not fit above the axes


class Swept:
    """The swept setting, and the rows that have several values of it, by method.

    ``flat`` are the rows without the setting; ``places`` are those of the values on the axis, their
    logarithms if the values span a factor of 20.
    """

    def __init__(self, series: Sequence[Series]) -> None:
        by_key: dict[str, list[Series]] = {}
        for one in series:
            by_key.setdefault(one.key, []).append(one)
        self.rows = {key: rows for key, rows in by_key.items() if len(rows) > 1}
        self.setting = _swept_setting([one for rows in self.rows.values() for one in rows])
        for rows in self.rows.values():
            rows.sort(key=self.value)
        for one in series if self.setting == FACTOR else ():  # one of several is finished so far
            if one.key not in self.rows and one.record.data.imbalance_factor is not None:
                self.rows[one.key] = [one]
        self.flat = [one for one in series if one.key not in self.rows]
        self.values = sorted({self.value(one) for rows in self.rows.values() for one in rows})
        self.logarithmic = self.values[0] > 0 and self.values[-1] >= 20 * self.values[0]
        places = [math.log10(v) if self.logarithmic else float(v) for v in self.values]
        self.places = dict(zip(self.values, places, strict=True))

    def value(self, one: Series) -> Any:
        """Return the value of the setting in a row."""
        if self.setting == FACTOR:
            value: Any = one.record.data.imbalance_factor
        else:
            value = one.values[self.setting]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LmdError(
                f"the sweep figure needs numbers, but {self.setting} is {value!r} in "
                f"{one.runs[0].where}"
            )
        return value

    def shifted(self, rows: Sequence[Series], place: int) -> list[float]:
        """Return the places of rows, moved sideways so that whiskers do not cover each other."""
        span = self.places[self.values[-1]] - self.places[self.values[0]]
        return [self.places[self.value(one)] + 0.012 * span * (place - 1) for one in rows]

    def label_axis(self, axes: "Axes", title: "Axes | None" = None) -> None:
        """Write the values below an axis, and the setting below it or below ``title``."""
        ticks = [f"{value:g}" for value in self.values]
        axes.set_xticks(list(self.places.values()), ticks)
        scale = " (logarithmic)" if self.logarithmic else ""
        (axes if title is None else title).set_xlabel(self.setting + scale)


def _swept_setting(series: Sequence[Series]) -> str:
    names = list(dict.fromkeys(name for one in series for name in one.values))
    if series and not names:
        return FACTOR
    if len(names) != 1:
        differ = f"these runs differ in {', '.join(names)}" if names else "no setting differs"
        raise LmdError(
            f"the sweep figure needs runs of one method that differ in one setting; {differ}: give "
            "the benchmark of a grid with a [sweep] of one setting"
        )
    return names[0]


def sweep_figure(request: Request) -> Drawn:
    """Draw one panel if one method is swept, else one for each metric; the last shows the time.

    A row without the swept setting is a horizontal line.
    """
    keys = check_metrics(request.metrics or DEFAULT)
    series = make_series(request.study, request.methods)
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
        panel = axes[0 if together else j]
        for i, points in enumerate(swept.rows.values()):
            title = METRICS[key].title if together else points[0].record.method.title
            rows += _draw_line(panel, points, key, swept, j if together else i, title)
        for i, one in enumerate(swept.flat):
            place = j if together else len(swept.rows) + i
            rows += _draw_level(panel, one, key, place, named=together)
    for i, points in enumerate(swept.rows.values()):
        # The only line of a time panel is black: it belongs to no metric.
        style = row_style(6 if together else i)
        x = [swept.places[swept.value(one)] for one in points]
        axes[-1].plot(x, [one.minutes() for one in points], **style)
    for panel, key in zip(axes[:-1], keys, strict=False):
        several = together and len(keys) > 1
        panel.set_ylabel("value × 100" if several else axis_title(key, short=True))
    axes[-1].set_ylabel(f"{device} minutes")
    axes[-1].set_ylim(0, 1.2 * max(axes[-1].get_ylim()[1], 1e-9))
    for panel in axes:
        panel.grid()
    swept.label_axis(axes[-1])
    handles, names = axes[0].get_legend_handles_labels()
    if len(names) > 1:
        legend_below(figure, names, handles)
    intervals = sorted({row["interval"] for row in rows if row["interval"]})
    note = f"Whiskers: 95 % intervals over {' / '.join(intervals)}." if intervals else ""
    thin = " Thin lines: rows without this setting." if swept.flat else ""
    return Drawn(figure, rows, ((note or "No intervals.") + thin,))


def _draw_line(
    panel: "Axes", points: Sequence[Series], key: str, swept: Swept, place: int, title: str
) -> list[dict[str, Any]]:
    shown = [one for one in points if one.mean(key) is not None]
    rows = [_metric_row(one, key, swept.setting, swept.value(one)) for one in shown]
    panel.errorbar(
        swept.shifted(shown, place),
        [100 * row["mean"] for row in rows],
        whiskers([(row["mean"], row["low"], row["high"]) for row in rows]),
        label=title,
        capsize=1.5,
        elinewidth=0.7,
        **row_style(place),
    )
    return rows


def _draw_level(
    panel: "Axes", one: Series, key: str, place: int, *, named: bool
) -> list[dict[str, Any]]:
    if one.mean(key) is None:
        return []
    row = _metric_row(one, key, "", None)
    panel.axhline(
        100 * row["mean"],
        color=COLOURS[place % MOST],
        linestyle=LINES[(place + 1) % MOST],
        linewidth=0.7,
        label=f"{one.title}, {METRICS[key].short}" if named else one.title,
    )
    return [row]


def _metric_row(one: Series, key: str, setting: str, value: Any) -> dict[str, Any]:
    estimate, interval = one.estimate(key)
    assert estimate is not None
    return {
        "method": one.key,
        "title": one.title,
        "setting": setting,
        "value": value,
        "metric": key,
        "mean": estimate.mean,
        "low": estimate.low,
        "high": estimate.high,
        "sd_over_seeds": estimate.sd,
        "seeds": len(one.runs),
        "interval": interval,
        "minutes": one.minutes(),
    }


def class_sweep_figure(request: Request) -> Drawn:
    """Draw a line for each class; a row without the setting is a broken level line."""
    series, width = make_series(request.study, request.methods), request.width
    check_same_data(series, "classes")
    swept = Swept(series)
    if len(swept.rows) > 1:
        raise LmdError(
            f"the classes figure shows one swept method, and {', '.join(swept.rows)} are swept: "
            "choose one with --methods"
        )
    (points,) = swept.rows.values()
    classes = points[0].classes()
    tiers = [tier for tier in TIERS if any(tier == one.tier for one in classes)]
    most = max(sum(one.tier == tier for one in classes) for tier in tiers)
    below = 0.14 * (most + len(swept.flat)) + 0.1  # inches of the legends, which have own axes
    figure = new_figure(width, request.height or min(0.36 * width, 2.8) + 0.6 + below)
    ratios = [figure.get_figheight() - below, below]
    panels, legends = figure.subplots(2, len(tiers), squeeze=False, height_ratios=ratios)
    for panel, legend, tier in zip(panels, legends, tiers, strict=True):
        for i, name in enumerate(one.name for one in classes if one.tier == tier):
            x, recalls = swept.shifted(points, i), [_class(one, name) for one in points]
            style: Style = {"color": COLOURS[i % MOST], "marker": MARKERS[(i + i // MOST) % MOST]}
            _draw_recalls(panel, x, recalls, label=legend_name(name, 22), elinewidth=0.6, **style)
            for one, dashes in zip(swept.flat, cycle(DASHES), strict=False):
                recall = 100 * _class(one, name).recall
                panel.axhline(recall, color=COLOURS[i % MOST], linewidth=0.8, linestyle=dashes)
        for one, dashes in zip(swept.flat, cycle(DASHES), strict=False):  # for the legend
            style = {"color": GREY, "linewidth": 0.8, "linestyle": dashes}
            panel.plot([], [], label=legend_name(one.title), **style)
        panel.set_title(tier)
        panel.set_ylim(-3, 103)
        panel.grid(axis="y")
        legend.axis("off")
        legend.legend(*panel.get_legend_handles_labels(), loc="upper center", fontsize=6.5)
        swept.label_axis(panel, panels[len(panels) // 2])
        longest = max(len(f"{value:g}") for value in swept.values)
        if longest * len(swept.values) > 10 * width / len(tiers):
            panel.tick_params(axis="x", rotation=45)
    panels[0].set_ylabel(f"recall on the {points[0].record.part} part, %")
    rows: list[dict[str, Any]] = []
    for one in (*points, *swept.flat):
        at = {"method": one.key, "title": one.title, "setting": "", "value": None}
        if one.key in swept.rows:
            at |= {"setting": swept.setting, "value": swept.value(one)}
        rows += [at | row for row in one.class_rows()]
    level = f" Level lines: {', '.join(one.title for one in swept.flat)}." if swept.flat else ""
    several = any(len(one.runs) > 1 for one in points)
    mean = "; recalls and limits are means over the seeds" if several else ""
    note = f"Whiskers: 95 % intervals of recall over test images (Wilson){mean}.{level}"
    return Drawn(figure, rows, (note,))


def _draw_recalls(
    axes: "Axes", x: Sequence[float], recalls: Sequence[ClassRecall], **style: Any
) -> None:
    limits = whiskers([(one.recall, one.low, one.high) for one in recalls])
    axes.errorbar(x, [100 * one.recall for one in recalls], limits, capsize=1.5, **style)


def _class(one: Series, name: str) -> ClassRecall:
    recall = next((recall for recall in one.classes() if recall.name == name), None)
    if recall is None:
        raise LmdError(f"{one.runs[0].where} has no recall of the class {name!r}")
    return recall


def recall_figure(request: Request) -> Drawn:
    """Draw recall with 95 % intervals against training counts on a logarithmic axis."""
    study, width = request.study, request.width
    series = make_series(study, request.methods)
    check_same_data(series, "recall")
    notes: list[str] = []
    if len(series) > MOST:
        if request.methods:
            raise LmdError(
                f"--methods: the recall figure shows at most {MOST} rows, not {len(series)}"
            )
        chosen = _choose_rows(series, study)
        notes.append(
            f"{len(chosen)} of {len(series)} rows ({', '.join(one.key for one in chosen)}): the "
            "reference, the first row of the plan, and the highest balanced accuracies without "
            "ablations; choose others with --methods."
        )
        series = chosen
    figure = new_figure(width, request.height or 0.78 * width)
    axes = figure.add_subplot()
    counts = [max(one.train, 1) for one in series[0].classes()]
    low, high = math.log10(min(counts)), math.log10(max(counts))
    span = (high - low) or 1.0
    for i, one in enumerate(series):
        # Side by side, so that intervals do not cover each other.
        shift = 10 ** (0.016 * span * (i - (len(series) - 1) / 2))
        recalls = one.classes()
        x = [max(recall.train, 1) * shift for recall in recalls]
        _draw_recalls(axes, x, recalls, label=one.title, elinewidth=0.7, **row_style(i))
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_xlim(10 ** (low - 0.08 * span), 10 ** (high + 0.08 * span))
    axes.set_ylim(-3, 103)
    axes.set_xlabel("training images of the class")
    axes.set_ylabel(f"recall on the {series[0].record.part} part, %")
    axes.grid(axis="y")
    _name_classes(axes, series[0].classes(), width)
    legend_below(figure, [one.title for one in series])
    seeds = sorted({run.seed for one in series for run in one.runs})
    averaged = f", limits averaged over the seeds {', '.join(map(str, seeds))}"
    notes.append(
        "Bars: 95 % intervals of recall over test images (Wilson)"
        f"{averaged if len(seeds) > 1 else ''}. Rows are shifted sideways to keep them apart."
    )
    return Drawn(figure, [row for one in series for row in one.class_rows()], tuple(notes))


def _choose_rows(series: Sequence[Series], study: Study) -> list[Series]:
    """The reference, the first row of a plan, and the best of the others, in the given order.

    Ablations of the reference are left out: the ablation figure has them.
    """
    fixed = {study.reference, *study.order[:1]}
    candidates = without_ablations(series, study)
    candidates += [one for one in series if one.key in fixed and one not in candidates]
    best = sorted(candidates, key=lambda one: -(one.mean(HEADLINE) or 0))
    chosen = sorted(best, key=lambda one: one.key not in fixed)[:SHOWN]
    return [one for one in series if one in chosen]


def _name_classes(axes: "Axes", classes: Sequence[ClassRecall], width: float) -> None:
    """The names of the classes above the axes, where there is room for them."""
    if len(classes) > NAMED:
        return
    left, right = (math.log10(x) for x in axes.get_xlim())
    places = [(math.log10(max(one.train, 1)) - left) / (right - left) for one in classes]
    moved = spread(places, 0.13 / (0.8 * width), 0.02, 0.98)
    for one, place, at in zip(classes, places, moved, strict=True):
        line: Style = {"color": "#999999", "linewidth": 0.4, "clip_on": False}
        axes.plot([place, at], [1.0, 1.05], transform=axes.transAxes, **line)
        axes.text(
            at,
            1.06,
            legend_name(one.name, 22),
            transform=axes.transAxes,
            rotation=45,
            rotation_mode="anchor",
            fontsize=6.5,
        )


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places at least ``gap`` apart within ``[low, high]``, as little as possible.

    The order stays. If there is not enough room, the places are evenly spaced.

    >>> spread([0.0, 0.1, 5.0], 1.0, 0.0, 10.0)
    [0.0, 1.0, 5.0]
    """
    from scipy.optimize import isotonic_regression

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
