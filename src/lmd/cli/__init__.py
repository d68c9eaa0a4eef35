"""The command line: parse, call, print, exit codes."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import typer

from lmd.base.errors import LmdError


class Interrupted(BaseException):
    """SIGINT or SIGTERM; not a KeyboardInterrupt, which Typer would catch."""


def main() -> NoReturn:
    """Entry point: an error that the user can fix is one message and exit code 1."""
    # Threads that spin while waiting slow down other runs; see docs/performance.md.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _listen(_interrupt)
    sys.unraisablehook = _unraisable
    try:
        from lmd.cli.commands import app  # after the signals: it takes a while

        code = app(standalone_mode=False)
        _listen(signal.SIG_IGN)  # all is done
    except Interrupted:
        _say_interrupted()
        sys.exit(130)
    except (LmdError, PermissionError) as error:
        _listen(signal.SIG_IGN)
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(1)
    except Exception as error:
        if _stopped:  # what the signal broke, such as a pipe to a child process
            _say_interrupted()
            sys.exit(130)
        # Usage errors of Typer have their own message and exit code.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        code = int(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


_stopped: list[int] = []


def _listen(action: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, action)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _listen(signal.SIG_IGN)  # a second signal must not interrupt the end
    _stopped.append(number)
    raise Interrupted


def _unraisable(found: "sys.UnraisableHookArgs") -> None:
    """A signal that arrives in a destructor cannot end the command by an exception."""
    if issubclass(found.exc_type, Interrupted):
        _say_interrupted()
        os._exit(130)  # files are written atomically, so that nothing is lost
    sys.__unraisablehook__(found)


_RESUMED = "run the same command with --resume to continue from the last finished epoch"
_GOING_ON = {
    "train": _RESUMED,
    "demo": _RESUMED,
    "benchmark": "run the same command again to continue; finished epochs are kept",
    "choose": "run the same command again to continue; finished epochs are kept",
}


def _say_interrupted() -> None:
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    how = _GOING_ON.get(command, "files are written whole or not at all; run the command again")
    typer.secho(f"interrupted: {how}", fg="yellow", err=True)
