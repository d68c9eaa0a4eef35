"""The walk over image files that training, the doctor, recipes and prediction share."""

from pathlib import Path

from lmd.data.sources.walk import files_below, images_below, visible


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
    assert names(tmp_path, images_below(tmp_path)) == ["a/1.JPG", "a/2.jpg", "a/IM0001", "b.png"]


def test_files_of_a_folder_come_before_those_of_its_folders(tmp_path: Path) -> None:
    make_tree(tmp_path)
    expected = ["b.png", "notes.txt", "a/1.JPG", "a/2.jpg", "a/IM0001", "a/README"]
    assert names(tmp_path, files_below(tmp_path)) == expected


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert names(tmp_path, visible(tmp_path)) == ["a", "b.png", "notes.txt"]
    assert visible(tmp_path / "nowhere") == []
