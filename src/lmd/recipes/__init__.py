"""Recipes: from the download of a known data set to a file that training takes."""

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output
from lmd.base.text import unknown
from lmd.data.imbalance import imbalance_factor
from lmd.data.table import Table
from lmd.recipes import ham10000, hyper_kvasir, isic2019, isic_archive, medmnist
from lmd.recipes.recipe import Recipe, flag

_MODULES = (isic2019, isic_archive, hyper_kvasir, ham10000, medmnist)
RECIPES: dict[str, Recipe] = {module.RECIPE.key: module.RECIPE for module in _MODULES}


@dataclass(frozen=True)
class Result:
    """A written file: its SHA-256, the command that trains on it, its table and notes."""

    path: Path
    sha256: str
    command: str
    table: Table
    notes: tuple[str, ...]


def make(
    name: str, root: str | Path, out: str | Path, *, overwrite: bool = False, **options: Any
) -> Result:
    """Write the file of a known data set from its download; equal options give equal files.

    ``options`` are those of the recipe (``RECIPES[name].options()``). Image paths are relative to
    the folder of ``out`` if that contains the download, and to ``root`` otherwise.
    """
    root, out = Path(root).expanduser(), Path(out).expanduser()
    recipe = _checked(name, out, overwrite, options)
    if out.exists() and root.exists() and out.samefile(root):
        raise LmdError(f"out {out} is the download itself: choose another name")
    made = recipe.function(root, **options)
    here, there = out.parent.resolve(), root.resolve()
    inside = there.is_relative_to(here)
    content = made.content(there.relative_to(here) if inside else Path())
    atomic_write(out, content, parents=True)
    with out.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    words = ["lmd", "train", str(out)]
    if recipe.suffix == ".csv" and not inside:
        words += ["--root", str(root)]
    return Result(out, digest, shlex.join(words), made.table, (*made.notes, _ratios(made.table)))


def _checked(name: str, out: Path, overwrite: bool, options: dict[str, Any]) -> Recipe:
    if name not in RECIPES:
        raise LmdError(unknown("recipe", name, RECIPES))
    recipe = RECIPES[name]
    if out.suffix.lower() != recipe.suffix:
        raise LmdError(f"out {out}: recipe {name!r} writes a {recipe.suffix} file, use that suffix")
    check_output(out, "--out")
    if out.exists() and not overwrite:
        raise LmdError(f"out {out} exists: choose another file, or replace it with --overwrite")
    foreign = [option for option in options if option not in recipe.options()]
    if foreign:
        valid = [flag(option) for option in recipe.options()]
        raise LmdError(f"recipe {name!r}: {unknown('option', flag(foreign[0]), valid)}")
    return recipe


def _ratios(table: Table) -> str:
    training = table.part("train").counts()
    return (
        f"imbalance factor: {imbalance_factor(table.counts()):.4g} overall "
        f"({table.counts().max()} : {table.counts().min()}), "
        f"{imbalance_factor(training):.4g} in training ({training.max()} : {training.min()})"
    )
