"""Draw the critical-difference diagram: mean ranks of methods, and which do not differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.benchmark.figures.series import Request, Series
from lmd.benchmark.figures.style import COLOURS, Drawn, Style, new_figure
from lmd.scoring.differences import holm
from lmd.scoring.metrics import METRICS
from lmd.scoring.proportions import Floats

LEVEL = 0.05
LINE = 0.17  # inches between two labels
NAMES = {"nemenyi": "Friedman and Nemenyi", "wilcoxon": "Wilcoxon signed-rank with Holm"}


@dataclass(frozen=True)
class Ranking:
    """Mean ranks ``(K,)``, 1 is best; ``p`` is Friedman's test in the form of Iman.

    ``critical`` is Nemenyi's difference of mean ranks, ``pairs`` the corrected p-value of each
    pair of indices; both as far as the test has them. ``cliques`` are sets of indices, from best
    to worst, in which no two methods differ.
    """

    ranks: Floats
    p: float
    critical: float | None
    pairs: dict[tuple[int, int], float]
    cliques: list[tuple[int, ...]]


def mean_ranks(values: Floats) -> Floats:
    """Return the mean rank of each column of ``values (N, K)``; the highest value has rank 1.

    >>> mean_ranks(np.array([[0.9, 0.5, 0.5], [0.8, 0.9, 0.1]])).tolist()
    [1.5, 1.75, 2.75]
    """
    ranks: Floats = stats.rankdata(-values, axis=1).mean(0)
    return ranks


def friedman(ranks: Floats, blocks: int) -> float:
    """Return the p-value of Friedman's test by Iman and Davenport (Demsar 2006, section 3.2.2)."""
    k = len(ranks)
    chi = 12 * blocks / (k * (k + 1)) * (float((ranks**2).sum()) - k * (k + 1) ** 2 / 4)
    rest = blocks * (k - 1) - chi
    if rest <= 1e-9 * blocks:  # the same order in every block: the share of such outcomes
        return float(math.factorial(k)) ** (1 - blocks)
    return float(stats.f.sf((blocks - 1) * chi / rest, k - 1, (k - 1) * (blocks - 1)))


def nemenyi_difference(methods: int, blocks: int) -> float:
    """Return the critical difference of ranks at 5 % (Nemenyi 1963; Demsar 2006, section 3.2.2)."""
    # The studentised range with infinite degrees of freedom, over the square root of two.
    q = float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def wilcoxon_holm(values: Floats) -> dict[tuple[int, int], float]:
    """Return Wilcoxon's p-value of each pair of columns, corrected by Holm (Benavoli 2016)."""
    pairs = {}
    for i, j in combinations(range(values.shape[1]), 2):
        gaps = values[:, i] - values[:, j]
        pairs[i, j] = float(stats.wilcoxon(gaps).pvalue) if np.any(gaps != 0) else 1.0
    return dict(zip(pairs, holm(list(pairs.values())).tolist(), strict=True))


def rank_methods(values: Floats, test: str) -> Ranking:
    """Compare the columns of ``values (N, K)``, higher is better."""
    blocks, methods = values.shape
    if blocks < 2 or methods < 2:
        raise LmdError(f"ranks need at least two methods on two blocks; got {methods} on {blocks}")
    ranks = mean_ranks(values)
    critical = nemenyi_difference(methods, blocks) if test == "nemenyi" else None
    pairs = wilcoxon_holm(values) if test == "wilcoxon" else {}

    def alike(i: int, j: int) -> bool:
        if critical is not None:
            return bool(abs(ranks[i] - ranks[j]) <= critical)
        return pairs[min(i, j), max(i, j)] >= LEVEL

    # The longest stretches of the order, of two or more, in which every pair is alike.
    order = np.argsort(ranks, kind="stable").tolist()
    cliques: list[tuple[int, ...]] = []
    for start in range(methods):
        end = start + 1
        while end < methods and all(alike(k, order[end]) for k in order[start:end]):
            end += 1
        stretch = tuple(order[start:end])
        if len(stretch) > 1 and not any(set(stretch) <= set(other) for other in cliques):
            cliques.append(stretch)
    return Ranking(ranks, friedman(ranks, blocks), critical, pairs, cliques)


