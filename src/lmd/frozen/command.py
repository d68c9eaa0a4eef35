"""``lmd calibrate``: a balanced classifier for the model that people already have."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lmd.base.command import Settings
from lmd.base.text import text_table
from lmd.data.source import Columns
from lmd.scoring.estimates import MISSING, number_text

if TYPE_CHECKING:
    from lmd.runs.record import Record


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
    typer.echo(_candidates(record))
    for note in record.method.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"\nThe classifier: {run.path / NAME}")
    if (run.path / "model.json").exists():
        typer.echo(f"Images: lmd predict {run.path} IMAGES --out predictions.csv")
    typer.secho(f"The report: {run.path / 'report.html'}", bold=True)


def _candidates(record: "Record") -> str:
    """Compare the classifiers; an arrow marks the one that is shipped."""
    tested = any(row.test is not None for row in record.candidates)
    held_out = "cross-validation" if not sum(record.data.counts["validation"]) else "validation"
    rows = [("", "classifier", held_out, "test" if tested else "", "worst class", "settings"), None]
    for row in record.candidates:
        worst = MISSING
        if row.worst_recall is not None:
            worst = f"{row.worst_class} {number_text(row.worst_recall, '.1p')}"
        cells = (
            "→" if row.chosen else "",
            row.title,
            row.held_out.text(".1p", MISSING) if row.held_out else MISSING,
            row.test.text(".1p", MISSING) if row.test else MISSING if tested else "",
            worst,
            ", ".join(f"{key} {value:g}" for key, value in row.settings.items()),
        )
        rows.append(cells)
    lines = [
        f"Balanced accuracy on {record.data.source} in per cent, with 95 % intervals",
        text_table(rows, "l"),
    ]
    if tested:
        lines.append("Recall of the worst class: on test. Nothing was chosen on test.")
    return "\n".join([*lines, f"→ shipped: {record.model.selected}."])
