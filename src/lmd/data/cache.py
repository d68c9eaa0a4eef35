"""A cache of decoded and resized images, so that a JPEG is decoded only once."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.folders import cache_folder
from lmd.data.resizing import resize
from lmd.data.table import Table

Tick = Callable[[int, int], None]
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
) -> tuple[Table, NDArray[np.uint8], tuple[str, ...]]:
    """Table and pixels ``(N, size, size, 3)`` of all readable images, and the problems of others.

    Pixels of files are kept in ``folder`` (default: ``cache_folder()``) under a name that changes
    with the files. An unreadable image is an ``LmdError`` unless ``skip_bad``.
    """
    if table.kind in IN_MEMORY:
        pixels = np.empty((len(table), size, size, 3), np.uint8)
        problems = dict(_fill(pixels, table, size, tick))
        return _without_bad(table, pixels, problems, skip_bad)
    target = (folder or cache_folder("images")) / f"{_key(table, size)}.npy"
    sidecar = target.with_suffix(".json")
    if not (target.exists() and sidecar.exists()):
        _write(target, sidecar, table, size, tick)
    problems = {int(i): str(why) for i, why in json.loads(sidecar.read_text()).items()}
    return _without_bad(table, np.load(target, mmap_mode="r"), problems, skip_bad)


def _key(table: Table, size: int) -> str:
    digest = hashlib.sha256(f"{RULE} {size} {table.signature}".encode())
    digest.update(np.ascontiguousarray(table.rows).tobytes())
    return digest.hexdigest()[:32]


def _write(target: Path, sidecar: Path, table: Table, size: int, tick: Tick | None) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
        os.close(handle)
        part = Path(name)
        try:
            shape = (len(table), size, size, 3)
            pixels = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
            problems = dict(_fill(pixels, table, size, tick))
            pixels.flush()
            del pixels
            sidecar.write_text(json.dumps(problems))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise LmdError(
            f"cannot write the image cache {target.parent} ({error.strerror}): free some space "
            "there, or set LMD_CACHE to another folder"
        ) from error


def _fill(
    pixels: NDArray[np.uint8], table: Table, size: int, tick: Tick | None
) -> Iterator[tuple[int, str]]:
    """Decode every image into ``pixels``; yields index and reason of unreadable ones."""

    def one(i: int) -> str | None:
        try:
            pixels[i] = resize(table.read(i), size)
        except LmdError as error:
            pixels[i] = 0
            return str(error)
        return None

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for i, problem in enumerate(pool.map(one, range(len(table)))):
            if tick is not None:
                tick(i + 1, len(table))
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
