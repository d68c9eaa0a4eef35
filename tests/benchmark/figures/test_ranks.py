"""Ranks and tests against published numbers and against scipy."""

import numpy as np
import pytest
from scipy import stats

from lmd.benchmark.figures.critical import (
    friedman,
    nemenyi_difference,
    rank_methods,
    wilcoxon_holm,
)


def test_the_critical_difference_of_demsars_example() -> None:
    # Demsar 2006, section 3.2.2: four classifiers on fourteen data sets, q = 2.569.
    assert nemenyi_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    # His table 5(a) for ten classifiers: q = 3.164.
    assert nemenyi_difference(10, 6) == pytest.approx(3.164 * np.sqrt(110 / 36), abs=0.005)


def test_friedman_agrees_with_scipy() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4)) + np.arange(4) * 0.5
    chi = stats.friedmanchisquare(*values.T).statistic
    f = 8 * chi / (9 * 3 - chi)
    assert friedman(stats.rankdata(-values, axis=1).mean(0), 9) == pytest.approx(
        stats.f.sf(f, 3, 24)
    )


def test_equal_orders_leave_no_doubt() -> None:
    values = np.tile([0.9, 0.5, 0.1], (12, 1)) + np.arange(12)[:, None] * 0.01
    ranking = rank_methods(values, "nemenyi")
    assert ranking.ranks.tolist() == [1, 2, 3]
    assert ranking.p == 6.0**-11  # the share of such outcomes by chance
    assert rank_methods(values[:2, :2], "nemenyi").p == 0.5
    # CD = 2.344 sqrt(12 / 72) = 0.957 < 1: no two methods are alike.
    assert ranking.cliques == []


def test_a_bar_joins_methods_within_the_critical_difference() -> None:
    values = np.array([[3.0, 2, 1], [2, 3, 1], [3, 2, 1], [2, 3, 1]])
    ranking = rank_methods(values, "nemenyi")
    assert ranking.ranks.tolist() == [1.5, 1.5, 3]
    assert ranking.critical == pytest.approx(2.344 * np.sqrt(0.5), abs=0.005)
    assert ranking.cliques == [(0, 1, 2)]


def test_wilcoxon_with_holm() -> None:
    draws = np.random.default_rng(1).normal(size=(12, 3))
    values = draws * 0.1 + [0, 0.02, 5]
    pairs = wilcoxon_holm(values)
    plain = {(i, j): stats.wilcoxon(values[:, i], values[:, j]).pvalue for i, j in pairs}
    assert pairs[0, 2] == pytest.approx(3 * plain[0, 2])
    assert pairs[0, 1] == pytest.approx(plain[0, 1])
    # Only the two methods that differ by noise are joined.
    assert [set(c) for c in rank_methods(values, "wilcoxon").cliques] == [{0, 1}]


def test_equal_columns_do_not_differ() -> None:
    assert wilcoxon_holm(np.ones((4, 2))) == {(0, 1): 1.0}
