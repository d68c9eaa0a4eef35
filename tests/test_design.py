"""docs/design.md describes the house as it is."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from toys import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "lmd"


def layers() -> list[list[str]]:
    """The import contract: rooms of each layer, from top to bottom."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    return [re.findall(r"lmd\.(\w+)", layer) for layer in contract["layers"]]


def rooms_on_disk() -> set[str]:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    return packages | {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}


def test_the_picture_is_the_import_contract() -> None:
    picture = PAGE.split("```")[1]
    drawn = [re.split(r"\s{2,}", line)[0].split(" | ") for line in picture.strip().splitlines()]
    assert drawn == layers()
    assert len(drawn) <= 16


def test_every_folder_is_in_the_contract() -> None:
    assert rooms_on_disk() == {room for layer in layers() for room in layer}


def walk() -> list[str]:
    section = PAGE.split("## One image on its way")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d+\. ", section, re.MULTILINE)) <= 12
    return sorted(set(re.findall(r"`(lmd(?:\.\w+)+)`", section)))


@pytest.mark.parametrize("place", re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", PAGE))
def test_the_files_of_the_page_exist(place: str) -> None:
    assert (SOURCE / place).exists() or "NAME" in place


@pytest.mark.parametrize("name", walk())
def test_the_functions_of_the_walk_exist(name: str) -> None:
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:cut]))
        except ModuleNotFoundError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return
    raise AssertionError(f"{name} cannot be imported")


@pytest.mark.parametrize(
    ("folder", "most"), [(SOURCE, 450), (ROOT / "tests", 450)], ids=["src", "tests"]
)
def test_no_module_is_too_long(folder: Path, most: int) -> None:
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in folder.rglob("*.py")}
    assert {str(p): n for p, n in lengths.items() if n > most} == {}
