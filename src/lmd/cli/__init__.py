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
    """SIGINT or SIGTERM; not a KeyboardInterrupt, which Typer would catch."""


def main() -> NoReturn:
    """Entry point: an error that the user can fix is one message and exit code 1."""
    # Threads that spin while waiting slow down other runs; see docs/performance.md.
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
            "interrupted: run the same command with --resume to continue from the last finished "
            "epoch",
            fg="yellow",
            err=True,
        )
        sys.exit(130)
    except Exception as error:
        # Usage errors of Typer have their own message and exit code.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(int(getattr(error, "exit_code", 2)))
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise Interrupted
