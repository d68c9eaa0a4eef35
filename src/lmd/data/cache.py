"""Decode and resize every image once, into files that are read through memory maps.

All images below one folder share a file for each image size, so data sets, folds and tasks with the
same images share their pixels. A file is a list of records of one length: the pixels of an image, a
key (a hash of the path, size and time of the image file) and the CRC-32 of the pixels. Records are
only ever added. So an added image costs one record, an interrupted decode continues where it was,
and a process may read while another one adds.
"""

import errno
import hashlib
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.files import cache_folder, flock, whole
from lmd.base.text import counted
from lmd.data.images import Decoded, Pixels, frames_note, open_image, quiet_decoders, resize
from lmd.data.table import FileImages, Part, Table

if TYPE_CHECKING:
    from lmd.base.progress import Display

# Changes with the rules of reading and resizing, so that no pixels of another rule are used.
RULE = "v2"
KEY, CHECKSUM = 16, 4  # bytes
Write = Callable[[int, Pixels], None]
GIGABYTES = 50.0  # that all files may have together, unless LMD_CACHE_SIZE says otherwise


class PixelFile:
    """An open file of decoded images; ``entries`` are their rows and checksums so far, by key.

    The file is locked, shared, as long as it is open or mapped, so that it is not evicted.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.image = size * size * 3  # bytes
        self.record = self.image + KEY + CHECKSUM
        self.entries: dict[bytes, tuple[int, int]] = {}
        self._seen = 0  # records
        self._turn = threading.Lock()
        while True:
            try:
                self._file = FileIO(str(path), "a+")
            except OSError:
                if not path.is_file():
                    raise
                self._file = FileIO(str(path), "r")  # a complete cache may be read-only
            flock(self._file.fileno(), "LOCK_SH")
            if os.fstat(self._file.fileno()).st_nlink:
                break
            self._file.close()  # it was evicted before it was locked
        with suppress(OSError):
            os.utime(path)  # for the order of eviction

    def __enter__(self) -> "PixelFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, keys: Iterable[bytes]) -> int:
        """Look for images in the records added since the last call; count the damaged ones."""
        wanted, damaged = set(keys), set()
        count = os.fstat(self._file.fileno()).st_size // self.record
        for row in range(self._seen, count):
            place = row * self.record
            # Not through the map: so a disk that fails is an ``OSError``.
            self._file.seek(place + self.image)
            tail = self._file.read(KEY + CHECKSUM)
            key, checksum = tail[:KEY], int.from_bytes(tail[KEY:], "little")
            if key in wanted:
                self._file.seek(place)
                if zlib.crc32(self._file.read(self.image)) == checksum:
                    self.entries[key] = row, checksum
                else:
                    damaged.add(key)
        self._seen = count
        return len(damaged - self.entries.keys())

    @contextmanager
    def adding(self, display: "Display") -> Iterator[None]:
        """Hold the lock of processes that add images, and remove what a killed one left half."""
        with self.path.with_suffix(".lock").open("w") as lock:
            if not flock(lock.fileno(), "LOCK_EX", "LOCK_NB"):
                display.say("  another process decodes images of this data: waiting for it")
                flock(lock.fileno(), "LOCK_EX")
            length = os.fstat(self._file.fileno()).st_size
            os.ftruncate(self._file.fileno(), length - length % self.record)
            yield

    def add(self, key: bytes, pixels: Pixels) -> None:
        """Append a record; by ordinary writes, as a full disk would end a process at a map."""
        data = np.ascontiguousarray(pixels).tobytes()
        left = memoryview(data + key + zlib.crc32(data).to_bytes(CHECKSUM, "little"))
        with self._turn:
            while left:
                left = left[self._file.write(left) :]

    def map(self, count: int | None = None) -> Pixels:
        """Return pixels ``(M, S, S, 3)`` of all records, read from the disk when they are used."""
        count = self._seen if count is None else count
        shape = (self.size, self.size, 3)
        if count == 0:
            return np.empty((0, *shape), np.uint8)
        record = np.dtype([("pixels", "u1", shape), ("key", f"V{KEY}"), ("checksum", "<u4")])
        # The map has a duplicate of the descriptor, which keeps the lock.
        pixels: Pixels = np.memmap(self._file, record, "r", shape=(count,))["pixels"]
        return pixels


def _make_room(folder: Path, needed: int) -> None:
    """Remove the oldest files that no process uses until ``needed`` bytes are within the limit."""
    value = os.environ.get("LMD_CACHE_SIZE", "")
    try:
        gigabytes = float(value) if value else GIGABYTES
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < float("inf"):
        raise LmdError(f"LMD_CACHE_SIZE is {value!r}; expected a number of gigabytes, such as 50")
    limit = int(gigabytes * 1e9) - needed
    files = sorted(folder.glob("*.pixels"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in files)
    for path in files:
        if total <= limit:
            break
        with path.open("rb") as file:
            if flock(file.fileno(), "LOCK_EX", "LOCK_NB"):
                total -= os.fstat(file.fileno()).st_size
                path.unlink()
                path.with_suffix(".lock").unlink(missing_ok=True)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def decode(
    table: Table,
    size: int,
    display: "Display",
    *,
    folder: Path | None = None,
    skip_bad: bool = False,
) -> tuple[Table, Part, tuple[str, ...]]:
    """Return table and pixels ``(S, S, 3)`` of the readable images, and the problems of others.

    Pixels of files are kept in ``folder`` (default: ``cache_folder()``). An image that could not be
    read is read again next time, and damaged pixels are decoded again. An unreadable image is an
    ``LmdError`` unless ``skip_bad``.
    """
    if isinstance(table.images, FileImages):
        folder = folder or cache_folder("images")
        try:
            images, problems = _from_files(table, table.images, size, folder, display)
        except OSError as error:
            raise LmdError(
                f"cannot use the image cache {folder} ({error.strerror or error}): free some space "
                "there, or set LMD_CACHE to another folder"
            ) from error
    else:
        images, problems = _in_memory(table, size, display)
    display.stop()
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


def _in_memory(table: Table, size: int, display: "Display") -> tuple[Part, dict[int, str]]:
    pixels = np.empty((len(table), size, size, 3), np.uint8)
    checksums = np.zeros(len(table), np.uint32)

    def write(i: int, image: Pixels) -> None:
        pixels[i], checksums[i] = image, zlib.crc32(np.ascontiguousarray(image).data)

    problems = _read(table, range(len(table)), size, write, display)
    return Part(pixels, np.arange(len(table)), table.labels, checksums), problems


def _from_files(
    table: Table, images: FileImages, size: int, folder: Path, display: "Display"
) -> tuple[Part, dict[int, str]]:
    """Return the images in the file of their folder, after adding what it lacks.

    The folder is the root of the data, or if images are elsewhere, the nearest one above all.
    """
    paths = [images.paths[row] for row in table.rows]
    keys = [_key(path) for path in paths]
    home = whole(images.root)
    common = Path(os.path.commonpath([whole(path).parent for path in paths] or [home]))
    if not common.is_relative_to(home):
        home = common
    name = hashlib.sha256(f"{RULE} {size} {home}".encode()).hexdigest()[:32]
    problems: dict[int, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with PixelFile(folder / f"{name}.pixels", size) as file:
        if damaged := file.find(keys):
            what = counted(damaged, "the checksums of {n} [image|images] differ")
            display.say(
                f"  the image cache {file.path} is damaged ({what}): they are decoded again"
            )
        if not file.entries.keys() >= set(keys):
            with file.adding(display):
                file.find(keys)  # what another process has added meanwhile
                missing = [i for i, key in enumerate(keys) if key not in file.entries]
                _make_room(folder, len(missing) * file.record)
                problems = _read(table, missing, size, lambda i, p: file.add(keys[i], p), display)
                file.find(keys)
        if any(key not in file.entries and i not in problems for i, key in enumerate(keys)):
            raise OSError(f"{file.path} does not hold what was written to it")
        entries = [file.entries.get(key, (-1, 0)) for key in keys]
        index = np.array([row for row, _ in entries], np.int64)
        checksums = np.array([checksum for _, checksum in entries], np.uint32)
        return Part(file.map(), index, table.labels, checksums), problems


def _key(path: Path) -> bytes:
    """Return a hash that changes when the image file is another one, or may have other pixels."""
    try:
        state = path.stat()
        size, changed = state.st_size, state.st_mtime_ns
    except OSError:  # a broken link; it is reported when it is read
        size, changed = -1, 0
    text = f"{path.absolute()}\0{size}\0{changed}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:KEY]


def _read(
    table: Table, wanted: Sequence[int], size: int, write: Write, display: "Display"
) -> dict[int, str]:
    """Decode images and ``write`` them; return index and reason of unreadable ones."""
    frames: dict[str, int] = {}
    paths = table.images.paths if isinstance(table.images, FileImages) else None

    def work(i: int) -> str | None:
        try:
            with (
                open_image(paths[table.rows[i]]) if paths else nullcontext(Decoded(table.read(i)))
            ) as image:
                pixels = resize(image.pixels, size)
        except LmdError as error:
            return str(error)
        except MemoryError:
            return f"image {table.ids[i]} needs more memory than there is"
        write(i, pixels)
        if image.frames > 1:
            frames[str(table.ids[i])] = image.frames
        return None

    problems = {}
    with quiet_decoders(), ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        display.start("decoding images", len(wanted))
        for done, (i, problem) in enumerate(zip(wanted, pool.map(work, wanted), strict=True)):
            display.step(done + 1, len(wanted))
            if problem is not None:
                problems[i] = problem
    if frames:
        display.say(f"  data: {frames_note(dict(sorted(frames.items())))}.")
    return problems
