"""One file of the image cache: pixels of N images, and a checksum of each.

The file has the pixels ``(N, S, S, 3)``, a byte for each image that is 1 if it was decoded, a
CRC-32 for each image, and a CRC-32 of these two tables.
"""

import contextlib
import fcntl
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
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
