"""Draw the critical-difference diagram: mean ranks of methods, and which do not differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    """Compare two or more columns of ``values (N, K)``, higher is better."""
    blocks, methods = values.shape
    ranks: Floats = stats.rankdata(-values, axis=1).mean(0)
    critical, pairs = None, {}
    if test == "nemenyi":
        critical = nemenyi_difference(methods, blocks)
        alike = np.abs(ranks[:, None] - ranks) <= critical
    else:
        pairs = wilcoxon_holm(values)
        alike = np.ones((methods, methods), dtype=bool)
        for (i, j), p in pairs.items():
            alike[i, j] = alike[j, i] = p >= LEVEL
    # The longest stretches of the order, of two or more, in which every pair is alike.
    order = np.argsort(ranks, kind="stable")
    cliques: list[tuple[int, ...]] = []
    end = 1
    for start in range(methods - 1):
        previous, end = end, max(end, start + 1)
        while end < methods and alike[order[end], order[start:end]].all():
            end += 1
        if end > max(previous, start + 1):
            cliques.append(tuple(order[start:end].tolist()))
    return Ranking(ranks, friedman(ranks, blocks), critical, pairs, cliques)


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
    titles, means, left_out = _complete_blocks(series, metric, blocks)
    if len(means) < 2 or len(titles) < 2:
        incomplete = f" ({shorten(left_out)} not complete)" if left_out else ""
        raise LmdError(
            "a critical-difference diagram needs at least two methods on at least two blocks "
            f"({'data sets' if blocks == 'data' else 'seeds or data sets'}) that all of them have "
            f"finished; there are {len(titles)} methods on {len(means)}{incomplete}: "
            "train more seeds or data sets, or leave out methods with --methods"
        )
    sign = 1 if METRICS[metric].higher_is_better else -1
    ranking = rank_methods(sign * np.array(list(means.values())), test)
    tall = 0.55 + 0.09 * len(ranking.cliques) + LINE * ((len(titles) + 1) // 2)
    figure = new_figure(request.width, request.height or tall)
    figure.set_layout_engine("none")
    _draw(figure, ranking, list(titles.values()))
    rows: list[dict[str, Any]] = []
    for k, (key, title) in enumerate(titles.items()):
        groups = " ".join(str(i) for i, clique in enumerate(ranking.cliques, 1) if k in clique)
        row = {"method": key, "title": title, "mean_rank": float(ranking.ranks[k])}
        row |= {"groups": groups}
        rows += [row | {"block": name, metric: values[k]} for name, values in means.items()]
    keys = list(titles)
    for (i, j), p in ranking.pairs.items():
        rows.append({"method": keys[i], "against": keys[j], "p_holm": p})
    return Drawn(figure, rows, _notes(ranking, list(means), left_out, test))


def _complete_blocks(
    series: Sequence[Series], metric: str, blocks: str
) -> tuple[dict[str, str], dict[str, list[float]], list[str]]:
    """Return the title of each method, their means in each block they all have, other blocks."""
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
    complete = {name: values for name, values in by_block.items() if set(values) == set(titles)}
    means = {
        name: [float(np.mean(values[key])) for key in titles] for name, values in complete.items()
    }
    return titles, means, [name for name in by_block if name not in complete]


def _draw(figure: Figure, ranking: Ranking, titles: Sequence[str]) -> None:
    """Draw the axis, bars of methods that do not differ, and labels, in inches from upper left."""
    wide, tall = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide), ylim=(-tall, 0))
    axes.axis("off")
    order, methods = np.argsort(ranking.ranks, kind="stable").tolist(), len(titles)
    half = (methods + 1) // 2
    # Names and ranks need about half an em for each character, and the axis a third of the width.
    lengths = [len(f"{titles[k]} {ranking.ranks[k]:.2f}") for k in order]
    longest = [max(lengths[:half]), max(lengths[half:])]
    size = min(7.0, 0.6 * wide / (sum(longest) * 0.58 / 72))
    left, right = (0.06 + 0.58 * n * size / 72 for n in longest)
    scale, top = (wide - left - right - 0.2) / (methods - 1), -0.42
    x = left + 0.1 + scale * (ranking.ranks - 1)
    _draw_axis(axes, left + 0.1, scale, top, methods, ranking.critical)
    for i, clique in enumerate(ranking.cliques):
        y = top - 0.08 - 0.09 * i
        bar: Style = {"color": COLOURS[1], "linewidth": 2.6, "solid_capstyle": "butt"}
        axes.plot([x[clique[0]] - 0.03, x[clique[-1]] + 0.03], [y, y], **bar)
    first = top - 0.16 - 0.09 * len(ranking.cliques)
    for place, k in enumerate(order):
        rank, is_left = f"{ranking.ranks[k]:.2f}", place < half
        y = first - LINE * (place if is_left else methods - 1 - place)
        edge, at = (left, left - 0.03) if is_left else (wide - right, wide - right + 0.03)
        label = f"{titles[k]} {rank}" if is_left else f"{rank} {titles[k]}"
        axes.plot([x[k], x[k], edge], [top, y, y], color="#555555", linewidth=0.6)
        axes.text(at, y, label, ha="right" if is_left else "left", va="center", fontsize=size)


def _draw_axis(
    axes: Axes, start: float, scale: float, top: float, methods: int, critical: float | None
) -> None:
    text: Style = {"ha": "center", "va": "bottom", "fontsize": 7}
    length = scale * (methods - 1)
    axes.plot([start, start + length], [top, top], color="black", linewidth=0.8)
    step = next((n for n in (1, 2, 5, 10, 20) if scale * n > 0.2), 50)
    inner = [t for t in range(step, methods, step) if 0.16 < scale * (t - 1) < length - 0.2]
    for tick in (1, *inner, methods):
        x = start + scale * (tick - 1)
        axes.plot([x, x], [top, top + 0.05], color="black", linewidth=0.8)
        axes.text(x, top + 0.07, str(tick), **text)
    if critical is None:
        return
    beyond = 1 + critical > methods
    end = start + (length if beyond else scale * critical)
    axes.plot([start, end], [-0.17, -0.17], color="black", linewidth=1.2)
    for x in (start,) if beyond else (start, end):
        axes.plot([x, x], [-0.2, -0.14], color="black", linewidth=1.2)
    label = f"CD = {critical:.2f}" + (" (beyond the axis)" if beyond else "")
    axes.text((start + end) / 2, -0.13, label, **text)


def _notes(
    ranking: Ranking, names: Sequence[str], left_out: Sequence[str], test: str
) -> tuple[str, ...]:
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