@dataclass(frozen=True)
class Blocks:
    """Complete blocks: ``values (N, K)`` of the methods in ``titles``; ``left_out`` lack some."""

    titles: dict[str, str]
    names: list[str]
    values: Floats
    left_out: list[str]


def critical_figure(
    request: Request, *, test: str = "nemenyi", blocks: str = "seeds", ablations: bool = True
) -> Drawn:
    """Draw ranks over blocks: seeds of all data sets, or data sets with their seeds averaged."""
    metric = request.metric
    if test not in NAMES:
        raise LmdError(f"--test is {test!r}; choose nemenyi or wilcoxon")
    if blocks not in ("seeds", "data"):
        raise LmdError(f"--blocks is {blocks!r}; choose seeds or data")
    series = request.series()
    if not ablations:
        series = request.without_ablations(series)
    complete = _complete_blocks(series, metric, blocks)
    titles, left_out = complete.titles, complete.left_out
    if len(complete.names) < 2 or len(titles) < 2:
        incomplete = f" ({shorten(left_out)} not complete)" if left_out else ""
        raise LmdError(
            "a critical-difference diagram needs at least two methods on at least two blocks "
            f"({'data sets' if blocks == 'data' else 'seeds or data sets'}) that all of them have "
            f"finished; there are {len(titles)} methods on {len(complete.names)}{incomplete}: "
            "train more seeds or data sets, or leave out methods with --methods"
        )
    sign = 1 if METRICS[metric].higher_is_better else -1
    ranking = rank_methods(sign * complete.values, test)
    tall = 0.55 + 0.09 * len(ranking.cliques) + LINE * ((len(titles) + 1) // 2)
    figure = new_figure(request.width, request.height or tall)
    figure.set_layout_engine("none")
    _draw(figure.add_axes((0, 0, 1, 1)), ranking, list(titles.values()))
    rows: list[dict[str, Any]] = []
    keys = list(titles)
    for k, key in enumerate(keys):
        groups = [str(i + 1) for i, clique in enumerate(ranking.cliques) if k in clique]
        row = {"method": key, "title": titles[key], "mean_rank": float(ranking.ranks[k])}
        row |= {"groups": " ".join(groups)}
        for name, value in zip(complete.names, complete.values[:, k].tolist(), strict=True):
            rows.append(row | {"block": name, metric: value})
    for (i, j), p in ranking.pairs.items():
        rows.append({"method": keys[i], "against": keys[j], "p_holm": p})
    return Drawn(figure, rows, _notes(ranking, complete, test))


def _complete_blocks(series: Sequence[Series], metric: str, blocks: str) -> Blocks:
    """Return the mean of each method in each block that all of them have."""
    by_block: dict[str, dict[str, list[float]]] = {}
    titles: dict[str, str] = {}
    sets = list(dict.fromkeys(row.record.data.fingerprint for row in series))
    for row in series:
        key, data = row.title if row.values else row.key, row.record.data
        titles[key] = row.title
        source = f"{data.source} ({sets.index(data.fingerprint) + 1})"
        for run, seed in zip(row.runs, row.seeds, strict=True):
            name = source if blocks == "data" else f"{source}, seed {seed}"
            estimate = run.metrics.get(metric)
            if estimate is not None and estimate.value is not None:
                by_block.setdefault(name, {}).setdefault(key, []).append(estimate.value)
    names = [name for name, values in by_block.items() if set(values) == set(titles)]
    means = [[float(np.mean(by_block[name][key])) for key in titles] for name in names]
    table = np.array(means).reshape(len(names), len(titles))
    return Blocks(titles, names, table, [name for name in by_block if name not in names])


def _draw(axes: Axes, ranking: Ranking, titles: Sequence[str]) -> None:
    """Draw the axis of ranks, bars of methods that do not differ, and labels on both sides.

    Coordinates are inches from the upper left corner.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    wide, tall = figure.get_size_inches()
    axes.set_xlim(0, wide)
    axes.set_ylim(-tall, 0)
    axes.axis("off")
    order, methods = np.argsort(ranking.ranks, kind="stable").tolist(), len(titles)
    half = (methods + 1) // 2
    # Names and ranks need about half an em for each character, and the axis a third of the width.
    lengths = [len(f"{titles[k]} {ranking.ranks[k]:.2f}") for k in order]
    longest = [max(lengths[:half]), max(lengths[half:])]
    size = min(7.0, 0.6 * wide / (sum(longest) * 0.58 / 72))
    left, right = (0.06 + 0.58 * n * size / 72 for n in longest)
    scale = (wide - left - right - 0.2) / (methods - 1)

    def x(rank: float) -> float:
        return float(left + 0.1 + scale * (rank - 1))

    top = -0.42
    _draw_axis(axes, ranking.critical, x, top, methods)
    for i, clique in enumerate(ranking.cliques):
        y = top - 0.08 - 0.09 * i
        best, worst = (float(ranking.ranks[k]) for k in (clique[0], clique[-1]))
        bar: Style = {"color": COLOURS[1], "linewidth": 2.6, "solid_capstyle": "butt"}
        axes.plot([x(best) - 0.03, x(worst) + 0.03], [y, y], **bar)
    first = top - 0.16 - 0.09 * len(ranking.cliques)
    for place, k in enumerate(order):
        rank, is_left = float(ranking.ranks[k]), place < half
        y = first - LINE * (place if is_left else methods - 1 - place)
        edge, at = (left, left - 0.03) if is_left else (wide - right, wide - right + 0.03)
        label = f"{titles[k]} {rank:.2f}" if is_left else f"{rank:.2f} {titles[k]}"
        axes.plot([x(rank), x(rank), edge], [top, y, y], color="#555555", linewidth=0.6)
        axes.text(at, y, label, ha="right" if is_left else "left", va="center", fontsize=size)


def _draw_axis(
    axes: Axes, critical: float | None, x: Callable[[float], float], top: float, methods: int
) -> None:
    text: Style = {"ha": "center", "va": "bottom", "fontsize": 7}
    axes.plot([x(1), x(methods)], [top, top], color="black", linewidth=0.8)
    step = next(n for n in (1, 2, 5, 10, 20, 50) if (x(1 + n) - x(1)) > 0.2 or n == 50)
    ticks = [t for t in range(step, methods, step) if x(methods) - x(t) > 0.2]
    for tick in sorted({1, methods, *(t for t in ticks if x(t) - x(1) > 0.16)}):
        axes.plot([x(tick), x(tick)], [top, top + 0.05], color="black", linewidth=0.8)
        axes.text(x(tick), top + 0.07, str(tick), **text)
    if critical is None:
        return
    beyond = 1 + critical > methods
    end = x(methods if beyond else 1 + critical)
    axes.plot([x(1), end], [-0.17, -0.17], color="black", linewidth=1.2)
    for at in (x(1), end)[: 1 if beyond else 2]:
        axes.plot([at, at], [-0.2, -0.14], color="black", linewidth=1.2)
    label = f"CD = {critical:.2f}" + (" (beyond the axis)" if beyond else "")
    axes.text((x(1) + end) / 2, -0.13, label, **text)


def _notes(ranking: Ranking, blocks: Blocks, test: str) -> tuple[str, ...]:
    names, left_out = blocks.names, blocks.left_out
    notes = [
        f"Mean ranks over {len(names)} blocks (1 is best); a bar joins methods that do not differ "
        f"at {100 * LEVEL:g} % ({NAMES[test]}; Demsar 2006). Friedman's test: p = {ranking.p:.2g}."
    ]
    if left_out:
        notes.append(f"Left out, because not every method has finished: {shorten(left_out)}.")
    if ranking.p >= LEVEL:
        notes.append("Friedman's test finds no difference: do not read one from the ranks.")
    if len({name.split(", seed ")[0] for name in names}) < len(names):
        notes.append(
            "Seeds of one data set are not independent data sets: the result speaks of training "
            "again on these images, not of other data; --blocks data averages them."
        )
    if test == "wilcoxon" and len(names) < 6:
        notes.append("With fewer than 6 blocks, Wilcoxon's test cannot reach 5 %.")
    return tuple(notes)
