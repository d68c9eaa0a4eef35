"""Each row minus the reference, on the same test images, with paired intervals."""

import math
from collections.abc import Sequence

from lmd.base.errors import LmdError
from lmd.benchmark.figures.series import (
    RESAMPLES,
    Series,
    axis_title,
    check_metrics,
    group,
    reference_row,
    same_data,
)
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, GREY, Drawn, new_figure
from lmd.scoring.intervals import Difference
from lmd.scoring.metrics import METRICS


def difference_figure(
    study: Study,
    *,
    methods: Sequence[str] | None,
    reference: str | None,
    metric: str,
    width: float,
    height: float | None,
) -> Drawn:
    """One line for each row, the best on top; ablations of the reference are below the others."""
    check_metrics([metric])
    everything = group(study)
    same_data(everything, "difference")
    main = reference_row(everything, study, reference)
    if main is None:
        raise LmdError("these runs have no reference row: name one with --reference")
    series = [one for one in group(study, methods) if one.key != main.key]
    found = [(one, gap) for one in series if (gap := one.difference(main, metric)) is not None]
    if not found:
        raise LmdError(
            f"no row can be compared with {main.title} in {metric}: differences need the "
            "predictions of both rows on the same test images, and a common seed"
        )
    sign = -1 if METRICS[metric].higher_is_better else 1
    ordered = sorted(found, key=lambda pair: (pair[0].key in study.own, sign * pair[1].value))
    figure = new_figure(width, height or 0.75 + 0.15 * len(ordered))
    axes = figure.add_subplot()
    axes.axvline(0, color="#555555", linewidth=0.8, zorder=1)
    for place, (one, gap) in enumerate(ordered):
        certain = gap.low > 0 or gap.high < 0
        tone = COLOURS[1 if one.key in study.own else 0]
        axes.plot([100 * gap.low, 100 * gap.high], [place, place], color=tone, zorder=2)
        axes.plot(
            100 * gap.value,
            place,
            marker="D" if one.key in study.own else "o",
            color=tone,
            markerfacecolor=tone if certain else "white",
            zorder=3,
        )
    others = sum(one.key not in study.own for one, _ in ordered)
    if 0 < others < len(ordered):
        axes.axhline(others - 0.5, color=GREY, linewidth=0.5)
    axes.set_yticks(range(len(ordered)), [one.title for one, _ in ordered])
    axes.set_ylim(len(ordered) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    title, percent = axis_title(metric), ", %"
    if title.endswith(percent):
        words = f"{title.removesuffix(percent)} minus that of {main.title}, points"
    else:
        words = f"{title}, minus that of {main.title}"
    figure.supxlabel(words, fontsize=8)
    axes.grid(axis="x")
    return Drawn(figure, [_row(one, gap, metric, main) for one, gap in ordered], _notes(ordered))


def _row(one: Series, gap: Difference, metric: str, main: Series) -> dict[str, object]:
    return {
        "method": one.key,
        "title": one.title,
        "reference": main.key,
        "metric": metric,
        "difference": gap.value,
        "low": _known(gap.low),
        "high": _known(gap.high),
        "p": _known(gap.p_value),
        "seeds": len({run.seed for run in one.runs} & {run.seed for run in main.runs}),
    }


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _notes(ordered: Sequence[tuple[Series, Difference]]) -> tuple[str, ...]:
    several = any(len(one.runs) > 1 for one, _ in ordered)
    over = "the mean over common seeds on " if several else ""
    why = "a class has too few images, or all resamples agree"
    missing = (f"A mark without a line has no interval: {why}.",)
    return (
        f"Lines: 95 % intervals of {over}{RESAMPLES} paired resamples of the test images; filled "
        "marks: zero is outside. The intervals are not corrected for the number of rows (`lmd "
        "table` has p-values with Holm's correction) and do not cover training again.",
        *(missing if any(_known(gap.low) is None for _, gap in ordered) else ()),
    )
