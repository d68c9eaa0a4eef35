"""One benchmark at a time in one folder."""

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmd.base.errors import LmdError

PATIENCE = 15.0  # seconds for the runs of a benchmark that was killed to end


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder's lock inside; yields its descriptor.

    A child that inherits the descriptor holds the lock too, so it is free only when every run of
    a benchmark that was killed has ended.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise LmdError(f"benchmark folder {folder} cannot be made: {error.strerror}") from error
    with file:
        limit = time.monotonic() + PATIENCE
        while not _taken(file.fileno()):
            file.seek(0)
            words = file.read().split()
            if _alive(words) or time.monotonic() > limit:
                raise LmdError(
                    f"another benchmark is at work in {folder} ({' '.join(words)}): wait for it, "
                    "stop it, or give another folder with --out"
                )
            time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield file.fileno()


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(words: list[str]) -> bool:
    """Whether the process that wrote the lock is there; of another machine nobody can tell."""
    if len(words) != 4 or words[3] != platform.node():
        return bool(words)
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
