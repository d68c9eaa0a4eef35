"""Arrays: what is accepted, and what is refused with which words."""

import os
from pathlib import Path

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.data.sources import open_table


def save(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


GREY = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)


def test_arrays(tmp_path):
    rgb = np.stack([GREY, GREY + 1, GREY + 2], -1)
    path = save(
        tmp_path / "a.npz",
        images=rgb,
        labels=[0, 2, 1, 2],
        classes=["x", "y", "z", "unseen"],
        groups=[1, 1, 2, 3],
        splits=["train", "train", "val", "test"],
    )
    table = open_table(path)
    assert table.kind == "arrays"
    assert table.ids.tolist() == ["0", "1", "2", "3"]
    assert table.classes == ("x", "y", "z", "unseen")
    assert table.labels.tolist() == [0, 2, 1, 2]
    assert table.groups.tolist() == ["1", "1", "2", "3"]
    assert table.parts.tolist() == ["train", "train", "validation", "test"]
    np.testing.assert_array_equal(table.read(2), rgb[2])
    table.read(2)[:] = 0  # a copy: the table stays as it is
    np.testing.assert_array_equal(table.read(2), rgb[2])
    assert table.read(2).shape == (2, 3, 3)


def test_an_image_without_a_group_is_one_of_its_own(tmp_path):
    given = {"images": GREY, "labels": [0, 1, 0, 1], "groups": ["", "p1", "", "p1"]}
    table = open_table(save(tmp_path / "a.npz", **given))
    assert table.groups.tolist() == ["image 0", "p1", "image 2", "p1"]


def test_grey_arrays_become_rgb(tmp_path):
    for name, images in {"flat": GREY, "one": GREY[..., None]}.items():
        table = open_table(save(tmp_path / f"{name}.npz", images=images, labels=[0, 1, 0, 1]))
        np.testing.assert_array_equal(table.read(3), np.stack([GREY[3]] * 3, -1))


def test_wide_arrays_are_scaled(tmp_path):
    labels = [0, 1, 0, 1]
    wide = GREY.astype(np.uint16) * 257
    table = open_table(save(tmp_path / "wide.npz", images=wide, labels=labels))
    np.testing.assert_array_equal(table.read(3)[..., 0], GREY[3])
    unit = GREY.astype(np.float32) / 255
    table = open_table(save(tmp_path / "unit.npz", images=unit, labels=labels))
    np.testing.assert_array_equal(table.read(3)[..., 0], GREY[3])


def test_medmnist(tmp_path):
    arrays = {}
    for word, n in {"train": 3, "val": 2, "test": 1}.items():
        arrays[f"{word}_images"] = np.full((n, 2, 2), n, np.uint8)
        arrays[f"{word}_labels"] = np.arange(n, dtype=np.uint8)[:, None] * 5
    table = open_table(save(tmp_path / "m.npz", **arrays))
    assert table.classes == ("0", "5", "10")
    assert table.labels.tolist() == [0, 1, 2, 0, 1, 0]
    assert table.parts.tolist() == ["train"] * 3 + ["validation"] * 2 + ["test"]
    assert table.ids.tolist()[2:5] == ["train/2", "validation/0", "validation/1"]
    assert [int(table.read(i)[0, 0, 0]) for i in range(6)] == [3, 3, 3, 2, 2, 1]
    with pytest.raises(IndexError):
        table.images.read(6)


