"""Draw a metric, or the recall of each class, against a swept setting."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from lmd.base.errors import LmdError
from lmd.benchmark.figures.series import (
    ClassPoint,
    Series,
    axis_title,
    check_metrics,
    group,
    one_device,
    same_data,
)
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    Drawn,
    entry,
    legend_below,
    look,
    new_figure,
)
from lmd.scoring.metrics import METRICS
from lmd.scoring.tiers import TIERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT = ("balanced_accuracy", "macro_f1", "auc")
FACTOR = "imbalance factor"


def sweep_figure(
    study: Study,
    *,
    methods: Sequence[str] | None,
    metrics: Sequence[str] | None,
    width: float,
    height: float | None,
) -> Drawn:
    """One panel if one method is swept, else one for each metric; the last shows the time.

    A row without the swept setting is a horizontal line.
    """
    keys = check_metrics(metrics or DEFAULT)
    series = group(study, methods)
    device = one_device(series)
    setting, swept = swept_setting(series)
    for one in series if setting == FACTOR else ():  # one of several is finished so far
        if one.key not in swept and one.record.data.imbalance_factor is not None:
            swept[one.key] = [one]
    flat = [one for one in series if one.key not in swept]
    values = sorted({value_of(one, setting) for rows in swept.values() for one in rows})
    places, logarithmic = places_of(values)
    together = len(swept) == 1
    panels = 1 if together else len(keys)
    figure = new_figure(width, height or (0.5 * panels + 0.32) * width + 0.3)
    axes = figure.subplots(
        panels + 1, 1, sharex=True, squeeze=False, height_ratios=[1.0] * panels + [0.55]
    )[:, 0]
    rows: list[dict[str, Any]] = []
    titles: list[str] = []
    for j, key in enumerate(keys):
        panel = axes[0 if together else j]
        for i, points in enumerate(swept.values()):
            place = j if together else i
            title = METRICS[key].title if together else points[0].record.method.title
            shift = 0.012 * (places[values[-1]] - places[values[0]]) * (place - 1)
            rows += _line(panel, points, key, setting, place, places, shift, title)
            titles.append(title)
        for i, one in enumerate(flat):
            place = j if together else len(swept) + i
            rows += _flat(panel, one, key, place, named=together)
    for i, points in enumerate(swept.values()):
        # The only line of a time panel is black: it belongs to no metric.
        _times(axes[-1], points, setting, places, look(6) if together else look(i))
    _finish(axes, keys, together, device)
    axes[-1].set_xticks([places[v] for v in values], [_text(v) for v in values])
    axes[-1].set_xlabel(setting + (" (logarithmic)" if logarithmic else ""))
    handles, names = axes[0].get_legend_handles_labels()
    if len(names) > 1:
        legend_below(figure, names, handles)
    kinds = sorted({row["interval"] for row in rows if row["interval"]})
    note = f"Whiskers: 95 % intervals over {' / '.join(kinds)}." if kinds else "No intervals."
    thin = " Thin lines: rows without this setting." if flat else ""
    return Drawn(figure, rows, (note + thin,))


def swept_setting(series: Sequence[Series]) -> tuple[str, dict[str, list[Series]]]:
    """The swept setting, and the rows of each method that has several values of it."""
    by_key: dict[str, list[Series]] = {}
    for one in series:
        by_key.setdefault(one.key, []).append(one)
    several = {key: rows for key, rows in by_key.items() if len(rows) > 1}
    names = list(dict.fromkeys(n for rows in several.values() for one in rows for n in one.values))
    if several and not names:
        names = [FACTOR]
    if len(names) != 1:
        said = f"these runs differ in {', '.join(names)}" if names else "no setting differs"
        raise LmdError(
            f"the sweep figure needs runs of one method that differ in one setting; {said}: give "
            "the benchmark of a grid with a [sweep] of one setting"
        )
    for rows in several.values():
        for one in rows:
            found = value_of(one, names[0])
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise LmdError(
                    f"the sweep figure needs numbers, but {names[0]} is {found!r} in "
                    f"{one.runs[0].where}"
                )
        rows.sort(key=lambda one: float(value_of(one, names[0])))
    return names[0], several


def value_of(one: Series, setting: str) -> Any:
    """The value of the swept setting in a row."""
    return one.record.data.imbalance_factor if setting == FACTOR else one.values[setting]


def places_of(values: Sequence[float]) -> tuple[dict[float, float], bool]:
    """The place of each value on the axis: its logarithm if the values span a factor of 20."""
    logarithmic = values[0] > 0 and values[-1] >= 20 * values[0]
    return {v: math.log10(v) if logarithmic else float(v) for v in values}, logarithmic


def _line(
    panel: "Axes",
    points: Sequence[Series],
    key: str,
    setting: str,
    place: int,
    places: dict[float, float],
    shift: float,
    title: str,
) -> list[dict[str, Any]]:
    rows, x, y, below, above = [], [], [], [], []
    for one in points:
        found, kind = one.estimate(key)
        if found is None:
            continue
        value = value_of(one, setting)
        x.append(places[value] + shift)
        y.append(100 * found.mean)
        below.append(100 * (found.mean - (found.mean if found.low is None else found.low)))
        above.append(100 * ((found.mean if found.high is None else found.high) - found.mean))
        rows.append(_row(one, key, setting, value, found, kind))
    style = look(place)
    panel.errorbar(x, y, [below, above], label=title, capsize=1.5, elinewidth=0.7, **style)
    return rows


def _flat(panel: "Axes", one: Series, key: str, place: int, *, named: bool) -> list[dict[str, Any]]:
    found, kind = one.estimate(key)
    if found is None:
        return []
    n = len(COLOURS)
    title = f"{one.title}, {METRICS[key].short}" if named else one.title
    panel.axhline(
        100 * found.mean,
        color=COLOURS[place % n],
        linestyle=LINES[(place + 1) % n],
        linewidth=0.7,
        label=title,
    )
    return [_row(one, key, "", None, found, kind)]


def _times(
    panel: "Axes", points: Sequence[Series], setting: str, places: dict[float, float], style: Any
) -> None:
    x = [places[value_of(one, setting)] for one in points]
    panel.plot(x, [one.minutes() for one in points], **style)


def _finish(axes: Any, keys: Sequence[str], together: bool, device: str) -> None:
    for panel, key in zip(axes[:-1], keys, strict=False):
        panel.set_ylabel(
            "value × 100" if together and len(keys) > 1 else axis_title(key, short=True)
        )
    axes[-1].set_ylabel(f"{device} minutes")
    axes[-1].set_ylim(0, 1.2 * max(axes[-1].get_ylim()[1], 1e-9))
    for panel in axes:
        panel.grid()


def _row(one: Series, key: str, setting: str, value: Any, found: Any, kind: str) -> dict[str, Any]:
    return {
        "method": one.key,
        "title": one.title,
        "setting": setting,
        "value": value,
        "metric": key,
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
        "sd_over_seeds": found.sd,
        "seeds": len(one.runs),
        "interval": kind,
        "minutes": one.minutes(),
    }


def _text(value: float) -> str:
    return f"{value:g}"


DASHES = ("--", ":", "-.")  # of rows without the setting


def class_sweep_figure(
    study: Study, *, methods: Sequence[str] | None, width: float, height: float | None
) -> Drawn:
    """A line for each class; a row without the setting is a broken level line in its colour."""
    series = group(study, methods)
    same_data(series, "classes")
    setting, swept = swept_setting(series)
    if len(swept) > 1:
        raise LmdError(
            f"the classes figure shows one swept method, and {', '.join(swept)} are swept: choose "
            "one with --methods"
        )
    (points,) = swept.values()
    flat = [one for one in series if one.key not in swept]
    level = list(zip(flat, cycle(DASHES), strict=False))
    values = [value_of(one, setting) for one in points]
    places, logarithmic = places_of(values)
    names = [(point.name, point.tier) for point in points[0].classes()]
    tiers = [tier for tier in TIERS if any(tier == of for _, of in names)]
    most = max(sum(of == tier for _, of in names) for tier in tiers)
    below = 0.14 * (most + len(flat)) + 0.1  # inches of the legends, which have axes of their own
    figure = new_figure(width, height or min(0.36 * width, 2.8) + 0.6 + below)
    ratios = [figure.get_figheight() - below, below]
    panels, keys = figure.subplots(2, len(tiers), squeeze=False, height_ratios=ratios)
    for panel, key, tier in zip(panels, keys, tiers, strict=True):
        own = [name for name, of in names if of == tier]
        for i, name in enumerate(own):
            _class_line(panel, points, name, i, [places[value] for value in values])
            for one, dashes in level:
                high = 100 * _of(one, name).recall
                panel.axhline(high, color=COLOURS[i % 7], linewidth=0.8, linestyle=dashes)
        for one, dashes in level:  # one entry of the legend
            panel.plot([], [], color=GREY, linewidth=0.8, linestyle=dashes, label=entry(one.title))
        panel.set_title(tier)
        panel.set_ylim(-3, 103)
        panel.grid(axis="y")
        key.axis("off")
        key.legend(*panel.get_legend_handles_labels(), loc="upper center", fontsize=6.5)
        panel.set_xticks([places[v] for v in values], [f"{v:g}" for v in values])
        if max(len(f"{v:g}") for v in values) * len(values) > 10 * width / len(tiers):
            panel.tick_params(axis="x", rotation=45)
    panels[0].set_ylabel(f"recall on the {points[0].record.part} part, %")
    panels[len(panels) // 2].set_xlabel(setting + (" (logarithmic)" if logarithmic else ""))
    lines = f" Level lines: {', '.join(one.title for one in flat)}." if flat else ""
    several = any(len(one.runs) > 1 for one in points)
    mean = "; recalls and limits are means over the seeds" if several else ""
    note = f"Whiskers: 95 % intervals of recall over test images (Wilson){mean}.{lines}"
    return Drawn(figure, _rows([*points, *flat], setting, swept), (note,))


def _class_line(
    panel: "Axes", points: Sequence[Series], name: str, place: int, x: Sequence[float]
) -> None:
    found = [_of(one, name) for one in points]
    n, span = len(COLOURS), max(x) - min(x)
    # Side by side, so that whiskers do not cover each other.
    shifted = [at + 0.012 * span * (place - 1) for at in x]
    y = [100 * point.recall for point in found]
    below = [100 * (point.recall - point.low) for point in found]
    above = [100 * (point.high - point.recall) for point in found]
    panel.errorbar(
        shifted,
        y,
        [below, above],
        label=entry(name if len(name) <= 22 else f"{name[:21]}…"),
        color=COLOURS[place % n],
        marker=MARKERS[(place + place // n) % n],
        capsize=1.5,
        elinewidth=0.6,
    )


def _of(one: Series, name: str) -> ClassPoint:
    found = next((point for point in one.classes() if point.name == name), None)
    if found is None:
        raise LmdError(f"{one.runs[0].where} has no recall of the class {name!r}")
    return found


def _rows(
    series: Sequence[Series], setting: str, swept: dict[str, list[Series]]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for one in series:
        is_swept = one.key in swept
        at: dict[str, Any] = {
            "method": one.key,
            "title": one.title,
            "setting": setting if is_swept else "",
        }
        at["value"] = value_of(one, setting) if is_swept else None
        rows += [at | row for row in one.class_rows()]
    return rows
