"""The walk over image files that training, the doctor, recipes and prediction share."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.data.walk import LOOP, files_below, images_of, tree_below, visible


def make_tree(root: Path) -> None:
    for name in ("b.png", "a/2.jpg", "a/1.JPG", "notes.txt", ".hidden.png", "a/.DS_Store"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    for folder in ("__MACOSX", ".cache", "@eaDir"):
        (root / folder).mkdir()
        (root / folder / "3.png").write_bytes(b"x")
    (root / "a" / "IM0001").write_bytes(bytes(128) + b"DICM")
    (root / "a" / "README").write_bytes(b"x")


def names(root: Path, paths: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


def test_images_are_found_without_hidden_files_and_with_dicom(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert names(tmp_path, images_of(files_below(tmp_path), tmp_path)) == [
        "a/1.JPG",
        "a/2.jpg",
        "a/IM0001",
        "b.png",
    ]


def test_files_of_a_folder_come_before_those_of_its_folders(tmp_path: Path) -> None:
    make_tree(tmp_path)
    expected = ["b.png", "notes.txt", "a/1.JPG", "a/2.jpg", "a/IM0001", "a/README"]
    assert names(tmp_path, files_below(tmp_path)) == expected


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    make_tree(tmp_path / "data")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "data" / "a")
    (tmp_path / "data" / "a" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "x.png").symlink_to("x.png")
    tree = tree_below(tmp_path / "data")
    assert "linked/1.JPG" in names(tmp_path / "data", tree.files)
    (tmp_path / "data" / "top").symlink_to(tmp_path)
    assert tree_below(tmp_path / "data").unlisted[tmp_path / "data" / "top"] == LOOP
    loops = {path.relative_to(tmp_path / "data").as_posix() for path in tree.unlisted}
    assert loops == {"a/up", "linked/up", "x.png"}
    assert list(tree.unlisted.values()).count(LOOP) == 2


def test_a_folder_nested_too_deeply_is_named(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):  # beyond the longest path that the system follows
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with pytest.raises(LmdError, match="cannot list all folders"):
        files_below(tmp_path)
    (folder,) = tree_below(tmp_path).unlisted
    assert len(str(folder)) > 4000
    shutil.rmtree(next(tmp_path.iterdir()))


def test_special_files_are_named_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.png")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        tree = tree_below(tmp_path)
    assert {path.name: kind for path, kind in tree.special.items()} == {
        "pipe": "a pipe",
        "pipe.png": "a pipe",
        "socket": "a socket",
    }
    assert tree.files == []


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert names(tmp_path, visible(tmp_path)) == ["a", "b.png", "notes.txt"]
    assert visible(tmp_path / "nowhere") == []
