"""What a path leads to, asked without opening it: opening a pipe may never end."""

import os
import stat
from pathlib import Path

from lmd.base.errors import LmdError

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
