"""Only one benchmark at a time works in a folder."""

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmd.base.errors import LmdError

PATIENCE = 15.0  # seconds that the runs of a killed benchmark have to end


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder's lock; yields its file descriptor.

    Child processes inherit the descriptor and hold the lock too. After a benchmark was killed,
    the lock is free once all of its runs have ended.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise LmdError(f"cannot create benchmark folder {folder}: {error.strerror}") from error
    with file:
        limit = time.monotonic() + PATIENCE
        while not _taken(file.fileno()):
            file.seek(0)
            words = file.read().split()
            if _alive(words) or time.monotonic() > limit:
                raise LmdError(
                    f"another benchmark is running in {folder} ({' '.join(words)}): wait for it, "
                    "stop it, or choose another folder with --out"
                )
            time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield file.fileno()


def _taken(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _alive(words: list[str]) -> bool:
    """Whether the process that wrote the lock is running; assumed so on another machine."""
    if len(words) != 4 or words[3] != platform.node():
        return bool(words)
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user
    return True
