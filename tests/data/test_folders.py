"""Folders of class folders: what is accepted, and what is refused with which words."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.sources import open_table
from lmd.data.splits import split


def image(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (value, 0, 0)).save(path)
    return path


def test_folder_of_class_folders(tmp_path):
    image(tmp_path / "nv" / "2.png", 2)
    image(tmp_path / "nv" / "deeper" / "1.JPG", 1)
    image(tmp_path / "mel" / "3.webp", 3)
    image(tmp_path / "mel" / "0.tiff", 7)
    for junk in ("nv/.hidden.png", "nv/._2.png", "__MACOSX/nv/2.png", ".cache/x.png"):
        image(tmp_path / junk)
    (tmp_path / "nv" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "mel" / "notes.txt").write_text("x")
    (tmp_path / "README.md").write_text("x")
    table = open_table(tmp_path)
    assert table.ids.tolist() == ["mel/0.tiff", "mel/3.webp", "nv/2.png", "nv/deeper/1.JPG"]
    assert table.classes == ("mel", "nv")
    assert table.labels.tolist() == [0, 0, 1, 1]
    assert table.kind == "folders"
    assert table.source == str(tmp_path)
    assert table.parts is None
    assert table.groups is None
    assert table.skipped == ()
    assert not table.synthetic
    np.testing.assert_array_equal(table.read(2), np.full((2, 3, 3), (2, 0, 0)))
    np.testing.assert_array_equal(table.take(np.array([2, 0])).read(1), table.read(0))
    assert table.read(2).shape == (2, 3, 3)


def test_folder_of_parts(tmp_path):
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            image(tmp_path / part / name / "0.png")
    table = open_table(str(tmp_path))
    assert table.kind == "split folders"
    assert table.classes == ("a", "b")
    assert dict(zip(table.ids.tolist(), table.parts.tolist(), strict=True)) == {
        "test/a/0.png": "test",
        "test/b/0.png": "test",
        "train/a/0.png": "train",
        "train/b/0.png": "train",
        "val/a/0.png": "validation",
        "val/b/0.png": "validation",
    }
    assert split(table) is table


def test_classes_may_be_called_like_parts(tmp_path):
    for name in ("train", "test", "bus"):
        image(tmp_path / name / "0.png")
    assert open_table(tmp_path).classes == ("bus", "test", "train")
    for name in ("train", "test"):
        image(tmp_path / "two" / name / "0.png")
    assert open_table(tmp_path / "two").parts is None


def test_class_folders_may_be_links(tmp_path):
    image(tmp_path / "store" / "0.png")
    image(tmp_path / "data" / "a" / "0.png")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "store", target_is_directory=True)
    assert open_table(tmp_path / "data").ids.tolist() == ["a/0.png", "b/0.png"]


def test_number_classes_go_by_value(tmp_path):
    for name in ("10", "9", "0"):
        image(tmp_path / name / "0.png")
    assert open_table(tmp_path).classes == ("0", "9", "10")


def test_folder_errors(tmp_path):
    with pytest.raises(LmdError, match=r"nowhere does not exist; give a folder of class"):
        open_table(tmp_path / "nowhere")
    with pytest.raises(LmdError, match=r"there is no image in a class folder: expected .*CLASS/\*"):
        open_table(tmp_path)
    image(tmp_path / "a" / "0.png")
    with pytest.raises(LmdError, match=r"has only one class \('a'\): .*at least two classes"):
        open_table(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(LmdError, match=r"1 class folder holds no image \(b\): fill or remove them"):
        open_table(tmp_path)
    image(tmp_path / "c" / "0.png")
    for i in range(5):
        image(tmp_path / f"{i}.png")
    with pytest.raises(
        LmdError,
        match=r"5 images lie outside any class folder \(0.png, 1.png, 2.png and 2 more\)",
    ):
        open_table(tmp_path)
    table = open_table(tmp_path, skip_bad=True)
    assert table.ids.tolist() == ["a/0.png", "c/0.png"]
    assert table.classes == ("a", "c")
    assert len(table.skipped) == 6
    assert table.skipped[0] == "0.png: outside any class folder"
    assert table.skipped[-1] == "b: empty class folder"
    assert table.take(np.array([0])).skipped == table.skipped


def test_neither_kind(tmp_path):
    path = image(tmp_path / "one.png")
    with pytest.raises(LmdError, match=r"one.png is of an unknown kind; give .*npz"):
        open_table(path)


def test_a_dangling_link_is_named_not_a_traceback(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    (tmp_path / "a" / "1.png").symlink_to(tmp_path / "gone.png")
    table = open_table(tmp_path)
    (place,) = [i for i, name in enumerate(table.ids) if name == "a/1.png"]
    with pytest.raises(LmdError, match=r"1\.png does not exist"):
        table.read(place)


def test_a_folder_that_cannot_be_listed_is_an_error_that_names_it(
    tmp_path: Path, unlistable: Callable[[Path], None]
) -> None:
    for name in ("a/0.png", "a/inner/1.png", "b/0.png", "b/1.png"):
        image(tmp_path / name)
    unlistable(tmp_path / "a" / "inner")
    with pytest.raises(LmdError, match=r"1 folder cannot be listed \(a/inner \(Permission denied"):
        open_table(tmp_path)
    table = open_table(tmp_path, skip_bad=True)
    assert len(table) == 3
    assert table.skipped == ("a/inner (Permission denied): folder cannot be listed",)


@pytest.mark.parametrize("place", [".", "train"])
def test_the_upper_folders_must_be_listed_too(
    tmp_path: Path, place: str, unlistable: Callable[[Path], None]
) -> None:
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            image(tmp_path / part / name / "0.png")
    unlistable(tmp_path / place)
    with pytest.raises(LmdError, match=r"folders? cannot be listed"):
        open_table(tmp_path)


def test_a_pipe_is_named_and_not_read(tmp_path: Path) -> None:
    for name in ("a/0.png", "b/0.png"):
        image(tmp_path / name)
    os.mkfifo(tmp_path / "a" / "pipe")
    os.mkfifo(tmp_path / "notes")
    with pytest.raises(
        LmdError, match=r"2 entries are not a regular file \(notes \(a pipe\), a/pi"
    ):
        open_table(tmp_path)
    assert len(open_table(tmp_path, skip_bad=True)) == 2


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "null\0"])
def test_a_path_that_cannot_be_followed_is_one_line(name: str) -> None:
    with pytest.raises(LmdError, match="is no file or folder"):
        open_table(name)


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    source = (tmp_path / "a" / "0.png").read_bytes()
    try:
        (tmp_path / "a" / os.fsdecode(b"\xff.png")).write_bytes(source)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(LmdError, match="not UTF-8"):
        open_table(tmp_path)
