"""``lmd serve``: a web page and a REST API for trained models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lmd.base.options import Device


def serve(
    models: Annotated[
        list[Path], typer.Argument(help="Run folders, their model.json, or .onnx files.")
    ],
    host: Annotated[str, typer.Option(help="The interface to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LMD_TOKEN",
            help="What every request must present; needed for any --host but loopback.",
            show_default="none",
        ),
    ] = None,
    max_image_mb: Annotated[float, typer.Option(help="Size of one file.")] = 20,
    max_request_mb: Annotated[float, typer.Option(help="Size of one request.")] = 100,
    max_megapixels: Annotated[float, typer.Option(help="Pixels of one image, in millions.")] = 32,
    max_frames: Annotated[
        int, typer.Option(help="Frames or pages of one image; only the first is answered.")
    ] = 1,
    max_files: Annotated[int, typer.Option(help="Images in one request.")] = 32,
    max_seconds: Annotated[float, typer.Option(help="Time of one request.")] = 30,
    queue: Annotated[
        int, typer.Option(help="Images that may wait for one model; beyond them the answer is 503.")
    ] = 256,
    engine: Annotated[
        str,
        typer.Option(
            help="What computes the predictions of run folders: onnx, torch, or auto, which is "
            "onnx on a CPU if the extra onnx is installed."
        ),
    ] = "auto",
    device: Device = "auto",
) -> None:
    """Serve trained models: a page to look at images, and a REST API (/docs)."""
    from lmd.base.device import choose_device
    from lmd.base.errors import LmdError
    from lmd.serve.limits import Limits
    from lmd.serve.run import serve as run

    if engine not in ("auto", "onnx", "torch"):
        raise LmdError(f"--engine must be auto, onnx or torch; it is {engine!r}")
    limits = Limits(
        image_mb=max_image_mb,
        request_mb=max_request_mb,
        megapixels=max_megapixels,
        frames=max_frames,
        files=max_files,
        seconds=max_seconds,
        queue=queue,
    )

    def ready(address: str, names: Sequence[str]) -> None:
        typer.echo(f"Serving {', '.join(names)}")
        typer.secho(f"The page: {address}", bold=True)
        typer.echo(f"The API:  {address}docs")
        typer.echo("Stop with Ctrl-C.")

    run(
        models,
        host=host,
        port=port,
        token=token,
        limits=limits,
        device=str(choose_device(device)),
        engine=engine,  # type: ignore[arg-type]
        ready=ready,
    )
    typer.echo("Stopped.")
