"""`lmd data`: from a download to a file that `lmd train` takes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from lmd.cli.doctor import doctor_command
from lmd.cli.options import (
    AllowOutside,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Root,
    SplitColumn,
)

if TYPE_CHECKING:
    from lmd.data.recipes import Result

data_app = typer.Typer(
    no_args_is_help=True, help="Make a data set ready for training: known recipes, and checks."
)
data_app.command("doctor")(doctor_command)


@data_app.command("make")
def make_command(
    name: Annotated[str, typer.Argument(help="The recipe, see `lmd data list`.")],
    root: Annotated[Path, typer.Option(help="The download: a folder (medmnist: or the .npz).")],
    out: Annotated[Path, typer.Option(help="The manifest to write, .csv (medmnist: .npz).")],
    factor: Annotated[
        float | None,
        typer.Option(help="Imbalance factor r; isic2019-lt (100), ham10000, medmnist."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="isic2019-lt: official (as the released split, default) or pareto."),
    ] = None,
    head_size: Annotated[
        int | None,
        typer.Option(help="Training images of the largest class; ham10000 (2000), medmnist (all)."),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            help="ham10000 with --factor: share of the lesions not drawn for training (0.1)."
        ),
    ] = None,
    by_lesion: Annotated[
        bool | None,
        typer.Option(
            "--by-lesion/--by-image",
            help="isic2019-lt: the unit of the split; default as released: by image if official, "
            "by lesion if pareto.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="isic-archive-lt: what stays in one part: lesion (default), patient or none."
        ),
    ] = None,
    published_counts: Annotated[
        bool,
        typer.Option(
            "--published-counts",
            help="isic-archive-lt: draw the published number of images where there are more now.",
        ),
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="medmnist: which one, where the file name does not say it.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which images are drawn; isic2019-lt 42, others 0.")
    ] = None,
    allow_missing_images: Annotated[
        bool,
        typer.Option(
            "--allow-missing-images", help="Keep images in the split that are not on disk (yet)."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file that is in --out.")
    ] = False,
) -> None:
    """Write the manifest of a known data set, with its parts, from what was downloaded."""
    from lmd.data.recipes import make

    asked = {
        "factor": factor,
        "shape": shape,
        "head_size": head_size,
        "validation_share": validation_share,
        "by_lesion": by_lesion,
        "group": group,
        "published_counts": published_counts or None,
        "dataset": dataset,
        "seed": seed,
        "allow_missing_images": allow_missing_images or None,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    _print_result(make(name, root, out, overwrite=overwrite, **given))


@data_app.command("list")
def list_command() -> None:
    """List the data sets with a recipe: where they are, their licence and size, the options."""
    from lmd.data.recipes import RECIPES

    table = Table("recipe", "data set", "options", show_lines=True)
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    table.columns[1].overflow = "fold"  # an address is worth nothing if its end is cut off
    for recipe in RECIPES.values():
        facts = (f"{recipe.title}: {recipe.what}", recipe.source, recipe.licence, recipe.size)
        table.add_row(recipe.key, "\n".join(facts), "\n".join(recipe.option_names()))
    Console().print(table, markup=False, highlight=False)


@data_app.command("pseudo-tails")
def pseudo_tails_command(
    data: Annotated[str, typer.Argument(help="A folder of class folders or a .csv manifest.")],
    out: Annotated[Path, typer.Option(help="Folder to write task-1.csv, task-2.csv, … to.")],
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 3,
    held_out: Annotated[
        int, typer.Option(min=1, help="Images of each class to keep for testing, at least.")
    ] = 40,
    seed: Annotated[int, typer.Option(help="Decides which images are drawn.")] = 0,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace tasks that are already in --out.")
    ] = False,
) -> None:
    """Make tasks in which frequent classes play the rare ones, to choose methods and settings on.

    Only training and validation images are used. What is left out of a class that plays a rare one
    becomes the task's test part, so that differences can be seen that a handful of validation
    images would hide.
    """
    from lmd.data.pseudo_tails import pseudo_tails, write_tasks
    from lmd.data.sources import open_table
    from lmd.data.splits import split

    table = open_table(
        data,
        image_column=image_column,
        label_column=label_column,
        group_column=group_column,
        split_column=split_column,
        root=root,
        allow_outside=allow_outside,
    )
    found = pseudo_tails(split(table), tasks, seed=seed, held_out=held_out)
    paths = write_tasks(found, out, overwrite=overwrite)
    where = root or (Path(data) if Path(data).is_dir() else Path(data).parent)
    for path, task in zip(paths, found, strict=True):
        typer.echo(f"\n{path}: {' and '.join(task.rarest)} play the rarest classes")
        _print_counts(task.table.part_counts())
        typer.echo(f"Next: lmd train {path} --root {where}")


def _print_counts(rows: Sequence[tuple[str, int, int, int, int]]) -> None:
    table = Table("class", "train", "validation", "test", "all")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *counts in rows:
        table.add_row(name, *(str(count) for count in counts))
    Console(highlight=False, markup=False).print(table)


def _print_result(result: "Result") -> None:
    _print_counts(result.table.part_counts())
    console = Console(highlight=False, markup=False)
    for note in result.notes:
        console.print(f"- {note}", soft_wrap=True)
    typer.echo(f"\n{result.path}\nSHA-256 {result.sha256}")
    # Printed unwrapped, so that it can be copied from a narrow terminal.
    typer.echo(f"\nNext: {result.command}")
