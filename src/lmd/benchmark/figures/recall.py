"""Recall of each class against its number of training images, for several methods."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmd.base.errors import LmdError
from lmd.benchmark.figures.labels import spread
from lmd.benchmark.figures.series import Series, group, reference_of, same_data, without_ablations
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, Drawn, legend_below, look, new_figure, plain_ticks
from lmd.benchmark.tables.forms import HEADLINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = len(COLOURS)  # rows that colours and markers can tell apart
SHOWN = 5  # rows of a large benchmark, unless methods are named
NAMED = 14  # more class names than this do not fit above the axes


def recall_figure(
    study: Study, *, methods: Sequence[str] | None, width: float, height: float | None
) -> Drawn:
    """Recall with 95 % intervals; the training counts are on a logarithmic axis."""
    series = group(study, methods)
    same_data(series, "recall")
    notes: list[str] = []
    if len(series) > MOST:
        if methods:
            raise LmdError(
                f"--methods: the recall figure shows at most {MOST} rows, not {len(series)}"
            )
        kept = _chosen(series, study)
        notes.append(
            f"{len(kept)} of {len(series)} rows ({', '.join(one.key for one in kept)}): the "
            "reference, the first row of the plan, and the highest balanced accuracies without "
            "ablations; choose others with --methods."
        )
        series = kept
    figure = new_figure(width, height or 0.78 * width)
    axes = figure.add_subplot()
    counts = [max(point.train, 1) for point in series[0].classes()]
    low, high = math.log10(min(counts)), math.log10(max(counts))
    span = (high - low) or 1.0
    for i, one in enumerate(series):
        # Side by side, so that intervals do not cover each other.
        shift = 10 ** (0.016 * span * (i - (len(series) - 1) / 2))
        _draw(axes, one, shift, look(i))
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_xlim(10 ** (low - 0.08 * span), 10 ** (high + 0.08 * span))
    axes.set_ylim(-3, 103)
    axes.set_xlabel("training images of the class")
    axes.set_ylabel(f"recall on the {series[0].record.part} part, %")
    axes.grid(axis="y")
    _name_classes(axes, series[0], width)
    legend_below(figure, [one.title for one in series])
    seeds = sorted({run.seed for one in series for run in one.runs})
    averaged = f", limits averaged over the seeds {', '.join(map(str, seeds))}"
    notes.append(
        "Bars: 95 % intervals of recall over test images (Wilson)"
        f"{averaged if len(seeds) > 1 else ''}. Rows are shifted sideways to keep them apart."
    )
    return Drawn(figure, _rows(series), tuple(notes))


def _chosen(series: Sequence[Series], study: Study) -> list[Series]:
    """The reference, the first row of a plan, and the best of the others, in the given order.

    Ablations of the reference are left out: the ablation figure has them.
    """
    fixed = {reference_of(series, study), *study.order[:1]}
    others = without_ablations(series, study)
    others += [one for one in series if one.key in fixed and one not in others]
    best = sorted(others, key=lambda one: -(one.mean(HEADLINE) or 0))
    kept = sorted(best, key=lambda one: one.key not in fixed)[:SHOWN]
    return [one for one in series if one in kept]


def _draw(axes: "Axes", one: Series, shift: float, style: dict[str, Any]) -> None:
    points = one.classes()
    below = [100 * (p.recall - p.low) for p in points]
    above = [100 * (p.high - p.recall) for p in points]
    axes.errorbar(
        [max(p.train, 1) * shift for p in points],
        [100 * p.recall for p in points],
        yerr=[below, above],
        label=one.title,
        capsize=1.5,
        elinewidth=0.7,
        **style,
    )


def _name_classes(axes: "Axes", one: Series, width: float) -> None:
    """The names of the classes above the axes, where there is room for them."""
    points = one.classes()
    if len(points) > NAMED:
        return
    left, right = (math.log10(x) for x in axes.get_xlim())
    places = [(math.log10(max(p.train, 1)) - left) / (right - left) for p in points]
    moved = spread(places, 0.13 / (0.8 * width), 0.02, 0.98)
    for point, place, at in zip(points, places, moved, strict=True):
        axes.plot(
            [place, at],
            [1.0, 1.05],
            transform=axes.transAxes,
            color="#999999",
            linewidth=0.4,
            clip_on=False,
        )
        axes.text(
            at,
            1.06,
            point.name if len(point.name) <= 22 else f"{point.name[:21]}…",
            transform=axes.transAxes,
            rotation=45,
            rotation_mode="anchor",
            fontsize=6.5,
        )


def _rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    return [row for one in series for row in one.class_rows()]
