"""The critical-difference diagram: mean ranks of methods, and which of them do not differ."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.benchmark.figures.ranks import LEVEL, Ranking, Test, rank_methods
from lmd.benchmark.figures.series import Series, check_metrics, group, without_ablations
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, Drawn, new_figure
from lmd.scoring.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 0.17  # inches between two labels
NAMES = {"nemenyi": "Friedman and Nemenyi", "wilcoxon": "Wilcoxon signed-rank with Holm"}


def critical_figure(
    study: Study,
    *,
    methods: Sequence[str] | None,
    metric: str,
    test: str,
    blocks: str,
    width: float,
    height: float | None,
    ablations: bool = True,
) -> Drawn:
    """Ranks over blocks: every seed of every data set, or data sets with their seeds averaged."""
    check_metrics([metric])
    if test not in NAMES:
        raise LmdError(f"--test is {test!r}; choose nemenyi or wilcoxon")
    if blocks not in ("seeds", "data"):
        raise LmdError(f"--blocks is {blocks!r}; choose seeds or data")
    series = group(study, methods)
    if not ablations:
        series = without_ablations(series, study)
    titles, names, values, left_out = _values(series, metric, blocks)
    if len(names) < 2 or len(titles) < 2:
        incomplete = f" ({shorten(left_out)} not complete)" if left_out else ""
        raise LmdError(
            "a critical-difference diagram needs at least two methods on at least two blocks "
            f"({'data sets' if blocks == 'data' else 'seeds or data sets'}) that all of them have "
            f"finished; there are {len(titles)} methods on {len(names)}{incomplete}: train more "
            "seeds or data sets, or leave out methods with --methods"
        )
    sign = 1 if METRICS[metric].higher_is_better else -1
    chosen: Test = "nemenyi" if test == "nemenyi" else "wilcoxon"
    found = rank_methods(sign * values, chosen)
    half = (len(titles) + 1) // 2
    tall = height or 0.55 + 0.09 * len(found.cliques) + LINE * half
    figure = new_figure(width, tall)
    figure.set_layout_engine("none")
    _draw(figure.add_subplot(), found, list(titles.values()))
    notes = _notes(found, names, chosen, left_out)
    return Drawn(figure, _rows(found, titles, names, values, metric), notes)


def _values(
    series: Sequence[Series], metric: str, blocks: str
) -> tuple[dict[str, str], list[str], NDArray[np.float64], list[str]]:
    """Titles by method, names of the blocks, and ``values (N, K)``; blocks must be complete."""
    found: dict[str, dict[str, list[float]]] = {}
    titles: dict[str, str] = {}
    sets = list(dict.fromkeys(one.data for one in series))
    for one in series:
        key = one.title if one.values else one.key
        titles[key] = one.title
        source = f"{one.record.data.source} ({sets.index(one.data) + 1})"
        for run in one.runs:
            name = source if blocks == "data" else f"{source}, seed {run.seed}"
            value = one.value(run, metric)
            if value is not None:
                found.setdefault(name, {}).setdefault(key, []).append(value)
    complete = {name: of for name, of in found.items() if set(of) == set(titles)}
    table = [[float(np.mean(of[key])) for key in titles] for of in complete.values()]
    left_out = [name for name in found if name not in complete]
    return titles, list(complete), np.array(table).reshape(len(complete), len(titles)), left_out


def _draw(axes: "Axes", found: Ranking, titles: Sequence[str]) -> None:
    """The axis of ranks on top, bars of methods that do not differ, and labels on both sides.

    Coordinates are inches from the upper left corner.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    wide, tall = figure.get_size_inches()
    axes.set_position((0, 0, 1, 1))
    axes.set_xlim(0, wide)
    axes.set_ylim(-tall, 0)
    axes.axis("off")
    order, methods = np.argsort(found.ranks, kind="stable").tolist(), len(titles)
    half = (methods + 1) // 2
    # Names and ranks need about half an em for each character, and the axis a third of the width.
    texts = [f"{titles[k]} {found.ranks[k]:.2f}" for k in order]
    longest = [max(map(len, of)) for of in (texts[:half], texts[half:])]
    size = min(7.0, 0.6 * wide / (sum(longest) * 0.58 / 72))
    left, right = (0.06 + 0.58 * n * size / 72 for n in longest)
    scale = (wide - left - right - 0.2) / (methods - 1)

    def x(rank: float) -> float:
        return float(left + 0.1 + scale * (rank - 1))

    top = -0.42
    _axis(axes, found, x, top, methods)
    for i, clique in enumerate(found.cliques):
        y = top - 0.08 - 0.09 * i
        ends = [x(float(found.ranks[clique[0]])) - 0.03, x(float(found.ranks[clique[-1]])) + 0.03]
        axes.plot(ends, [y, y], color=COLOURS[1], linewidth=2.6, solid_capstyle="butt")
    first = top - 0.16 - 0.09 * len(found.cliques)
    for place, k in enumerate(order):
        before, rank = place < half, float(found.ranks[k])
        y = first - LINE * (place if before else methods - 1 - place)
        edge = left if before else wide - right
        axes.plot([x(rank), x(rank), edge], [top, y, y], color="#555555", linewidth=0.6)
        words = f"{titles[k]} {rank:.2f}" if before else f"{rank:.2f} {titles[k]}"
        aside = {"ha": "right", "x": edge - 0.03} if before else {"ha": "left", "x": edge + 0.03}
        axes.text(y=y, s=words, va="center", fontsize=size, **aside)


