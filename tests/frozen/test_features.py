"""Files of features: what is accepted, and every reason to refuse one."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.data.splits import grouped_folds
from lmd.frozen.features import feature_table, read_features


def plain(**changes: Any) -> dict[str, Any]:
    arrays = {"features": np.arange(12.0).reshape(6, 2), "labels": np.array(list("aabbab"))}
    return {k: np.asarray(v) for k, v in (arrays | changes).items() if v is not None}


def test_plain_arrays_and_separate_parts_are_the_same(tmp_path: Path) -> None:
    parts = ["train"] * 4 + ["val", "test"]
    np.savez(tmp_path / "one.npz", **plain(split=parts, groups=[1, 1, 2, 2, 3, 4]))
    whole = read_features(tmp_path / "one.npz")
    f, y = plain()["features"], plain()["labels"]
    np.savez(
        tmp_path / "three.npz", train_features=f[:4], train_labels=y[:4], val_features=f[4:5],
        val_labels=y[4:5], test_features=f[5:], test_labels=y[5:],
    )  # fmt: skip
    split = read_features(tmp_path / "three.npz")
    assert whole.table.classes == split.table.classes == ("a", "b")
    np.testing.assert_array_equal(whole.features, split.features)
    np.testing.assert_array_equal(whole.table.labels, split.table.labels)
    assert whole.table.parts is not None
    assert whole.table.parts.tolist() == ["train"] * 4 + ["validation", "test"]
    np.testing.assert_array_equal(whole.table.parts, split.table.parts)
    assert whole.rows("validation").tolist() == [4]


def test_a_row_without_a_group_is_one_of_its_own() -> None:
    table = feature_table(plain(groups=["", "p", "", "p", "q", "q"]), "x").table
    assert table.groups is not None
    assert table.groups.tolist() == ["row 0", "p", "row 2", "p", "q", "q"]


def test_integer_labels_are_rows_of_an_existing_classifier() -> None:
    found = feature_table(plain(labels=[0, 1, 0, 1, 0, 1], weight=np.ones((2, 2))), "x")
    assert found.table.classes == ("0", "1")
    assert found.bias is not None
    assert found.bias.tolist() == [0, 0]


def test_rows_of_an_existing_classifier_are_in_the_order_of_classes() -> None:
    weight = np.arange(4.0).reshape(2, 2)
    found = feature_table(plain(weight=weight, classes=["b", "a"]), "x")
    assert found.table.classes == ("b", "a")
    assert found.table.labels.tolist() == [1, 1, 0, 0, 1, 0]
    np.testing.assert_array_equal(found.weight, weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.full((6, 2), np.nan)}, "features must be finite.*row 0"),
        ({"features": np.full((6, 2), 1e300)}, "within float32"),
        ({"features": np.zeros(6)}, r"features must be numbers \(N, C\)"),
        ({"features": np.zeros((6, 0))}, "features is empty"),
        ({"features": np.full((6, 2), "x")}, "features must be numbers"),
        ({"features": None}, "expected features"),
        ({"labels": None}, "not labels"),
        ({"labels": [0.5] * 6}, "expected integers or strings"),
        ({"labels": ["a"] * 6}, "only one class"),
        ({"labels": ["a", "b"]}, "expected one label for each"),
        ({"labels": [0, 1, 2, 0, 1, 2], "classes": ["x", "y"]}, "label 2 is not among"),
        ({"labels": [0, 1, 2, 0, 1, 2], "weight": np.ones((2, 2))}, "label 2 is not among"),
        ({"weight": np.ones((2, 3))}, r"C = 2, the width of the features"),
        ({"weight": np.ones((3, 2)), "classes": ["a", "b"]}, "has 3 classes, but there are 2"),
        ({"weight": np.ones((2, 2))}, r"labels that are text.*give the array classes \(K,\)"),
        ({"logits": np.ones((6, 2))}, r"labels that are text.*give the array classes \(K,\)"),
        ({"bias": [0, 1]}, "has bias, but not weight"),
        ({"weight": np.ones((2, 2)), "bias": [1.0]}, "bias has 1 entries"),
        ({"logits": np.ones((5, 2))}, "logits has 5 rows for 6"),
        ({"split": ["train"] * 5 + ["holdout"]}, "also 'holdout'"),
        ({"split": ["test", "test", "train", "train", "test", "train"]}, "no training image"),
        ({"split": ["train"] * 5 + ["test"], "groups": [1] * 6}, "more than one part"),
        ({"groups": [1, 2]}, "groups must be 6"),
        ({"ids": ["x"] * 6}, "ids must differ"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LmdError, match=message):
        feature_table(plain(**changes), "x.npz")


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, features=np.zeros((2, 2)), labels=np.array(["a", {}], dtype=object))
    with pytest.raises(LmdError, match="Python objects"):
        read_features(path)


@pytest.mark.parametrize("shape", [(10**6, 10**6), (3, 2)])
def test_a_declaration_without_content_is_refused(tmp_path: Path, shape: tuple[int, int]) -> None:
    """Neither memory nor time is spent on an array that the file does not have."""
    content = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, header)
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", content.getvalue() + bytes(16))
    with pytest.raises(LmdError, match=r"features\.npy' declares"):
        read_features(path)


def test_a_system_that_does_not_tell_its_memory_reads_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "f.npz", **plain())
    monkeypatch.delattr("os.sysconf")  # as on Windows
    monkeypatch.delattr("os.sysconf_names")
    np.testing.assert_array_equal(read_features(tmp_path / "f.npz").features, plain()["features"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rubbish", b"text"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(LmdError, match=r"cannot be read as \.npz"):
        read_features(path)


def test_folds_keep_groups_whole_and_classes_even() -> None:
    labels = np.repeat([0, 1, 2], [40, 10, 1])
    groups = np.concatenate([np.arange(40) // 2, 100 + np.arange(10), [200]])
    table = feature_table(
        {"features": np.zeros((51, 1)), "labels": labels, "groups": groups}, "x"
    ).table
    folds = grouped_folds(table)
    assert folds[-1] == -1
    assert set(folds[:-1].tolist()) == {0, 1, 2, 3, 4}
    for group in np.unique(groups):
        assert len(set(folds[groups == group].tolist())) == 1
    for fold in range(5):
        assert (labels[folds == fold] == 0).sum() == 8
        assert (labels[folds == fold] == 1).sum() == 2
    np.testing.assert_array_equal(folds, grouped_folds(table))
    assert (folds != grouped_folds(table, seed=1)).any()


def test_folds_need_a_class_with_two_images() -> None:
    table = feature_table({"features": np.zeros((2, 1)), "labels": np.array([0, 1])}, "x").table
    with pytest.raises(LmdError, match="give a validation part"):
        grouped_folds(table)
