"""``lmd serve``: bind, load, answer, and stop when asked to."""

import logging
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lmd.base.errors import LmdError, need_extra
from lmd.serve.limits import Limits, is_loopback

SHORTEST_TOKEN = 16
PACKAGES = ("python_multipart", "markdown_it", "prometheus_client")


def serve(
    models: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    token: Annotated[str | None, typer.Option(envvar="LMD_TOKEN")] = None,
    limits: Limits = Limits(),
    engine: Literal["auto", "onnx", "torch"] = "auto",
    device: str = "auto",
) -> None:
    """Serve trained models: a page to look at images, and a REST API (/docs).

    Args:
        models: Run folders, their model.json, or .onnx files.
        host: The interface to listen on.
        port: The port; 0 takes a free one.
        token: What every request must present; needed for any --host but loopback.
        engine: What computes the predictions of run folders: onnx, torch, or auto, which is onnx
            on a CPU if the extra onnx is installed.
    """
    check_access(host, token)
    need_extra("lmd serve", "serve", "fastapi", "uvicorn", *PACKAGES)
    from lmd.base.distributed import choose_device
    from lmd.serve.app import create_app
    from lmd.serve.models import Measures, Service, load_models

    # The contents of uploads stay out of the log: libraries quote what they cannot read.
    warnings.simplefilter("ignore")
    for library in ("pydicom", "PIL", "python_multipart"):
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    with _bound(host, port) as listening:
        measures = Measures()
        served = load_models(models, limits, measures, str(choose_device(device)), engine)
        app = create_app(Service(served, limits, measures), token)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/"

        def ready() -> None:
            typer.echo(f"Serving {', '.join(served)}")
            typer.secho(f"The page: {address}", bold=True)
            typer.echo(f"The API:  {address}docs")
            typer.echo("Stop with Ctrl-C.")

        _run(app, listening, int(limits.max_seconds) + 5, ready)
    typer.echo("Stopped.")


def check_access(host: str, token: str | None) -> None:
    """Refuse a short token, and an interface other than loopback without one."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
        raise LmdError(
            f"--token must have at least {SHORTEST_TOKEN} characters, all of ASCII; it has "
            f'{len(token)}: make one with `python -c "import secrets; '
            'print(secrets.token_urlsafe())"`'
        )
    if token is None and not is_loopback(host):
        raise LmdError(
            f"--host {host} can be reached from other machines and needs --token: give one, or "
            "use 127.0.0.1"
        )


def _run(app: Any, listening: socket.socket, patience: int, ready: Callable[[], None]) -> None:
    """Answer until SIGINT or SIGTERM, then finish what was begun in ``patience`` seconds."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Say that the server is ready as soon as signals stop it cleanly."""
            await super().startup(sockets)
            ready()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Stop on a signal, and do not raise it once more at the end."""
            both = (signal.SIGINT, signal.SIGTERM)
            before = {number: signal.signal(number, self.handle_exit) for number in both}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=patience,
    )
    Server(config).run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio sends small pieces at once only where the protocol is known to be TCP:
    # each answer would wait 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or error
        raise LmdError(
            f"--host {host} --port {port} cannot be used ({why}): choose another port or host"
        ) from None
