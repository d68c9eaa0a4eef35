"""A cache of decoded and resized images, so that a JPEG is decoded only once."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.folders import cache_folder
from lmd.data.frames import frames_note, frames_of
from lmd.data.pixel_file import PixelFile, clear_leftovers
from lmd.data.pixels import quiet_decoders
from lmd.data.reading import FileImages
from lmd.data.resizing import resize
from lmd.data.table import Table

Tick = Callable[[int, int], None]
Say = Callable[[str], None]
# Changes with the rules of reading and resizing, so that no pixels of another rule are used.
RULE = "v2"
IN_MEMORY = ("synthetic", "arrays")


def decode(
    table: Table,
    size: int,
    *,
    folder: Path | None = None,
    skip_bad: bool = False,
    tick: Tick | None = None,
    say: Say | None = None,
) -> tuple[Table, NDArray[np.uint8], tuple[str, ...]]:
    """Table and pixels ``(N, size, size, 3)`` of all readable images, and the problems of others.

    Pixels of files are kept in ``folder`` (default: ``cache_folder()``) under a name that changes
    with the files. Only decoded images are kept, each with a checksum: an image that could not be
    read is read again next time, and damaged pixels are decoded again, which ``say`` is told. An
    unreadable image is an ``LmdError`` unless ``skip_bad``.
    """
    if table.kind in IN_MEMORY:
        pixels = np.empty((len(table), size, size, 3), np.uint8)
        problems = dict(_read(table, range(len(table)), size, pixels.__setitem__, tick))
        return _without_bad(table, pixels, problems, skip_bad)
    file = PixelFile(_place(table, size, folder), len(table), size)
    with _explained(file.path):
        clear_leftovers(file.path.parent)
        kept, damage = file.check()
        if damage and say is not None:
            say(f"  the image cache {file.path} is damaged ({damage}): it is made again")
        problems = _complete(file, table, kept, tick)
        frames = _frames(table, [i for i in np.flatnonzero(~kept).tolist() if i not in problems])
        if frames and say is not None:
            say(f"  data: {frames_note(frames)}.")
        return _without_bad(table, file.pixels(), problems, skip_bad)


def _complete(
    file: PixelFile, table: Table, kept: NDArray[np.bool_], tick: Tick | None
) -> dict[int, str]:
    """Decode the images that the file lacks; returns the problems of those that it still lacks."""
    wanted = np.flatnonzero(~kept).tolist()
    if not kept.any():
        with file.rewritten(kept) as write:
            return dict(_read(table, wanted, file.size, write, tick))
    found: dict[int, NDArray[np.uint8]] = {}
    problems = dict(_read(table, wanted, file.size, found.__setitem__, tick))
    if found:
        with file.rewritten(kept) as write:
            for i, pixels in found.items():
                write(i, pixels)
    return problems


def _frames(table: Table, decoded: Sequence[int]) -> dict[str, int]:
    """How many frames those of the images have that have several."""
    if not isinstance(table.images, FileImages):
        return {}
    found = {str(table.ids[i]): frames_of(table.images.paths[table.rows[i]]) for i in decoded}
    return {name: n for name, n in found.items() if n > 1}


def _place(table: Table, size: int, folder: Path | None) -> Path:
    digest = hashlib.sha256(f"{RULE} {size} {table.signature}".encode())
    digest.update(np.ascontiguousarray(table.rows).tobytes())
    return (folder or cache_folder("images")) / f"{digest.hexdigest()[:32]}.pixels"


class _explained:
    """Turns an ``OSError`` into a line that says what to do."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise LmdError(
                f"cannot use the image cache {self.folder} ({error.strerror or error}): free some "
                "space there, or set LMD_CACHE to another folder"
            ) from error


def _read(
    table: Table,
    wanted: Sequence[int],
    size: int,
    write: Callable[[int, NDArray[np.uint8]], object],
    tick: Tick | None,
) -> Iterator[tuple[int, str]]:
    """Decode images and ``write`` them; yields index and reason of unreadable ones."""

    def one(i: int) -> str | None:
        try:
            with table.room(i):
                pixels = resize(table.read(i), size)
        except LmdError as error:
            return str(error)
        except MemoryError:
            return f"image {table.ids[i]} needs more memory than there is"
        write(i, pixels)
        return None

    with quiet_decoders(), ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done, (i, problem) in enumerate(zip(wanted, pool.map(one, wanted), strict=True)):
            if tick is not None:
                tick(done + 1, len(wanted))
            if problem is not None:
                yield i, problem


def _without_bad(
    table: Table, pixels: NDArray[np.uint8], problems: dict[int, str], skip_bad: bool
) -> tuple[Table, NDArray[np.uint8], tuple[str, ...]]:
    if not problems:
        return table, pixels, ()
    if not skip_bad:
        shown = "\n".join(f"  {why}" for why in list(problems.values())[:10])
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise LmdError(
            f"{len(problems)} of {len(table)} images cannot be read:\n{shown}{more}\n"
            "Fix or remove them, or leave them out with --skip-bad."
        )
    keep = np.setdiff1d(np.arange(len(table)), np.array(list(problems), dtype=np.int64))
    return table.take(keep), pixels[keep], tuple(problems.values())
