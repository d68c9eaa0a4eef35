"""Write files whole or not at all, and check paths before anything is written."""

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from lmd.base.errors import LmdError

Content = bytes | Callable[[BinaryIO], object]

_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the size limit of this process or file system",
}


class _File(io.FileIO):
    """A raw file that remembers why a write failed.

    Writers in C++ (``torch.save``) replace the ``OSError`` of a full disk by an error of their own.
    """

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


def check_output(path: Path, option: str, *kinds: str) -> None:
    """An ``LmdError`` if a file cannot be written there; called before the work that makes it.

    ``kinds`` are the endings that its name may have. Folders that are missing are no error:
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
    for path in contents if parents else ():
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    staged = {
        path: path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.tmp") for path in contents
    }
    try:
        for path, content in contents.items():
            _write(path, staged[path], content)
        for path, temporary in staged.items():
            with _explained(path):
                temporary.replace(path)
        for folder in {path.parent for path in contents}:
            _sync_folder(folder)
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
    """Whether a file has the name of a temporary file.

    >>> is_leftover(Path("run/.record.json.0123456789ab.tmp")), is_leftover(Path("run/a.tmp"))
    (True, False)
    """
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name) is not None


def _write(path: Path, temporary: Path, content: Content) -> None:
    with _explained(path):
        raw = _File(temporary, "xb")
    file = io.BufferedWriter(raw)
    try:
        if callable(content):
            content(cast(BinaryIO, file))
        else:
            file.write(content)
        file.flush()
        with _explained(path):
            os.fsync(raw.fileno())
    except BaseException as error:
        if raw.failure is not None:
            raise _explanation(path, raw.failure) from error
        raise
    finally:
        # After a failed write, closing the file tries to write the rest again.
        with contextlib.suppress(OSError):
            file.close()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: OSError) -> LmdError:
    reason = _NO_ROOM.get(error.errno or 0)
    if reason is None:
        return LmdError(f"cannot write {path}: {error.strerror or error}")
    return LmdError(
        f"cannot write {path}: {reason}; free some space or choose another folder. "
        "An existing file of this name is unchanged"
    )


def _sync_folder(folder: Path) -> None:
    # The new name must survive a power cut too; some systems cannot open a folder.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def cache_folder(kind: str) -> Path:
    """``$LMD_CACHE/KIND``, or ``~/.cache/lmd/KIND`` if the variable is not set."""
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
    """``FILE``, ``FOLDER``, one of ``SPECIAL``, ``MISSING``, or why the path cannot be followed.

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
    """Why a folder cannot be listed; ``None`` if it can."""
    try:
        with os.scandir(folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def whole(path: str | Path) -> Path:
    """The absolute path without ``..``; links stay as they are, unlike in ``Path.resolve``."""
    return Path(os.path.normpath(Path(path).expanduser().absolute()))


def check_outside(folder: Path, data: str) -> None:
    """An ``LmdError`` if a folder would be written among the class folders of the data."""
    source = Path(data).expanduser()
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise LmdError(
            f"the folder {folder} lies inside the data {data}, where it would be taken for a "
            "class: run the command from another folder, or give --out"
        )
