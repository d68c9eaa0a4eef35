"""``lmd serve``: a web page and a REST API for trained models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer


def serve(
    models: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    token: Annotated[str | None, typer.Option(envvar="LMD_TOKEN")] = None,
    max_image_mb: float = 20,
    max_request_mb: float = 100,
    max_megapixels: float = 32,
    max_frames: int = 1,
    max_files: int = 32,
    max_seconds: float = 30,
    queue: int = 256,
    engine: str = "auto",
    device: str = "auto",
) -> None:
    """Serve trained models: a page to look at images, and a REST API (/docs).

    Args:
        models: Run folders, their model.json, or .onnx files.
        host: The interface to listen on.
        port: The port; 0 takes a free one.
        token: What every request must present; needed for any --host but loopback.
        max_image_mb: Size of one file.
        max_request_mb: Size of one request.
        max_megapixels: Largest accepted image, in megapixels.
        max_frames: Frames or pages of one image; only the first is answered.
        max_files: Images in one request.
        max_seconds: Time of one request.
        queue: Images that may wait for one model; beyond them the answer is 503.
        engine: What computes the predictions of run folders: onnx, torch, or auto, which is onnx
            on a CPU if the extra onnx is installed.
    """
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
