"""``lmd serve``: bind, load, answer, and stop when asked to."""

import logging
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lmd.base.errors import LmdError
from lmd.serve.guard import is_loopback
from lmd.serve.limits import Limits

if TYPE_CHECKING:
    from lmd.serve.models import Engine

SHORTEST_TOKEN = 16


def check_access(host: str, token: str | None) -> None:
    """Another interface than loopback needs a token."""
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


def serve(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits,
    device: str = "cpu",
    engine: "Engine" = "auto",
    ready: Callable[[str, Sequence[str]], None],
) -> None:
    """Serve models until SIGINT or SIGTERM; ``ready`` gets the address and the models' names."""
    check_access(host, token)
    try:
        import fastapi  # noqa: F401
        import markdown_it  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise LmdError(
            f"lmd serve needs {error.name}, which is not installed: run pip install 'lmd[serve]'"
        ) from error
    from lmd.serve.app import create_app
    from lmd.serve.measures import Measures
    from lmd.serve.models import load_models
    from lmd.serve.service import Service

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Say that the server is ready as soon as signals stop it cleanly."""
            await super().startup(sockets)
            ready(f"http://{shown}:{listening.getsockname()[1]}/", list(models))

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

    _be_silent()
    with _bound(host, port) as listening:
        measures = Measures()
        models = load_models(paths, limits, measures, device, engine)
        app = create_app(Service(models, limits, measures), token)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=10,
            timeout_graceful_shutdown=int(limits.seconds) + 5,
        )
        shown = f"[{host}]" if ":" in host else host
        Server(config).run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio sends small pieces at once only where the protocol is known to be TCP:
    # each answer would wait 40 ms for an acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
        return made
    except (OSError, OverflowError) as error:
        made.close()
        why = getattr(error, "strerror", None) or error
        raise LmdError(
            f"--host {host} --port {port} cannot be used ({why}): choose another port or host"
        ) from None


def _be_silent() -> None:
    """Keep the contents of uploads out of the log: libraries quote what they cannot read."""
    warnings.simplefilter("ignore")
    for name in ("pydicom", "PIL", "python_multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
