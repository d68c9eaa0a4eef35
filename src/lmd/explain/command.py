"""`lmd explain` and `lmd index`: why a model predicts what it predicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lmd.predict.command import report_left_out


def explain(
    model: Path,
    images: Sequence[Path],
    *,
    out: Path,
    neighbours: Annotated[int | None, typer.Option(min=0)] = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    device: str = "auto",
) -> None:
    """Show where a model looks: heat maps of the two most probable classes of each image.

    Args:
        model: A run folder or its model.json.
        images: Images or folders of images.
        out: The folder to write.
        neighbours: Nearest training cases to list; needs `lmd index` or `lmd train
            --keep-features`. By default 5 if the run has their features.
        overwrite: Replace earlier explanations in --out.
    """
    from lmd.base.distributed import choose_device
    from lmd.base.progress import Display
    from lmd.explain.explanation import PAGE, explain_images

    with Display() as display:
        display.start("explaining", 1)
        explained = explain_images(
            model,
            images,
            out,
            neighbours=neighbours,
            skip_bad=skip_bad,
            overwrite=overwrite,
            device=choose_device(device),
            tick=display.step,
        )
    report_left_out(explained.skipped, explained.passed_over)
    flagged = sum(bool(image.get("unlike_training")) for image in explained.images)
    typer.echo(f"{len(explained.images)} images explained, {len(explained.skipped)} skipped")
    if flagged:
        typer.echo(f"{flagged} images are unlike the training images")
    typer.secho(f"The page: {out / PAGE}", bold=True)


def index(
    run: Path,
    *,
    data: str | None = None,
    with_names: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> None:
    """Keep the features of a run's training images, so that `explain` finds the nearest cases.

    Args:
        run: A run folder.
        data: Where its images are now. By default the data that the run was trained on.
        with_names: Also keep the names of the image files. They may identify patients.
        overwrite: Replace an earlier neighbours.npz.
    """
    from lmd.base.distributed import choose_device
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
