"""Recipes: from the download of a known data set to a file that training takes, in one line."""

from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.data.recipes import ham10000, hyper_kvasir, isic2019, isic_archive, medmnist
from lmd.data.recipes.recipe import Made, Recipe, Result, write

__all__ = ["RECIPES", "Made", "Recipe", "Result", "make"]

RECIPES: dict[str, Recipe] = {
    recipe.key: recipe
    for recipe in (
        isic2019.RECIPE,
        isic_archive.RECIPE,
        hyper_kvasir.RECIPE,
        ham10000.RECIPE,
        medmnist.RECIPE,
    )
}


def make(
    name: str, root: str | Path, out: str | Path, *, overwrite: bool = False, **options: Any
) -> Result:
    """Write the file of a known data set from its download; the same options give the same file.

    ``options`` are those of the recipe (``RECIPES[name].options()``). Image paths start from the
    written file's folder if the download lies in or below it, else from ``root``.
    """
    if name not in RECIPES:
        raise LmdError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    place = Path(root).expanduser()
    return write(RECIPES[name], place, Path(out).expanduser(), overwrite=overwrite, **options)
