"""Read image files: formats, limits on memory, and files with several frames."""

import hashlib
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, listing_problem, what_is
from lmd.base.text import counted, shorten
from lmd.data.pixels import ORIENTATION, pillow_pixels, quiet_decoders, scaled

SMALL = 1 << 22  # images of fewer pixels are decoded without asking


@dataclass
class Room:
    """Room for ``most`` pixels; an image that is larger waits until it has the room alone."""

    most: int
    taken: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for ``pixels``, and hold it inside the context."""
        share = 0 if pixels < SMALL else min(pixels, self.most)
        with self.changed:
            self.changed.wait_for(lambda: self.taken + share <= self.most)
            self.taken += share
        try:
            yield
        finally:
            with self.changed:
                self.taken -= share
                self.changed.notify_all()


ROOM = Room(1 << 26)


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Hold room for the pixels of an image file, from before it is decoded until it is resized."""
    with ROOM.hold(pixels_of(path)):
        yield


def pixels_of(path: Path) -> int:
    """Width times height by the header of a file; 0 if it is small or cannot be read."""
    try:
        if what_is(path) != FILE:
            return 0
        if is_dicom(path):
            import pydicom

            wanted = ["Rows", "Columns"]
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
            found = int(header.Rows) * int(header.Columns)
        else:
            with quiet_decoders(), Image.open(path) as image:
                found = image.width * image.height
    except Exception:  # Broken files raise many kinds of errors; reading the pixels names them.
        return 0
    return found if found <= MAX_PIXELS else 0  # larger ones are not decoded


DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})
SUFFIXES = DICOM_SUFFIXES | {
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2", ".ppm",
    ".pgm",
}  # fmt: skip

# A small file can unpack to any size; this is half a gigabyte of RGB pixels.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True)
class FileImages:
    """Images that are files: ``read(row)`` opens ``paths[row]``."""

    paths: tuple[Path, ...]

    def read(self, row: int) -> NDArray[np.uint8]:
        """RGB ``(H, W, 3)``, decoded at every call."""
        return read_image(self.paths[row])

    def room(self, row: int) -> AbstractContextManager[None]:
        """Hold room in the memory for an image, see ``lmd.data.reading``."""
        return room_for(self.paths[row])


