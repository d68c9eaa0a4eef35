"""Write files whole or not at all, check paths before that, and lock folders for one process."""

import contextlib
import errno
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TextIO

from lmd.base.errors import LmdError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

Content = bytes | Callable[[BinaryIO], object]

_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the size limit of this process or file system",
}


def check_output(path: Path, option: str, *kinds: str) -> None:
    """Raise an ``LmdError`` if a file cannot be written there, before the work that makes it.

    ``kinds`` are the endings that its name may have. Missing folders are no error:
    ``atomic_write`` makes them with ``parents``.
    """
    if kinds and path.suffix.lower() not in kinds:
        raise LmdError(f"{option} is {path}; the name of the file must end in {' or '.join(kinds)}")
    if path.is_dir():
        raise LmdError(f"{option} is {path}, a folder: give the name of a file")
    folder = next(above for above in path.absolute().parents if above.exists())
    if not folder.is_dir():
        raise LmdError(f"{option} is {path}, but {folder} is not a folder: choose another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LmdError(
            f"{option} is {path}, but nothing can be written to {folder}: choose another"
        )


def atomic_write(path: Path, content: Content, *, parents: bool = False) -> None:
    """Write a file completely or not at all; a callable receives the open file to write to.

    The bytes go to a temporary file that is flushed to disk and then renamed. After a failure the
    old file is unchanged and the temporary file is removed. ``parents`` makes missing folders.
    """
    atomic_write_all({path: content}, parents=parents)


def atomic_write_all(contents: Mapping[Path, Content], *, parents: bool = False) -> None:
    """Write files that belong together; none is renamed before all have been flushed to disk."""
    staged = {
        path: path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.tmp") for path in contents
    }
    try:
        for path, content in contents.items():
            with _explained(path):
                if parents:
                    path.parent.mkdir(parents=True, exist_ok=True)
                with staged[path].open("xb") as file:
                    if callable(content):
                        content(file)
                    else:
                        file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
        for path, temporary in staged.items():
            with _explained(path):
                temporary.replace(path)
        for folder in {path.parent for path in contents}:
            # The new name must survive a power cut too; some systems cannot open a folder.
            with contextlib.suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    finally:
        for temporary in staged.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def clear_leftovers(*folders: Path) -> None:
    """Remove the temporary files of writers that were killed; no other may be at work there."""
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if is_leftover(path):
                    path.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Return whether a file has the name of a temporary file.

    >>> is_leftover(Path("run/.record.json.0123456789ab.tmp")), is_leftover(Path("run/a.tmp"))
    (True, False)
    """
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name) is not None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_ROOM:
            reason = (
                f"{_NO_ROOM[error.errno]}; free some space or choose another folder. "
                "An existing file of this name is unchanged"
            )
        raise LmdError(f"cannot write {path}: {reason}") from error


def cache_folder(kind: str) -> Path:
    """Return ``$LMD_CACHE/KIND``, or ``~/.cache/lmd/KIND`` if the variable is not set."""
    base = os.environ.get("LMD_CACHE")
    return (Path(base).expanduser() if base else Path.home() / ".cache" / "lmd") / kind


FILE, FOLDER, MISSING = "a file", "a folder", "missing"
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
SPECIAL = frozenset(_SPECIAL.values())


def what_is(path: Path) -> str:
    """Return ``FILE``, ``FOLDER``, one of ``SPECIAL``, ``MISSING``, or why there is no access.

    >>> what_is(Path("/dev/null")), what_is(Path("/nowhere"))
    ('a device', 'missing')
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except OSError as error:  # a loop of links, a name that is too long, no permission
        return (error.strerror or str(error)).lower()
    except ValueError as error:  # a null character
        return str(error)
    if stat.S_ISREG(mode):
        return FILE
    return FOLDER if stat.S_ISDIR(mode) else _SPECIAL.get(stat.S_IFMT(mode), "a special file")


def listing_problem(folder: Path) -> str | None:
    """Return why a folder cannot be listed; ``None`` if it can."""
    try:
        with os.scandir(folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def whole(path: str | Path) -> Path:
    """Return the absolute path without ``..``; links stay, unlike in ``Path.resolve``."""
    return Path(os.path.normpath(Path(path).expanduser().absolute()))


def check_outside(folder: Path, data: str) -> None:
    """Raise an ``LmdError`` if a folder would be written among the class folders of the data."""
    source = Path(data).expanduser()
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise LmdError(
            f"the folder {folder} lies inside the data {data}, where it would be taken for a "
            "class: run the command from another folder, or give --out"
        )


PATIENCE = 15.0  # seconds that the child processes of a killed process have to end
LOCK = ".lock"


def flock(descriptor: int, *flags: str) -> bool:
    """Lock an open file, with flags of ``fcntl.flock``; return whether no other process has it.

    On Windows, and on a file system without locks, none ever has.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, sum(getattr(fcntl, flag) for flag in flags))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextlib.contextmanager
def locked(folder: Path, what: str = "benchmark", *, remove: bool = False) -> Iterator[int]:
    """Hold the folder's lock and yield its file descriptor; it is free when the process has ended.

    Child processes that inherit the descriptor hold the lock too: after a kill it is free once all
    of them have ended. ``what`` is at work is for the message; ``remove`` removes the file at the
    end.
    """
    with _acquire(folder, what) as file:
        with contextlib.suppress(OSError):  # a full disk; the lock holds without a name
            os.ftruncate(file.fileno(), 0)
            # Not by the file's buffer, which would be written again when it is closed.
            os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        try:
            yield file.fileno()
        finally:
            if remove:
                with contextlib.suppress(OSError):  # Windows keeps a file that is open
                    (folder / LOCK).unlink()


def _acquire(folder: Path, what: str) -> TextIO:
    """Open and lock the file of a folder's lock; the error for a lock that is held names who."""
    path, limit = folder / LOCK, time.monotonic() + PATIENCE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise LmdError(f"cannot create {what} folder {folder}: {error.strerror}") from error
        with contextlib.ExitStack() as unless_locked:
            unless_locked.enter_context(file)
            if flock(file.fileno(), "LOCK_EX", "LOCK_NB"):
                # Its last holder may have removed the file.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                        unless_locked.pop_all()
                        return file
            else:
                file.seek(0)
                holder = file.read().split()
                alive = _alive(holder)
                if alive or time.monotonic() > limit:
                    who = " ".join(holder)
                    raise LmdError(
                        f"another {what} is running in {folder} "
                        f"({who if alive else f'a child of {who}, which has ended'}): wait for it, "
                        "stop it, or choose another folder with --out"
                    )
        time.sleep(0.1)


def _alive(holder: list[str]) -> bool:
    """Return whether the process that wrote the lock runs; on another machine it is assumed to."""
    if len(holder) != 4 or holder[3] != platform.node() or not holder[1].isdecimal():
        return bool(holder)
    try:
        os.kill(int(holder[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # it runs as another user
    return True


@contextlib.contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold the lock of a file, as soon as the process that holds it has let it go or ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        flock(file.fileno(), "LOCK_EX")
        try:
            yield
        finally:  # worker processes may have inherited the open file
            flock(file.fileno(), "LOCK_UN")
