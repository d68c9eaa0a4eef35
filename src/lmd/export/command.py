"""``lmd export``: a trained model as one ONNX file."""

from pathlib import Path

import typer


def export(run: Path, *, onnx: Path, overwrite: bool = False) -> None:
    """Export a trained model as one ONNX file: uint8 RGB pixels in, probabilities out.

    Args:
        run: A run folder or its model.json.
        onnx: The ONNX file to write.
    """
    from lmd.export.export import export_onnx
    from lmd.predict.onnx_files import OnnxEngine

    written = export_onnx(run, onnx, overwrite=overwrite)
    classes = len(OnnxEngine(written).classes)
    typer.echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, {classes} classes")
    typer.echo("in   images         uint8 (B, H, W, 3), RGB, any size")
    typer.echo(f"out  probabilities  float32 (B, {classes})")
    typer.echo(f"Try it: lmd predict {written} IMAGES --out predictions.csv")
