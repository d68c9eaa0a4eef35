"""Long tails: the two formulas, and which images stay."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.data.splits import imbalance_factor, official_counts, pareto_counts, split, subsample
from lmd.data.table import ArrayImages, Table

ISIC_2019 = [12875, 4522, 3323, 2624, 867, 628, 253, 239]
# Computed with the rule of the released split at r = 100, 300 and 500.
RELEASED = {
    100: [12875, 4140, 2785, 2013, 609, 404, 149, 129],
    300: [12875, 3539, 2035, 1258, 325, 185, 59, 43],
    500: [12875, 3290, 1759, 1010, 243, 128, 38, 26],
}


def make(counts, groups=None) -> Table:
    labels = np.repeat(np.arange(len(counts)), counts)
    n = len(labels)
    return Table(
        ids=np.array([f"img{i:05d}" for i in range(n)]),
        labels=labels,
        classes=tuple("abcdefgh"[: len(counts)]),
        images=ArrayImages((np.zeros((n, 2, 2), np.uint8),)),
        rows=np.arange(n),
        groups=None if groups is None else np.array(groups),
    )


@pytest.mark.parametrize("factor", RELEASED)
def test_official_counts_are_the_released_ones(factor):
    assert official_counts(ISIC_2019, factor).tolist() == RELEASED[factor]


def test_official_counts_against_the_reference(vectors):
    vector = vectors["isic2019_lt_counts"]
    for factor, expected in vector["total_per_class_before_split"].items():
        assert official_counts(vector["original"], float(factor)).tolist() == expected


def test_official_counts_in_any_order():
    order = [3, 7, 0, 5, 1, 2, 6, 4]
    shuffled = official_counts(np.array(ISIC_2019)[order], 100)
    assert shuffled.tolist() == np.array(RELEASED[100])[order].tolist()


def test_official_counts_against_a_loop():
    counts, factor = [900, 500, 70, 30], 90
    mu = (900 / (30 * factor)) ** (1 / 3)
    expected = [math.ceil(n * mu**c - 1e-9) for c, n in enumerate(counts)]
    assert official_counts(counts, factor).tolist() == expected
    assert expected[-1] == 10  # 900 / 90, not 11


def test_official_counts_at_the_natural_factor_change_nothing():
    assert official_counts([1000, 300, 100], 10).tolist() == [1000, 300, 100]


def test_pareto_counts():
    # N_0 = 12875, r = 100, K = 8 by hand: each is 100^(1/7) = 1.930698 times smaller.
    expected = [12875, 6669, 3454, 1789, 927, 480, 249, 129]
    assert pareto_counts(12875, 100, 8).tolist() == expected
    assert pareto_counts(500, 1, 4).tolist() == [500] * 4
    counts = pareto_counts(5000, 250, 6)
    assert counts[0] / counts[-1] == 250
    assert pareto_counts(10, 100, 3).tolist() == [10, 1, 1]


def test_imbalance_factor():
    assert imbalance_factor([1148, 9, 6]) == pytest.approx(191.33, abs=0.01)
    assert imbalance_factor([5, 5]) == 1
    assert imbalance_factor([5, 0]) == math.inf


def test_errors_of_the_formulas():
    for factor in (0.5, math.nan, math.inf):
        with pytest.raises(LmdError, match=r"imbalance factor is .*; expected 1 \(balanced\)"):
            pareto_counts(10, factor, 3)
    with pytest.raises(LmdError, match="needs at least 2 classes, not 1"):
        official_counts([10], 2)
    with pytest.raises(LmdError, match=r"counts are \[10, 0\]; every class needs"):
        official_counts([10, 0], 2)
    with pytest.raises(LmdError, match="head_size is 0; the largest class needs"):
        pareto_counts(0, 2, 3)


def test_subsample_by_factor():
    table = make([20, 200, 100])
    thin = subsample(table, 50)
    assert thin.counts().tolist() == [4, 200, 28]  # 200 / 50 = 4, 200 / √50 = 28.3
    assert thin.classes == table.classes
    assert (np.diff(thin.rows) > 0).all()
    assert subsample(table, 10, head_size=100).counts().tolist() == [10, 100, 32]
    assert subsample(table, 50, shape="official").counts().tolist() == [4, 200, 45]


def test_subsample_depends_on_seed_and_ids_alone():
    table = make([200, 100])
    one, other = subsample(table, 20, seed=0), subsample(table, 20, seed=1)
    assert set(one.ids) != set(other.ids)
    shuffle = np.random.default_rng(0).permutation(len(table))
    assert set(subsample(table.take(shuffle), 20, seed=0).ids) == set(one.ids)
    # A longer tail is a part of a shorter one: runs at several factors differ in nothing else.
    assert set(subsample(table, 40).ids) < set(one.ids)


def test_a_class_between_keeps_what_it_has():
    assert subsample(make([1000, 50, 40]), 100).counts().tolist() == [1000, 50, 10]


def test_subsample_thins_training_alone():
    table = split(make([100, 100, 100]), (0.6, 0.2, 0.2))
    thin = subsample(table, 10)
    assert thin.part("train").counts().tolist() == [60, 19, 6]
    for part in ("validation", "test"):
        np.testing.assert_array_equal(thin.part(part).ids, table.part(part).ids)
    with pytest.raises(LmdError, match="'official' thins a whole set before it is split"):
        subsample(table, 10, shape="official")


def test_subsample_by_counts():
    table = make([10, 10, 10])
    assert subsample(table, [3, 10, 1]).counts().tolist() == [3, 10, 1]
    with pytest.raises(LmdError, match=r"11 images of class 'b' .*which has 10: choose 1 to 10"):
        subsample(table, [3, 11, 1])
    with pytest.raises(LmdError, match="0 images of class 'c' were asked for"):
        subsample(table, [3, 10, 0])
    with pytest.raises(LmdError, match=r"2 counts were given for 3 classes \(a, b, c\)"):
        subsample(table, [3, 1])


def test_groups_stay_or_go_whole():
    rng = np.random.default_rng(0)
    groups = [f"p{i}" for i in rng.integers(0, 60, 200)] + [f"q{i // 4}" for i in range(40)]
    table = make([200, 40], groups)
    thin = subsample(table, 20)
    sizes = dict(zip(*np.unique(table.groups, return_counts=True), strict=True))
    kept = dict(zip(*np.unique(thin.groups, return_counts=True), strict=True))
    assert all(sizes[group] == n for group, n in kept.items())
    assert thin.counts().tolist() == [200, 8]  # 10 lies between 8 and 12: not above
    assert subsample(table, [150, 11]).counts()[1] == 12  # nearer than 8
    assert subsample(table, [150, 1]).counts()[1] == 4  # at least one group
    assert abs(subsample(table, [150, 11]).counts()[0] - 150) <= 1


def test_errors_of_subsample():
    table = make([100, 50])
    with pytest.raises(LmdError, match=r"head_size is 200, but the largest class 'a' has 100"):
        subsample(table, 10, head_size=200)
    with pytest.raises(
        LmdError,
        match=r"factor 1 asks for 100 images of class 'b', which has 50: .*\(2\).*at most 50",
    ):
        subsample(table, 1)
    with pytest.raises(LmdError, match=r"asks for 100 images of class 'b'"):
        subsample(table, 1, shape="official")
    with pytest.raises(LmdError, match=r"head_size is 10, but shape 'official' always keeps"):
        subsample(table, 10, shape="official", head_size=10)
    with pytest.raises(LmdError, match=r"shape is 'step'; expected 'pareto' or 'official'"):
        subsample(table, 10, shape="step")
    with pytest.raises(LmdError, match="class 'b' has no image to draw from"):
        subsample(replace(table, labels=table.labels * 0), 10)
