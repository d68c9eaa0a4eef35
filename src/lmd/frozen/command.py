"""``lmd calibrate``: a balanced classifier for the model that people already have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from lmd.base.command import parse_settings
from lmd.base.options import (
    AllowOutside,
    Device,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Quiet,
    Root,
    SkipBad,
    SplitColumn,
    given_columns,
)

if TYPE_CHECKING:
    from lmd.runs.record import Record
    from lmd.scoring.estimates import Estimate


def calibrate_command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="An .npz of features and labels, a run folder, or an encoder: a backbone such as "
            "resnet50 or timm/NAME, a weight file with --backbone, or an .onnx file."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder to write.", show_default="runs/SOURCE-calibrated"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Images for an encoder: a folder of class folders, a .csv or an .npz. For a run: "
            "where its images are now, if they have moved."
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="The backbone whose weights the file SOURCE has.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the backbone SOURCE: a file, 'imagenet' or 'none'.",
            show_default="imagenet",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="The output of the .onnx file that has the features (N, C)."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="A TOML file or name; its image_size and split are used for --data."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the protocol, such as image_size=224."
        ),
    ] = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --out.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of folds and draws.")] = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Put a calibrated, balanced classifier on a model you already have; its encoder stays."""
    from lmd.frozen.calibrate import calibrate_run
    from lmd.frozen.classifier import NAME
    from lmd.frozen.encode import Asked

    asked = Asked(
        data, backbone, weights, output, protocol, parse_settings(settings or []),
        given_columns(context), skip_bad,
    )  # fmt: skip
    run = calibrate_run(
        source, asked=asked, out=out, overwrite=overwrite, seed=seed, device=device, quiet=quiet
    )
    record = run.record
    _print_candidates(record)
    for note in record.method.notes:
        typer.echo(f"Note: {note}")
    image_model = (run.path / "model.json").exists()
    typer.echo(f"\nThe classifier: {run.path / NAME}")
    if image_model:
        typer.echo(f"Images: lmd predict {run.path} IMAGES --out predictions.csv")
    typer.secho(f"The report: {run.path / 'report.html'}", bold=True)


def _print_candidates(record: "Record") -> None:
    tested = any(row.test is not None for row in record.candidates)
    held_out = "cross-validation" if not sum(record.data.counts["validation"]) else "validation"
    table = Table(
        Column("", no_wrap=True), "classifier", held_out, *(["test"] if tested else []),
        "worst class", "settings",
        box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for row in record.candidates:
        settings = ", ".join(f"{key} {value:g}" for key, value in row.settings.items())
        cells = [_points(row.held_out), *([_points(row.test)] if tested else [])]
        recall = row.worst_recall
        worst = "–" if recall is None else f"{row.worst_class} {100 * recall:.1f}"
        style = "bold" if row.chosen else None
        mark = "→" if row.chosen else ""
        table.add_row(mark, row.title, *cells, worst, settings, style=style)
    typer.echo(f"Balanced accuracy on {record.data.source} in per cent, with 95 % intervals")
    Console().print(table, markup=False, highlight=False)
    if tested:
        typer.echo("Recall of the worst class: on test. Nothing was chosen on test.")
    typer.echo(f"→ shipped: {record.model.selected}.")


def _points(found: "Estimate | None") -> str:
    if found is None or found.value is None:
        return "–"
    span = ""
    if found.low is not None and found.high is not None:
        span = f" ({100 * found.low:.1f} to {100 * found.high:.1f})"
    return f"{100 * found.value:.1f}{span}"
