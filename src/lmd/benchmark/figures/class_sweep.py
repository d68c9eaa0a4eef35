"""Recall of each class against a swept setting: one panel for head, medium and tail."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from lmd.base.errors import LmdError
from lmd.benchmark.figures.series import ClassPoint, Series, group, same_data
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, GREY, MARKERS, Drawn, entry, new_figure
from lmd.benchmark.figures.sweep import places_of, swept_setting, value_of
from lmd.scoring.tiers import TIERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
            _line(panel, points, name, i, [places[value] for value in values])
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


def _line(
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