def test_array_labels_may_be_names(tmp_path):
    table = open_table(save(tmp_path / "a.npz", images=GREY, labels=["nv", "mel", "nv", "nv"]))
    assert table.classes == ("mel", "nv")
    assert table.labels.tolist() == [1, 0, 1, 1]
    path = save(tmp_path / "b.npz", images=GREY, labels=["b", "a", "b", "b"], classes=["b", "a"])
    assert open_table(path).labels.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GREY}, r"has the arrays x; expected images and labels .*train_images"),
        ({"images": GREY}, r"has the arrays images, but not labels"),
        ({"images": GREY[0], "labels": [0, 1]}, r"images has the shape \(2, 3\); expected \(N, H"),
        ({"images": np.zeros((2, 3, 8, 8), np.uint8), "labels": [0, 1]}, "channels last"),
        ({"images": GREY, "labels": [0, 1]}, r"labels has the shape \(2,\); expected one .* 4 im"),
        ({"images": GREY, "labels": np.eye(4, dtype=int)}, "several labels per image are not"),
        ({"images": GREY, "labels": [0.5, 1, 1, 1]}, "labels is of type float64; expected integ"),
        ({"images": GREY.astype(int), "labels": [0, 1, 0, 1]}, "images is of type int64; expec"),
        ({"images": GREY * 1.5, "labels": [0, 1, 0, 1]}, "images is of type float64; expected"),
        ({"images": GREY * np.nan, "labels": [0, 1, 0, 1]}, r"all values in \[0, 1\]"),
        ({"images": GREY[:0], "labels": np.zeros(0, int)}, "it has no images"),
        ({"images": GREY, "labels": [3, 3, 3, 3]}, r"has only one class \('3'\)"),
        (
            {"images": GREY, "labels": [0, 1, 2, 1], "classes": ["a", "b"]},
            r"label 2 is not among the 2 classes \(a, b\); integer labels count from 0",
        ),
        (
            {"images": GREY, "labels": ["a", "b", "c", "a"], "classes": ["a", "b"]},
            r"label 'c' is not among the 2 classes",
        ),
        (
            {"images": GREY, "labels": [0, 1, 0, 1], "classes": ["a", "a"]},
            "classes contains a name twice: a, a",
        ),
        (
            {"images": GREY, "labels": [0, 1, 0, 1], "groups": ["a"]},
            "groups has 1 entries for 4 images; expected 4",
        ),
        (
            {"images": GREY, "labels": [0, 1, 0, 1], "splits": ["train", "x", "val", "test"]},
            r"1 entry of splits is not .*\(1: splits\[1\] is 'x'\): use train, validation",
        ),
    ],
)
def test_array_errors(tmp_path, arrays, message):
    with pytest.raises(LmdError, match=message):
        open_table(save(tmp_path / "a.npz", **arrays))


def test_pickled_and_broken_archives_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    objects = np.array([Evil()], dtype=object)
    path = tmp_path / "evil.npz"
    np.savez(path, images=GREY, labels=objects)
    with pytest.raises(
        LmdError, match=r"evil.npz: the file cannot be read as .npz .*objects are refused"
    ):
        open_table(path)
    assert not (tmp_path / "ran").exists()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LmdError, match=r"evil.npz: the file cannot be read as .npz"):
        open_table(path)
    path.write_bytes(b"text")
    with pytest.raises(LmdError, match=r"evil.npz: the file cannot be read as .npz"):
        open_table(path)
    with path.open("wb") as file:
        np.save(file, GREY)
    with pytest.raises(LmdError, match=r"is a single array, not an .npz archive"):
        open_table(path)


def test_the_word_synthetic():
    table = open_table("synthetic")
    assert table.synthetic
    assert table.kind == "synthetic"
    assert table.read(0).shape[2] == 3


def test_groups_with_gaps(tmp_path):
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 0, 1, 1])
    np.savez(tmp_path / "a.npz", images=images, labels=labels, groups=[1, np.nan, np.nan, 1])
    assert open_table(tmp_path / "a.npz").groups.tolist() == ["1", "image 1", "image 2", "1"]
    np.savez(tmp_path / "a.npz", images=images, labels=labels, groups=[1.5, 1, 2, 3])
    with pytest.raises(LmdError, match="groups has fractions"):
        open_table(tmp_path / "a.npz")


@pytest.mark.parametrize("given", [{"group_column": "patient"}, {"root": "x"}])
def test_columns_are_for_manifests(tmp_path, given):
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=[0, 1])
    with pytest.raises(LmdError, match=r"a\.npz takes no .*--(group-column|root).*: only"):
        open_table(tmp_path / "a.npz", **given)
    assert len(open_table(tmp_path / "a.npz", split_column="", group_column="")) == 2
