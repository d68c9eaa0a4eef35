"""``lmd calibrate``: a balanced classifier for the model that people already have."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from lmd.base.command import Settings
from lmd.data.source import Columns

if TYPE_CHECKING:
    from lmd.runs.record import Record
    from lmd.scoring.estimates import Estimate


def calibrate(
    source: str,
    *,
    out: Path | None = None,
    data: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    output: str | None = None,
    protocol: str | None = None,
    settings: Settings = None,
    columns: Columns = Columns(),
    skip_bad: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> None:
    """Put a calibrated, balanced classifier on a model you already have; its encoder stays.

    Args:
        source: An .npz of features and labels, a run folder, or an encoder: a backbone such as
            resnet50 or timm/NAME, a weight file with --backbone, or an .onnx file.
        out: The run folder to write. By default runs/SOURCE-calibrated.
        data: Images for an encoder: a folder of class folders, a .csv or an .npz. For a run: where
            its images are now, if they have moved.
        backbone: The backbone whose weights the file SOURCE has.
        weights: Weights of the backbone SOURCE: a file, 'imagenet' or 'none'. By default imagenet.
        output: The output of the .onnx file that has the features (N, C).
        protocol: A TOML file or name; its image_size and split are used for --data.
        settings: A setting of the protocol, such as image_size=224; can be repeated.
        overwrite: Replace the run in --out.
        seed: Random seed.
    """
    from lmd.frozen.calibrate import calibrate_run
    from lmd.frozen.classifier import NAME
    from lmd.frozen.encode import Encoding

    encoding = Encoding(
        data, columns, skip_bad, backbone, weights, output, protocol, dict(settings or {})
    )
    run = calibrate_run(
        source, encoding, out=out, overwrite=overwrite, seed=seed, device=device, quiet=quiet
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
