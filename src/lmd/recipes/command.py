"""`lmd data make` and `lmd data list`: recipes for known data sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Options:
    """The options of all recipes; a recipe refuses another's.

    Attributes:
        factor: isic2019-lt (100), ham10000, medmnist: the imbalance factor r.
        shape: isic2019-lt: official (the released split, default) or pareto.
        head_size: ham10000 (2000), medmnist (all): training images of the largest class.
        validation_share: ham10000 with --factor (0.1): share of the other lesions that is for
            validation.
        by_lesion: isic2019-lt: what to split by; default: by image if official, by lesion if
            pareto.
        group: isic-archive-lt: what stays in one part: lesion (default), patient or none.
        published_counts: isic-archive-lt: subsample each class to its published size.
        dataset: medmnist: which set, if the file name does not say it.
        seed: Seed of the drawn images; default 42 for isic2019-lt, else 0.
        allow_missing_images: Keep images in the split that are missing.
    """

    factor: float | None = None
    shape: str | None = None
    head_size: int | None = None
    validation_share: float | None = None
    by_lesion: Annotated[bool | None, typer.Option("--by-lesion/--by-image")] = None
    group: str | None = None
    published_counts: bool | None = None
    dataset: str | None = None
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1)] = None
    allow_missing_images: bool | None = None


def make(
    name: str, *, root: Path, out: Path, options: Options = Options(), overwrite: bool = False
) -> None:
    """Write the manifest of a known data set, with its parts, from its download.

    Args:
        name: The recipe, see `lmd data list`.
        root: Folder of the download (medmnist: or the .npz).
        out: The .csv manifest to write (medmnist: .npz).
    """
    from lmd.recipes import make as make_manifest

    chosen = {key: value for key, value in vars(options).items() if value is not None}
    result = make_manifest(name, root, out, overwrite=overwrite, **chosen)
    print_counts(result.table.part_counts())
    console = Console(highlight=False, markup=False)
    for note in result.notes:
        console.print(f"- {note}", soft_wrap=True)
    typer.echo(f"\n{result.path}\nSHA-256 {result.sha256}")
    # Printed unwrapped, so that it can be copied from a narrow terminal.
    typer.echo(f"\nNext: {result.command}")


def list_recipes() -> None:
    """List the known data sets: source, licence, size and options."""
    from lmd.recipes import RECIPES

    table = Table("recipe", "data set", "options", show_lines=True)
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    table.columns[1].overflow = "fold"  # an address must not be cut off
    for recipe in RECIPES.values():
        facts = (f"{recipe.title}: {recipe.what}", recipe.source, recipe.licence, recipe.size)
        table.add_row(recipe.key, "\n".join(facts), "\n".join(recipe.option_names()))
    Console().print(table, markup=False, highlight=False)


def print_counts(rows: Sequence[tuple[str, int, int, int, int]]) -> None:
    """Print the number of images of each class in each part."""
    table = Table("class", "train", "validation", "test", "all")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *counts in rows:
        table.add_row(name, *(str(count) for count in counts))
    Console(highlight=False, markup=False).print(table)
