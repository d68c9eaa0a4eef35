"""`lmd explain` and `lmd index`: why a model predicts what it predicts."""

from pathlib import Path
from typing import Annotated

import typer

from lmd.base.options import SOURCES, Device, Quiet, SkipBad
from lmd.predict.command import say_passed_over


def explain(
    model: Annotated[Path, typer.Argument(help="A run folder or its model.json.")],
    images: Annotated[list[Path], typer.Argument(help="Images or folders of images.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    neighbours: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Nearest training cases to list; needs `lmd index` or `lmd train "
            "--keep-features`.",
            show_default="5 if the run has their features",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace earlier explanations in --out.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Show where a model looks: heat maps of the two most probable classes of each image."""
    from lmd.base.device import choose_device
    from lmd.base.progress import Display
    from lmd.explain.folder import PAGE, explain_images

    with Display() as display:
        display.start("explaining", 1)
        found = explain_images(
            model,
            images,
            out,
            neighbours=neighbours,
            skip_bad=skip_bad,
            overwrite=overwrite,
            device=choose_device(device),
            tick=display.step,
        )
    for problem in found.skipped:
        typer.secho(f"skipped: {problem}", fg="yellow", err=True)
    say_passed_over(found.passed_over)
    flagged = sum(bool(each.get("unlike_training")) for each in found.images)
    typer.echo(f"{len(found.images)} images explained, {len(found.skipped)} skipped")
    if flagged:
        typer.echo(f"{flagged} images are unlike the training images")
    typer.secho(f"The page: {out / PAGE}", bold=True)


def index(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str | None,
        typer.Option(help=SOURCES, show_default="the data that the run was trained on"),
    ] = None,
    with_names: Annotated[
        bool,
        typer.Option(
            "--with-names",
            help="Also keep the names of the image files. They may identify patients.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier neighbours.npz.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Keep the features of a run's training images, so that `explain` finds the nearest cases."""
    from lmd.base.device import choose_device
    from lmd.base.progress import Display
    from lmd.explain.features import build_index

    with Display(quiet=quiet) as display:
        path = build_index(
            run,
            data,
            with_names=with_names,
            overwrite=overwrite,
            device=choose_device(device),
            display=display,
        )
    show_size(path, with_names=with_names)


def show_size(path: Path, *, with_names: bool = False) -> None:
    """Print how large the kept features are, if they exist."""
    if path.exists():
        names = "with" if with_names else "without"
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        typer.echo(f"\nFeatures of the training images, {names} file names: {path} ({size})")
