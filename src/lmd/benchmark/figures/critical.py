"""Draw the critical-difference diagram: mean ranks of methods, and which do not differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.benchmark.figures.series import Series, check_metrics, group, without_ablations
from lmd.benchmark.figures.sources import Study
from lmd.benchmark.figures.style import COLOURS, Drawn, new_figure
from lmd.scoring.intervals import holm
from lmd.scoring.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Test = Literal["nemenyi", "wilcoxon"]
LEVEL = 0.05


@dataclass(frozen=True)
class Ranking:
    """Mean ranks ``(K,)``, 1 is best; ``p`` is that of Friedman's test in the form of Iman.

    ``critical`` is Nemenyi's difference of mean ranks, ``pairs`` the corrected p-value of each
    pair of indices; both as far as the test has them. ``cliques`` are sets of indices, from best
    to worst, in which no two methods differ.
    """

    ranks: NDArray[np.float64]
    p: float
    critical: float | None
    pairs: dict[tuple[int, int], float]
    cliques: list[tuple[int, ...]]


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean rank of each column of ``values (N, K)``; the highest value has rank 1, ties share.

    >>> mean_ranks(np.array([[0.9, 0.5, 0.5], [0.8, 0.9, 0.1]])).tolist()
    [1.5, 1.75, 2.75]
    """
    above = (values[:, None, :] > values[:, :, None]).sum(2)
    equal = (values[:, None, :] == values[:, :, None]).sum(2)
    ranks: NDArray[np.float64] = (above + (equal + 1) / 2).mean(0)
    return ranks


def friedman(ranks: NDArray[np.float64], blocks: int) -> float:
    """P-value of Friedman's test in the form of Iman and Davenport (Demsar 2006, section 3.2.2)."""
    from scipy import stats

    k = len(ranks)
    chi = 12 * blocks / (k * (k + 1)) * (float((ranks**2).sum()) - k * (k + 1) ** 2 / 4)
    rest = blocks * (k - 1) - chi
    if rest <= 1e-9 * blocks:  # the same order in every block: the share of such outcomes
        return float(math.factorial(k)) ** (1 - blocks)
    return float(stats.f.sf((blocks - 1) * chi / rest, k - 1, (k - 1) * (blocks - 1)))


def nemenyi_difference(methods: int, blocks: int) -> float:
    """Critical difference of mean ranks at 5 % (Nemenyi 1963; Demsar 2006, section 3.2.2)."""
    from scipy import stats

    # The studentised range with infinite degrees of freedom, over the square root of two.
    q = float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def wilcoxon_holm(values: NDArray[np.float64]) -> dict[tuple[int, int], float]:
    """Wilcoxon's signed-rank p-value of each pair of columns, corrected by Holm (Benavoli 2016)."""
    from scipy import stats

    found = {}
    for i, j in combinations(range(values.shape[1]), 2):
        gaps = values[:, i] - values[:, j]
        found[i, j] = float(stats.wilcoxon(gaps).pvalue) if np.any(gaps != 0) else 1.0
    return dict(zip(found, holm(list(found.values())).tolist(), strict=True))


def rank_methods(values: NDArray[np.float64], test: Test) -> Ranking:
    """Compare the columns of ``values (N, K)``, higher is better."""
    blocks, methods = values.shape
    if blocks < 2 or methods < 2:
        raise LmdError(f"ranks need at least two methods on two blocks; got {methods} on {blocks}")
    ranks = mean_ranks(values)
    order = np.argsort(ranks, kind="stable").tolist()
    if test == "nemenyi":
        critical = nemenyi_difference(methods, blocks)
        cliques = _cliques(order, lambda i, j: abs(ranks[i] - ranks[j]) <= critical)
        return Ranking(ranks, friedman(ranks, blocks), critical, {}, cliques)
    pairs = wilcoxon_holm(values)
    cliques = _cliques(order, lambda i, j: pairs[min(i, j), max(i, j)] >= LEVEL)
    return Ranking(ranks, friedman(ranks, blocks), None, pairs, cliques)


def _cliques(order: Sequence[int], alike: Callable[[int, int], bool]) -> list[tuple[int, ...]]:
    """The longest stretches of the order, of two or more, in which every pair is alike."""
    found: list[tuple[int, ...]] = []
    for start in range(len(order)):
        end = start + 1
        while end < len(order) and all(alike(order[k], order[end]) for k in range(start, end)):
            end += 1
        stretch = tuple(order[start:end])
        if len(stretch) > 1 and not any(set(stretch) <= set(other) for other in found):
            found.append(stretch)
    return found


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
