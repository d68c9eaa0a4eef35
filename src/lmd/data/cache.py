"""Decode and resize every image once, into a memory-mapped file."""

import contextlib
import fcntl
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import cache_folder
from lmd.data.pixels import quiet_decoders
from lmd.data.reading import FileImages, frames_note, frames_of
from lmd.data.resizing import resize
from lmd.data.table import Table

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Part:
    """Some of the decoded images ``pixels (M, S, S, 3)``, which are read when a batch is made.

    ``index (N,)`` are their places in ``pixels``, which may be a memory map and is never copied;
    ``labels (N,)`` their classes; ``checksums (N,)`` their CRC-32, if they are known.
    """

    pixels: Pixels
    index: NDArray[np.int64]
    labels: NDArray[np.int64]
    checksums: NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, pixels: Pixels, labels: NDArray[np.int64]) -> "Part":
        """All images of an array."""
        return cls(pixels, np.arange(len(labels)), labels)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Pixels:
        """Copies of some images ``(B, S, S, 3)``."""
        return np.asarray(self.pixels[self.index[rows]])

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a memory map to another process as the name of its file."""
        pixels: Any = self.pixels
        if isinstance(pixels, np.memmap):
            pixels = _MapOfFile(pixels.filename, pixels.offset, pixels.shape)
        return _part_of, (pixels, self.index, self.labels, self.checksums)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Part":
        """Some of the images, in the chosen order."""
        sums = None if self.checksums is None else self.checksums[rows]
        return Part(self.pixels, self.index[rows], self.labels[rows], sums)


@dataclass(frozen=True)
class _MapOfFile:
    path: Any
    offset: int
    shape: tuple[int, ...]


def _part_of(pixels: Any, *rest: Any) -> Part:
    if isinstance(pixels, _MapOfFile):
        pixels = np.memmap(pixels.path, np.uint8, "r", pixels.offset, pixels.shape)
    return Part(pixels, *rest)


PART = ".part"  # the suffix of a file that is being written, under a lock


@dataclass(frozen=True)
class PixelFile:
    """The file at ``path`` for ``count`` images of ``size`` pixels a side."""

    path: Path
    count: int
    size: int

    @property
    def row(self) -> int:
        """The bytes of one image."""
        return self.size * self.size * 3

    def pixels(self) -> Pixels:
        """The pixels ``(N, S, S, 3)``, read from the disk when they are used."""
        shape = (self.count, self.size, self.size, 3)
        return np.memmap(self.path, np.uint8, mode="r", shape=shape)

    def checksums(self) -> NDArray[np.uint32]:
        """The CRC-32 of all images ``(N,)``."""
        return np.fromfile(self.path, "<u4", self.count, offset=self.count * (self.row + 1))

    def check(self) -> tuple[NDArray[np.bool_], str]:
        """Which images are there undamaged ``(N,)``, and what is damaged, in words.

        Reads all pixels by ordinary reads: a disk that fails is an ``OSError``.
        """
        kept = np.zeros(self.count, np.bool_)
        if not self.path.exists():
            return kept, ""
        with self.path.open("rb") as file:
            length, expected = os.fstat(file.fileno()).st_size, self.count * (self.row + 5) + 4
            if length != expected:
                return kept, f"it has {length} bytes instead of {expected}"
            file.seek(self.count * self.row)
            tables = file.read()
            if zlib.crc32(tables[:-4]).to_bytes(4, "little") != tables[-4:]:
                return kept, "its checksums are not those that were written"
            decoded = np.frombuffer(tables, np.uint8, self.count) == 1
            sums = np.frombuffer(tables, "<u4", self.count, offset=self.count)
            file.seek(0)
            for i in range(self.count):
                kept[i] = decoded[i] and zlib.crc32(file.read(self.row)) == sums[i]
                if not decoded[i]:
                    file.seek(self.row * (i + 1))
        changed = int(decoded.sum() - kept.sum())
        return kept, f"the checksums of {changed} images differ" if changed else ""

    @contextlib.contextmanager
    def rewritten(self, kept: NDArray[np.bool_]) -> Iterator[Callable[[int, Pixels], None]]:
        """Replace the file by one with the ``kept`` images and those that are then written.

        All space is reserved first, and pixels are written by ordinary writes: through a memory
        map, a full disk would end the process. The new file appears when it is complete.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _new_part(self.path.parent) as (descriptor, part):
            _reserve(descriptor, self.count * (self.row + 5) + 4)
            decoded, sums = np.zeros(self.count, np.uint8), np.zeros(self.count, "<u4")

            def write(i: int, pixels: Pixels) -> None:
                data = np.ascontiguousarray(pixels).tobytes()
                _write_all(descriptor, data, i * self.row)
                decoded[i], sums[i] = 1, zlib.crc32(data)

            if kept.any():
                before = self.pixels()
                for i in np.flatnonzero(kept).tolist():
                    write(i, before[i])
                del before
            yield write
            tables = decoded.tobytes() + sums.tobytes()
            tables += zlib.crc32(tables).to_bytes(4, "little")
            _write_all(descriptor, tables, self.count * self.row)
            os.fsync(descriptor)
            part.replace(self.path)
            for suffix in (".npy", ".json"):  # of earlier versions
                self.path.with_suffix(suffix).unlink(missing_ok=True)


