"""``lmd export``: a trained model as one ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from lmd.cli.options import Overwrite


def export(
    run: Annotated[Path, typer.Argument(help="A run folder or its model.json.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Export a trained model as one ONNX file: uint8 RGB pixels in, probabilities out."""
    from lmd.deploy.engines import OnnxEngine
    from lmd.deploy.export import export_onnx

    written = export_onnx(run, onnx, overwrite=overwrite)
    engine = OnnxEngine(written)
    side, classes = engine.image_size, len(engine.classes)
    typer.echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, {classes} classes")
    size = "(B, H, W, 3), RGB, any size"
    if engine.rule == "v1":
        size = f"(B, {side}, {side}, 3), RGB, already resized"
    typer.echo(f"in   images         uint8 {size}")
    typer.echo(f"out  probabilities  float32 (B, {classes})")
    typer.echo(f"Try it: lmd predict {written} IMAGES --out predictions.csv")
