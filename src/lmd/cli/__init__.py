"""The command line: parse, call, print, exit codes."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from lmd.base.errors import LmdError
from lmd.cli.commands import app


class Interrupted(BaseException):
    """Ctrl-C or a request to end; not a KeyboardInterrupt, which the parser would swallow."""


def main() -> NoReturn:
    """Entry point: an error of the user is one message and exit code 1, never a traceback."""
    # Threads that spin while they wait slow down other runs on the machine: docs/performance.md.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        code = app(standalone_mode=False)
    except LmdError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(1)
    except Interrupted:
        typer.secho(
            "interrupted: nothing is lost; the same command with --resume goes on from the last "
            "finished epoch",
            fg="yellow",
            err=True,
        )
        sys.exit(130)
    except Exception as error:
        # Typer's own usage errors carry their message and exit code.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(int(getattr(error, "exit_code", 2)))
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise Interrupted
