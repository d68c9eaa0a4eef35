"""Which images a prediction is made for."""

from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.deploy.predict import find_images


def test_a_folder_is_searched_as_in_training(tmp_path: Path) -> None:
    for name in ("b.png", "deep/a.JPG", ".hidden.png", "__MACOSX/b.png", "notes.txt", "README"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "deep" / "IM0001").write_bytes(bytes(128) + b"DICM")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images([tmp_path])]
    assert found == ["b.png", "deep/IM0001", "deep/a.JPG"]


def test_files_are_taken_as_they_are_and_nothing_is_an_error(tmp_path: Path) -> None:
    odd = tmp_path / ".odd"
    odd.write_bytes(b"x")
    assert find_images([odd]) == [odd]
    with pytest.raises(LmdError, match="does not exist"):
        find_images([tmp_path / "nowhere.png"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden.png").write_bytes(b"x")
    with pytest.raises(LmdError, match="there are no images in the folder"):
        find_images([tmp_path / "empty"])
