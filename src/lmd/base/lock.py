"""Only one process at a time works in a folder; the lock is free when its process has ended."""

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from lmd.base.errors import LmdError

PATIENCE = 15.0  # seconds that the child processes of a killed process have to end
NAME = ".lock"


@contextlib.contextmanager
def locked(folder: Path, what: str = "benchmark", *, remove: bool = False) -> Iterator[int]:
    """Hold the folder's lock; yields its file descriptor.

    Child processes that inherit the descriptor hold the lock too: after a kill it is free once all
    of them have ended. ``what`` is at work is for the message; ``remove`` removes the file at the
    end.
    """
    limit = time.monotonic() + PATIENCE
    while True:
        file = _opened(folder, what)
        try:
            if _taken(file.fileno()):
                if _current(folder, file):
                    break
            else:
                _refuse(file, folder, what, limit)
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(0.1)
    with file:
        with contextlib.suppress(OSError):  # a full disk; the lock holds without a name
            os.ftruncate(file.fileno(), 0)
            # Not by the file's buffer, which would be written again when it is closed.
            os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        try:
            yield file.fileno()
        finally:
            if remove:
                (folder / NAME).unlink(missing_ok=True)


@contextlib.contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold the lock of a file, as soon as the process that holds it has let it go or ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        try:
            yield
        finally:  # worker processes may have inherited the open file
            with contextlib.suppress(OSError):
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _opened(folder: Path, what: str) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / NAME).open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise LmdError(f"cannot create {what} folder {folder}: {error.strerror}") from error


def _refuse(file: TextIO, folder: Path, what: str, limit: float) -> None:
    """Raise an error that names the holder, unless it has just ended."""
    file.seek(0)
    words = file.read().split()
    alive = _alive(words)
    if alive or time.monotonic() > limit:
        who = " ".join(words) if alive else f"a child of {' '.join(words)}, which has ended"
        raise LmdError(
            f"another {what} is running in {folder} ({who}): wait for it, stop it, or choose "
            "another folder with --out"
        )


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _current(folder: Path, file: TextIO) -> bool:
    """Whether the locked file is still the folder's; its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), (folder / NAME).stat())
    except FileNotFoundError:
        return False


def _alive(words: list[str]) -> bool:
    """Whether the process that wrote the lock is running; assumed so on another machine."""
    if len(words) != 4 or words[3] != platform.node() or not words[1].isdecimal():
        return bool(words)
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # it runs as another user
    return True
