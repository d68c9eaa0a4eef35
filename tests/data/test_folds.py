"""Folds: every image is tested once, groups stay whole, and small classes keep a training image."""

from dataclasses import replace

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.data.splits import fold_notes, fold_split, make_folds, without_parts
from lmd.data.table import ArrayImages, Table
from lmd.runs.protocol import Protocol, load_protocol

RATIOS = (0.7, 0.1, 0.2)


def table_of(counts: tuple[int, ...], groups: list[str] | None = None) -> Table:
    labels = np.repeat(np.arange(len(counts)), counts)
    return Table(
        ids=np.array([f"image{i}" for i in range(len(labels))]),
        labels=labels,
        classes=tuple("abcdefgh"[: len(counts)]),
        images=ArrayImages((np.zeros((len(labels), 2, 2), np.uint8),)),
        rows=np.arange(len(labels)),
        groups=None if groups is None else np.array(groups),
        source="toy",
    )


def splits_of(table: Table, count: int) -> list[Table]:
    return [fold_split(table, (i, count), RATIOS) for i in range(1, count + 1)]


def test_every_image_is_tested_once_and_folds_are_stratified() -> None:
    table = table_of((50, 25, 12))
    splits = splits_of(table, 5)
    seen = np.concatenate([one.part("test").ids for one in splits])
    assert sorted(seen) == sorted(table.ids)
    counts = np.array([one.part("test").counts() for one in splits])
    assert counts[:, 0].tolist() == [10] * 5
    assert counts[:, 1].tolist() == [5] * 5
    assert sorted(counts[:, 2]) == [2, 2, 2, 3, 3]
    for one in splits:
        # Training and validation are 7 to 1, as without folds.
        assert one.part("validation").counts()[0] == 5
        assert one.part("validation").counts().min() > 0
        assert one.part("train").counts().min() > 0


def test_groups_stay_whole_and_are_stratified() -> None:
    groups = [f"patient{i // 3}" for i in range(60)]
    table = table_of((45, 15), groups)
    for one in splits_of(table, 5):
        parts = {group: set(one.parts[one.groups == group]) for group in set(groups)}
        assert all(len(of) == 1 for of in parts.values())
        assert one.part("test").counts().tolist() == [9, 3]


def test_classes_with_fewer_images_than_folds() -> None:
    table = table_of((20, 3, 2, 1))
    splits = splits_of(table, 5)
    pooled = sum(one.part("test").counts() for one in splits)
    assert pooled.tolist() == [20, 3, 2, 0]
    for one in splits:
        assert one.part("train").counts().min() > 0
        assert one.part("train").counts()[3] == 1
    alone, few = fold_notes(table, 5)
    assert alone.startswith("Only one image of d: it is for training in every fold and never")
    assert few.startswith("Fewer images than 5 folds of b (3), c (2): each is tested once")
    assert fold_notes(table_of((20, 5)), 5) == []


def test_fold_zero_has_no_test_part() -> None:
    one = fold_split(table_of((40, 8, 1)), (0, 5), RATIOS)
    assert len(one.part("test")) == 0
    assert one.part("validation").counts().tolist() == [5, 1, 0]
    whole = fold_split(table_of((40, 8, 1)), (0, 5), (0.8, 0, 0.2))
    assert len(whole.part("train")) == 49


def test_folds_depend_on_seed_and_names_alone() -> None:
    table = table_of((30, 12))
    folds = make_folds(table, 3)
    order = np.random.default_rng(0).permutation(len(table))
    np.testing.assert_array_equal(make_folds(table.take(order), 3), folds[order])
    assert (make_folds(table, 3, seed=1) != folds).any()


def test_groups_of_several_classes_leave_every_class_in_training() -> None:
    # Both classes of the second half are in every group; class b is in two groups only.
    labels = np.array([0] * 12 + [0, 1, 0, 1])
    groups = [f"g{i}" for i in range(12)] + ["x", "x", "y", "y"]
    table = replace(table_of((16,), groups), labels=labels, classes=("a", "b"))
    for one in splits_of(table, 3):
        assert one.part("train").counts().min() > 0


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(LmdError, match="has 3 images, fewer than 5 folds"):
        make_folds(table_of((2, 1)), 5)
    with pytest.raises(LmdError, match="4 images that are not the only image of a class, fewer"):
        make_folds(table_of((4, 1)), 5)
    parts = replace(table_of((2, 2)), parts=np.array(["train", "test"] * 2))
    with pytest.raises(LmdError, match=r'parts of its own.*--split-column ""'):
        without_parts(parts, None)
    assert without_parts(parts, "").parts is None


def test_the_protocol_has_a_fold_only_if_it_is_set() -> None:
    assert "fold" not in Protocol().model_dump(mode="json")
    found = load_protocol(None, {"fold": [2, 5]})
    assert found.model_dump(mode="json")["fold"] == [2, 5]
    assert load_protocol(None, found.model_dump(mode="json")) == found
    for wrong in ([6, 5], [-1, 5], [1, 1]):
        with pytest.raises(LmdError, match="setting 'fold"):
            load_protocol(None, {"fold": wrong})
