"""``lmd export``: a trained model as one ONNX file."""

from pathlib import Path

import typer

from lmd.base.errors import LmdError


def export(
    run: Path,
    *,
    onnx: Path,
    quantise: str | None = None,
    data: str | None = None,
    anyway: bool = False,
    overwrite: bool = False,
) -> None:
    """Export a trained model as one ONNX file: uint8 RGB pixels in, probabilities out.

    Args:
        run: A run folder or its model.json.
        onnx: The ONNX file to write.
        quantise: int8: smaller and faster, if the validation images show that it pays. By default
            float32.
        data: The images of the run for --quantise, if they have moved.
        anyway: Write the int8 file even if it does not pay.
    """
    from lmd.base.progress import Display
    from lmd.export.export import export_run
    from lmd.predict.engines import OnnxEngine
    from lmd.predict.exported import PACKAGES, onnx_is_there

    if not onnx_is_there():
        raise LmdError(f"exporting needs {', '.join(PACKAGES)}: run pip install 'lmd[onnx]'")
    with Display() as display:
        written, _ = export_run(
            run, onnx, overwrite=overwrite, quantise=quantise, data=data, anyway=anyway,
            display=display,
        )  # fmt: skip
    engine = OnnxEngine(written)
    side, classes = engine.image_size, len(engine.classes)
    typer.echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, {classes} classes")
    size = "(B, H, W, 3), RGB, any size"
    if engine.rule == "v1":
        size = f"(B, {side}, {side}, 3), RGB, already resized"
    typer.echo(f"in   images         uint8 {size}")
    typer.echo(f"out  probabilities  float32 (B, {classes})")
    typer.echo(f"Try it: lmd predict {written} IMAGES --out predictions.csv")