def _axis(
    axes: "Axes", found: Ranking, x: Callable[[float], float], top: float, methods: int
) -> None:
    axes.plot([x(1), x(methods)], [top, top], color="black", linewidth=0.8)
    step = next(n for n in (1, 2, 5, 10, 20, 50) if (x(1 + n) - x(1)) > 0.2 or n == 50)
    ticks = [tick for tick in range(step, methods, step) if x(methods) - x(tick) > 0.2]
    for tick in sorted({1, methods, *(t for t in ticks if x(t) - x(1) > 0.16 or t == 1)}):
        axes.plot([x(tick), x(tick)], [top, top + 0.05], color="black", linewidth=0.8)
        axes.text(x(tick), top + 0.07, str(tick), ha="center", va="bottom", fontsize=7)
    if found.critical is None:
        return
    beyond = 1 + found.critical > methods
    end = x(methods if beyond else 1 + found.critical)
    axes.plot([x(1), end], [-0.17, -0.17], color="black", linewidth=1.2)
    for at in (x(1), end)[: 1 if beyond else 2]:
        axes.plot([at, at], [-0.2, -0.14], color="black", linewidth=1.2)
    words = f"CD = {found.critical:.2f}" + (" (beyond the axis)" if beyond else "")
    axes.text((x(1) + end) / 2, -0.13, words, ha="center", va="bottom", fontsize=7)


def _rows(
    found: Ranking,
    titles: dict[str, str],
    names: Sequence[str],
    values: NDArray[np.float64],
    metric: str,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    keys = list(titles)
    for k, key in enumerate(keys):
        own = [str(i + 1) for i, clique in enumerate(found.cliques) if k in clique]
        about = {"method": key, "title": titles[key], "mean_rank": float(found.ranks[k])}
        about |= {"groups": " ".join(own)}
        for n, name in enumerate(names):
            rows.append(about | {"block": name, metric: float(values[n, k])})
    for (i, j), p in found.pairs.items():
        rows.append({"method": keys[i], "against": keys[j], "p_holm": p})
    return rows


def _notes(
    found: Ranking, names: Sequence[str], test: Test, left_out: Sequence[str]
) -> tuple[str, ...]:
    sets = {name.split(", seed ")[0] for name in names}
    notes = [
        f"Mean ranks over {len(names)} blocks (1 is best); a bar joins methods that do not differ "
        f"at {100 * LEVEL:g} % ({NAMES[test]}; Demsar 2006). Friedman's test: p = {found.p:.2g}."
    ]
    if left_out:
        notes.append(f"Left out, because not every method has finished: {shorten(left_out)}.")
    if found.p >= LEVEL:
        notes.append("Friedman's test finds no difference: do not read one from the ranks.")
    if len(sets) < len(names):
        notes.append(
            "Seeds of one data set are not independent data sets: the result speaks of training "
            "again on these images, not of other data; --blocks data averages them."
        )
    if test == "wilcoxon" and len(names) < 6:
        notes.append("With fewer than 6 blocks, Wilcoxon's test cannot reach 5 %.")
    return tuple(notes)
