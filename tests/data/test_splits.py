"""Splits: ratios, determinism, whole groups, and what cannot be split."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from toys import SHARED

from lmd.base.errors import LmdError
from lmd.data.sources import open_table
from lmd.data.splits import check_no_leak, part_sizes, split
from lmd.data.table import PARTS, ArrayImages, Table

HAM = SHARED / "data" / "ham10000" / "HAM10000_metadata.csv"


def make(counts, groups=None) -> Table:
    labels = np.repeat(np.arange(len(counts)), counts)
    n = len(labels)
    return Table(
        ids=np.array([f"img{i:04d}" for i in range(n)]),
        labels=labels,
        classes=tuple("abcdefgh"[: len(counts)]),
        images=ArrayImages((np.zeros((n, 2, 2), np.uint8),)),
        rows=np.arange(n),
        groups=None if groups is None else np.array(groups),
    )


def by_part(table: Table) -> list[list[int]]:
    return [table.part(part).counts().tolist() for part in PARTS]


@pytest.mark.parametrize(
    ("count", "ratios", "expected"),
    [
        (10, (0.7, 0.1, 0.2), [7, 1, 2]),
        (30, (0.7, 0.1, 0.2), [21, 3, 6]),
        (6, (0.8, 0.1, 0.1), [4, 1, 1]),
        (3, (0.8, 0.1, 0.1), [1, 1, 1]),
        (9, (0.8, 0.1, 0.1), [7, 1, 1]),
        (1148, (0.8, 0.1, 0.1), [918, 115, 115]),
        (5, (0.8, 0.0, 0.2), [4, 0, 1]),
        (2, (0.9, 0.0, 0.1), [1, 0, 1]),
        (4, (1.0, 0.0, 0.0), [4, 0, 0]),
    ],
)
def test_part_sizes(count, ratios, expected):
    assert part_sizes(count, ratios) == expected


def test_part_sizes_are_complete_and_near_for_every_count():
    for ratios in ((0.7, 0.1, 0.2), (0.8, 0.1, 0.1), (0.6, 0.2, 0.2), (0.9, 0.05, 0.05)):
        for count in range(3, 400):
            sizes = part_sizes(count, ratios)
            assert sum(sizes) == count
            assert min(sizes) >= 1
            slack = 1 if count * min(ratios) >= 1 else 2
            assert all(
                abs(s - count * r) <= slack + 1e-9 for s, r in zip(sizes, ratios, strict=True)
            )


def test_each_class_meets_its_ratio_exactly_without_groups():
    table = split(make([100, 30, 6]), (0.7, 0.1, 0.2))
    assert by_part(table) == [[70, 21, 4], [10, 3, 1], [20, 6, 1]]


def test_split_is_pinned():
    """The same on every machine and in every version: a published split must not move."""
    table = split(make([20, 10]), (0.7, 0.1, 0.2), seed=7)
    text = "\n".join(f"{i} {p}" for i, p in zip(table.ids, table.parts, strict=True))
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "f8bed93462a5a11dcac76016ac1ef425803bebaa54dc18b6b74bfbc368fc4ee8"
    )
    grouped = split(make([20, 10], [f"g{i // 2}" for i in range(30)]), (0.7, 0.1, 0.2), seed=7)
    text = "\n".join(f"{i} {p}" for i, p in zip(grouped.ids, grouped.parts, strict=True))
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "896b1f39977b4f0c88cde8014fdffd845d7b978dc5e755ed4002c2c0d868e0eb"
    )


def test_split_depends_on_seed_and_ids_alone():
    table = make([50, 20])
    one, other = split(table, seed=0), split(table, seed=1)
    assert (one.parts != other.parts).any()
    shuffle = np.random.default_rng(0).permutation(len(table))
    again = split(table.take(shuffle), seed=0)
    np.testing.assert_array_equal(again.parts, one.parts[shuffle])


def test_zero_ratios_leave_a_part_empty():
    assert by_part(split(make([10, 5]), (0.8, 0, 0.2))) == [[8, 4], [0, 0], [2, 1]]
    assert by_part(split(make([10, 5]), (0.8, 0.2, 0))) == [[8, 4], [2, 1], [0, 0]]
    assert by_part(split(make([10, 1]), (1, 0, 0))) == [[10, 1], [0, 0], [0, 0]]
    grouped = split(make([10, 4], [f"g{i // 2}" for i in range(14)]), (0.5, 0, 0.5))
    assert by_part(grouped)[1] == [0, 0]


def test_too_few_images_or_groups():
    with pytest.raises(
        LmdError,
        match=r"class 'b' has 2 images, but a split into train, validation, test needs at least 3, "
        r"one for each part: merge the class with another, remove it, or set the parts yourself",
    ):
        split(make([10, 2]))
    assert by_part(split(make([10, 2]), (0.8, 0, 0.2)))[2] == [2, 1]
    groups = [f"g{i}" for i in range(10)] + ["x", "x", "x", "y"]
    with pytest.raises(LmdError, match=r"class 'b' has 2 groups, but .* needs at least 3"):
        split(make([10, 4], groups))
    with pytest.raises(LmdError, match=r"class 'b' has 0 images"):
        split(make([10, 0]))


def test_groups_stay_whole_and_ratios_are_met_within_a_group():
    rng = np.random.default_rng(0)
    counts = [400, 100, 30, 9]
    groups, next_group = [], 0
    for count in counts:
        left = count
        while left:
            size = min(left, int(rng.integers(1, 4)))
            groups += [f"p{next_group}"] * size
            next_group += 1
            left -= size
    for seed in range(5):
        table = split(make(counts, groups), seed=seed)
        check_no_leak(table)
        for part, share in zip(by_part(table), (0.7, 0.1, 0.2), strict=True):
            for got, count in zip(part, counts, strict=True):
                assert got >= 1
                assert abs(got - share * count) <= 3 + 1


def test_test_groups_are_as_large_as_training_groups():
    """No part is filled with the large groups first: the parts must be alike."""
    groups = [f"big{i // 10}" for i in range(1000)] + [f"small{i}" for i in range(1000)]
    table = split(make([2000, 2000], [*groups, *(f"b{g}" for g in groups)]), (0.6, 0.2, 0.2))
    for part in PARTS:
        big = np.char.find(table.part(part).groups, "big") >= 0
        assert 0.35 < big.mean() < 0.65


def test_a_group_may_hold_several_classes():
    # A patient has lesions of up to three classes.
    rng = np.random.default_rng(1)
    groups = [f"p{i}" for i in rng.integers(0, 60, 230)]
    for seed in range(10):
        table = split(make([200, 25, 5], groups), (0.6, 0.2, 0.2), seed=seed)
        check_no_leak(table)
        assert np.min(by_part(table)) >= 1


def test_unlucky_orders_are_tried_again(monkeypatch):
    # Two rare classes and a third that has one group of its own and shares one with each of them:
    # in some orders all of its groups fall to one part.
    #         a: 1 2 3, b: 4 5 6, c: 1 4 7
    table = make([3, 3, 3], ["1", "2", "3", "4", "5", "6", "1", "4", "7"])
    for seed in range(30):
        done = split(table, (0.4, 0.3, 0.3), seed=seed)
        check_no_leak(done)
        assert np.min(by_part(done)) == 1
    monkeypatch.setattr("lmd.data.splits.ORDERS", 1)
    with pytest.raises(LmdError, match="no split was found"):
        [split(table, (0.4, 0.3, 0.3), seed=seed) for seed in range(30)]


def test_no_order_helps():
    # a: 1 2 3 and b: 1 2 4 put groups 3 and 4 into one part, but c: 3 4 1 wants them apart.
    table = make([3, 3, 3], ["1", "2", "3", "1", "2", "4", "3", "4", "1"])
    with pytest.raises(LmdError, match="no split was found that has every class in every part"):
        split(table, (0.4, 0.3, 0.3))


def test_given_parts_are_kept_and_checked():
    table = make([4, 4])
    parts = np.array(["train", "train", "test", "validation"] * 2)
    given = replace(table, parts=parts)
    assert split(given, seed=3) is given
    leak = replace(given, groups=np.array(list("ghgijkkl")))
    with pytest.raises(
        LmdError,
        match=r"2 of 6 groups are in more than one part, for example 'g' with 1 in train and 1 in "
        r"test: .*training can accept this with --set allow_leak=true",
    ):
        split(leak)
    assert split(leak, allow_leak=True) is leak
    untrained = replace(given, parts=np.array(["train"] * 4 + ["test"] * 4), source="x.csv")
    with pytest.raises(LmdError, match=r"x.csv has no training image of class 'b'"):
        split(untrained)


def test_check_no_leak_needs_groups_and_parts():
    check_no_leak(make([3, 3]))
    check_no_leak(make([3, 3], list("aabbcc")))


@pytest.mark.skipif(not HAM.exists(), reason="HAM10000 is not here")
def test_ham10000_by_lesion():
    table = open_table(HAM, image_column="image_id", label_column="dx", group_column="lesion_id")
    done = split(table, (0.7, 0.1, 0.2), seed=0)
    check_no_leak(done)
    shares = np.array(by_part(done)) / table.counts()
    np.testing.assert_allclose(shares.T, [[0.7, 0.1, 0.2]] * 7, atol=0.015)
    by_image = split(replace(table, groups=None), (0.7, 0.1, 0.2), seed=0)
    with pytest.raises(LmdError, match="of 7470 groups are in more than one part"):
        check_no_leak(replace(by_image, groups=table.groups))