def clear_leftovers(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed; they hold no lock any more."""
    for part in folder.glob(f"*{PART}"):
        with contextlib.suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


@contextlib.contextmanager
def _new_part(folder: Path) -> Iterator[tuple[int, Path]]:
    """A new file under a lock; it is removed unless it was renamed."""
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=PART)
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another process took it for a leftover, before it was locked
    try:
        yield descriptor, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def _reserve(descriptor: int, length: int) -> None:
    """Reserve space on the disk; an ``OSError`` if there is too little."""
    reserve = getattr(os, "posix_fallocate", None)  # not on every system
    if reserve is not None:
        reserve(descriptor, 0, length)
    else:
        for start in range(0, length, 1 << 20):
            _write_all(descriptor, bytes(min(1 << 20, length - start)), start)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


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
) -> tuple[Table, Part, tuple[str, ...]]:
    """Table and pixels ``(size, size, 3)`` of all readable images, and the problems of others.

    Pixels of files are kept in ``folder`` (default: ``cache_folder()``) under a name that changes
    with the files. Only decoded images are kept, each with a checksum: an image that could not be
    read is read again next time, and damaged pixels are decoded again, which ``say`` is told. An
    unreadable image is an ``LmdError`` unless ``skip_bad``.
    """
    if table.kind in IN_MEMORY:
        pixels = np.empty((len(table), size, size, 3), np.uint8)
        sums = np.zeros(len(table), np.uint32)

        def write(i: int, image: Pixels) -> None:
            pixels[i], sums[i] = image, zlib.crc32(np.ascontiguousarray(image).data)

        problems = dict(_read(table, range(len(table)), size, write, tick))
        return _without_bad(table, pixels, sums, problems, skip_bad)
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
        return _without_bad(table, file.pixels(), file.checksums(), problems, skip_bad)


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
    table: Table,
    pixels: Pixels,
    sums: NDArray[np.uint32],
    problems: dict[int, str],
    skip_bad: bool,
) -> tuple[Table, Part, tuple[str, ...]]:
    images = Part(pixels, np.arange(len(table)), table.labels, sums)
    if not problems:
        return table, images, ()
    if not skip_bad:
        shown = "\n".join(f"  {why}" for why in list(problems.values())[:10])
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise LmdError(
            f"{len(problems)} of {len(table)} images cannot be read:\n{shown}{more}\n"
            "Fix or remove them, or leave them out with --skip-bad."
        )
    keep = np.setdiff1d(np.arange(len(table)), np.array(list(problems), dtype=np.int64))
    return table.take(keep), images.take(keep), tuple(problems.values())