def read_image(
    source: str | Path | bytes,
    *,
    at_least: int | None = None,
    kinds: tuple[str, ...] | None = None,
) -> NDArray[np.uint8]:
    """RGB pixels ``(H, W, 3)`` of a file, given as its path or as its contents.

    The EXIF orientation is applied, transparent pixels become black, only the first frame or page
    is read, and colour profiles are ignored. 16-bit values are scaled by their full range (a 12-bit
    TIFF by 4095); 32-bit integers and floats outside [0, 1] are stretched from minimum to maximum.
    DICOM files are windowed, see ``lmd.data.sources.dicom``. With ``at_least``, for thumbnails, a
    JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, but no side becomes shorter than that.
    ``kinds`` are the only formats that are tried, by their names in Pillow; the default is all.
    """
    path: Path | bytes = source if isinstance(source, bytes) else Path(source)
    kind = FILE if isinstance(path, bytes) else what_is(path)
    if isinstance(path, Path) and kind != FILE:
        raise _not_a_file(path, kind)
    if has_dicom_mark(path) if isinstance(path, bytes) else is_dicom(path):
        from lmd.data.sources.dicom import read_dicom

        with quiet_decoders():
            return read_dicom(path)
    try:
        with quiet_decoders():
            return _decode(path, at_least, kinds)
    except (LmdError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise too_large(path) from None
    except Exception as error:  # Pillow raises many kinds of errors on a broken file.
        raise unreadable(path, error) from error


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM, by its suffix, or without one by the mark at byte 128.

    Names that are UIDs, such as ``1.2.840.10008.5``, have no suffix.
    """
    if has_suffix(path):
        return path.suffix.lower() in DICOM_SUFFIXES
    try:
        if what_is(path) != FILE:
            return False
        with path.open("rb") as file:
            return has_dicom_mark(file.read(132))
    except OSError:
        return False


def has_dicom_mark(data: bytes) -> bool:
    """Whether the contents of a file have the mark of DICOM at byte 128."""
    return data[128:132] == b"DICM"


def is_image(path: Path) -> bool:
    """Whether a file is an image, by its suffix or by the mark of DICOM."""
    return path.suffix.lower() in SUFFIXES or (not has_suffix(path) and is_dicom(path))


def has_suffix(path: Path) -> bool:
    """Whether a name has a suffix that means something; the last number of a UID does not.

    >>> has_suffix(Path("a.png")), has_suffix(Path("a")), has_suffix(Path("1.2.840.113"))
    (True, False, False)
    """
    return bool(path.suffix) and not path.suffix[1:].isdecimal()


def _not_a_file(path: Path, kind: str) -> LmdError:
    if kind == MISSING:
        return LmdError(f"image {path} does not exist or is not a file")
    if kind == FOLDER:
        why = listing_problem(path)
        kind = "a folder" if why is None else f"a folder that cannot be listed: {why}"
    return unreadable(path, f"it is {kind}" if kind.startswith("a ") else kind)


def too_large(path: Path | bytes) -> LmdError:
    """The error for an image with more than ``MAX_PIXELS`` pixels."""
    return LmdError(
        f"{shown(path)} has more than {MAX_PIXELS} pixels and is not decoded, because it might "
        "fill the memory: make it smaller, or remove it"
    )


def unreadable(path: Path | bytes, reason: object) -> LmdError:
    """The error for a broken file."""
    return LmdError(
        f"{shown(path)} cannot be read ({reason}): replace or remove it, "
        "or leave out unreadable images with --skip-bad"
    )


def shown(path: Path | bytes) -> str:
    """An image in a message."""
    return "the image" if isinstance(path, bytes) else f"image {path}"


def file_signature(ids: Sequence[str], paths: Sequence[Path]) -> str:
    """SHA-256 over the names, places, sizes and modification times of files."""
    digest = hashlib.sha256()
    for name, path in zip(ids, paths, strict=True):
        try:
            state = path.stat()
            size, changed = state.st_size, state.st_mtime_ns
        except OSError:  # A broken link; it is reported when it is read.
            size, changed = -1, 0
        # Other images of the same names may have equal sizes and times, in a copy or an archive.
        entry = f"{name}\0{path.absolute()}\0{size}\0{changed}\n"
        digest.update(entry.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _decode(
    path: Path | bytes, at_least: int | None, kinds: tuple[str, ...] | None
) -> NDArray[np.uint8]:
    file = io.BytesIO(path) if isinstance(path, bytes) else path
    with Image.open(file, formats=kinds) as image:
        if image.width * image.height > MAX_PIXELS:
            raise too_large(path)
        deep = _deep_colour(path, image)
        if deep is not None:
            return deep
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        return pillow_pixels(image)


def _deep_colour(path: Path | bytes, image: Image.Image) -> NDArray[np.uint8] | None:
    """Colour of 16 bits, of which Pillow keeps only the upper 8; ``None`` if the file has less."""
    if image.mode not in {"RGB", "RGBA", "LA"} or ";16" not in str(getattr(image, "tile", "")):
        return None
    contents = path if isinstance(path, bytes) else path.read_bytes()
    data = np.frombuffer(contents, np.uint8)
    found = cv2.imdecode(data, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if found is None or found.dtype != np.uint16 or found.ndim != 3 or found.shape[2] < 3:
        return None
    order = [2, 1, 0, 3][: found.shape[2]]  # OpenCV has blue first
    upright = Image.fromarray(scaled(found, 65535)[:, :, order])
    del found, data
    upright.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return pillow_pixels(upright)


# Formats that have one image; cameras store a preview with a JPEG, which does not count.
SINGLE = frozenset({".jpg", ".jpeg", ".jfif", ".bmp", ".jp2", ".ppm", ".pgm"})


def frames_of(path: Path) -> int:
    """The number of frames or pages by the header of a file; 1 if it cannot be read."""
    if path.suffix.lower() in SINGLE or what_is(path) != FILE:
        return 1
    try:
        if is_dicom(path):
            import pydicom

            wanted = ["NumberOfFrames"]
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
            return int(header.get("NumberOfFrames") or 1)
        with quiet_decoders(), Image.open(path) as image:
            return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))
    except Exception:  # Broken files raise many kinds of errors; reading the pixels names them.
        return 1


def frames_note(frames: Mapping[str, int]) -> str:
    """One line about files by name, with the number of their frames.

    >>> frames_note({"a.tif": 3})
    '1 file has several frames or pages, and the first was taken: a.tif (3)'
    """
    text = "{n} [file has|files have] several frames or pages, and the first was taken: "
    return counted(len(frames), text) + shorten([f"{name} ({n})" for name, n in frames.items()])
