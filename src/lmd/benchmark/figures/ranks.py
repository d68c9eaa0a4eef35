"""Ranks of methods over blocks, and tests of whether they differ (Demsar 2006)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.intervals import holm

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
