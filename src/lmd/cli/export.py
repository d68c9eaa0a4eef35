"""`lmd export`: a shipped model as a file for other software."""

from pathlib import Path
from typing import Annotated

import typer


def export_command(
    run: Annotated[Path, typer.Argument(help="A run folder or its model.json.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
) -> None:
    """Write a shipped model as one ONNX file: uint8 RGB pixels in, probabilities out."""
    from lmd.deploy.export import export_onnx
    from lmd.deploy.predict import OnnxEngine

    written = export_onnx(run, onnx, overwrite=overwrite)
    engine = OnnxEngine(written)
    side = engine.image_size
    typer.echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, {len(engine.classes)} classes")
    typer.echo(f"in   images         uint8 (B, {side}, {side}, 3), RGB, resized by you")
    typer.echo(f"out  probabilities  float32 (B, {len(engine.classes)})")
    typer.echo(f"Try it: lmd predict {written} IMAGES --out predictions.csv")
