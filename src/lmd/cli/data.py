"""`lmd data`: recipes for known data sets, checks, and pseudo-tails."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lmd.base.options import (
    AllowOutside,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Root,
    SkipBad,
    SplitColumn,
)
from lmd.doctor.command import doctor_command

data_app = typer.Typer(
    no_args_is_help=True, help="Prepare a data set for training: recipes and checks."
)
data_app.command("doctor")(doctor_command)


@data_app.command("make")
def make_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The recipe, see `lmd data list`.")],
    root: Annotated[Path, typer.Option(help="Folder of the download (medmnist: or the .npz).")],
    out: Annotated[Path, typer.Option(help="The .csv manifest to write (medmnist: .npz).")],
    factor: Annotated[
        float | None,
        typer.Option(help="isic2019-lt (100), ham10000, medmnist: the imbalance factor r."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="isic2019-lt: official (the released split, default) or pareto."),
    ] = None,
    head_size: Annotated[
        int | None,
        typer.Option(help="ham10000 (2000), medmnist (all): training images of the largest class."),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            help="ham10000 with --factor (0.1): share of the other lesions that is for validation."
        ),
    ] = None,
    by_lesion: Annotated[
        bool | None,
        typer.Option(
            "--by-lesion/--by-image",
            help="isic2019-lt: what to split by; default: by image if official, by lesion if "
            "pareto.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="isic-archive-lt: what stays in one part: lesion (default), patient or none."
        ),
    ] = None,
    published_counts: Annotated[
        bool | None,
        typer.Option(
            "--published-counts",
            help="isic-archive-lt: draw the published number of images if there are more now.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="medmnist: which set, if the file name does not say it.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="Seed of the drawn images; default 42 for isic2019-lt, else 0.",
        ),
    ] = None,
    allow_missing_images: Annotated[
        bool | None,
        typer.Option("--allow-missing-images", help="Keep images in the split that are missing."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file --out if it exists.")
    ] = False,
) -> None:
    """Write the manifest of a known data set, with its parts, from its download."""
    from lmd.recipes import make

    given = {key: value for key, value in context.params.items() if value is not None}
    result = make(**given)
    _print_counts(result.table.part_counts())
    console = Console(highlight=False, markup=False)
    for note in result.notes:
        console.print(f"- {note}", soft_wrap=True)
    typer.echo(f"\n{result.path}\nSHA-256 {result.sha256}")
    # Printed unwrapped, so that it can be copied from a narrow terminal.
    typer.echo(f"\nNext: {result.command}")


@data_app.command("list")
def list_command() -> None:
    """List the known data sets: source, licence, size and options."""
    from lmd.recipes import RECIPES

    table = Table("recipe", "data set", "options", show_lines=True)
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    table.columns[1].overflow = "fold"  # an address must not be cut off
    for recipe in RECIPES.values():
        facts = (f"{recipe.title}: {recipe.what}", recipe.source, recipe.licence, recipe.size)
        table.add_row(recipe.key, "\n".join(facts), "\n".join(recipe.option_names()))
    Console().print(table, markup=False, highlight=False)


@data_app.command("pseudo-tails")
def pseudo_tails_command(
    data: Annotated[str, typer.Argument(help="A folder of class folders or a .csv manifest.")],
    out: Annotated[Path, typer.Option(help="Folder to write task-1.csv, task-2.csv, … to.")],
    tasks: Annotated[
        int | None,
        typer.Option(min=1, help="Number of tasks; default 3, or as many as the classes allow."),
    ] = None,
    held_out: Annotated[
        int,
        typer.Option(
            min=1, help="Fewest test images of a class in a task; with whole groups, half of that."
        ),
    ] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the drawn images.")] = 0,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing tasks in --out.")
    ] = False,
) -> None:
    """Make tasks to choose methods and settings on: frequent classes play the rare ones.

    Only training and validation images are used. The images that are left out of a class that plays
    a rare one are for testing, so that smaller differences between methods become visible.
    """
    from lmd.base.files import check_outside
    from lmd.benchmark.pseudo_tails import images_root, pseudo_tails, write_tasks
    from lmd.data.source import Columns
    from lmd.data.sources import scan_source
    from lmd.data.splits import split

    columns = Columns(
        image_column, label_column, group_column, split_column, root, allow_outside=allow_outside
    )
    check_outside(out, data)
    table = split(scan_source(data, columns).table(skip_bad=skip_bad))
    found = pseudo_tails(table, tasks, seed=seed, held_out=held_out)
    where = Path(root) if root else Path(data) if Path(data).is_dir() else Path(data).parent
    where = images_root(table, where)
    paths = write_tasks(found, out, where, overwrite=overwrite)
    for path, task in zip(paths, found, strict=True):
        typer.echo(f"\n{path}: {' and '.join(task.rarest)} play the rarest classes")
        _print_counts(task.table.part_counts())
        for warning in task.warnings:
            typer.secho(f"warning: {warning}", fg="yellow", err=True)
        words = ["lmd", "train", str(path), "--root", str(where)]
        typer.echo(f"Next: {shlex.join(words)}")


def _print_counts(rows: Sequence[tuple[str, int, int, int, int]]) -> None:
    table = Table("class", "train", "validation", "test", "all")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *counts in rows:
        table.add_row(name, *(str(count) for count in counts))
    Console(highlight=False, markup=False).print(table)
