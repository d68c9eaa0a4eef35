"""Read image files: formats, limits on memory, and files with several frames."""

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import cv2
import numpy as np
from PIL import Image

from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, listing_problem, what_is
from lmd.base.text import counted, shorten
from lmd.data.pixels import ORIENTATION, Pixels, pillow_pixels, quiet_decoders, scaled

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


DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})
SUFFIXES = DICOM_SUFFIXES | {
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2", ".ppm",
    ".pgm",
}  # fmt: skip

# A small file can unpack to any size; this is half a gigabyte of RGB pixels.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True)
class FileImages:
    """Images that are files below ``root``: ``read(row)`` opens ``paths[row]``."""

    paths: tuple[Path, ...]
    root: Path = Path()

    def read(self, row: int) -> Pixels:
        """RGB ``(H, W, 3)``, decoded at every call."""
        return read_image(self.paths[row])


class Decoded(NamedTuple):
    """RGB pixels ``(H, W, 3)`` of the first of the frames of a file."""

    pixels: Pixels
    frames: int = 1


def read_image(source: str | Path | bytes, *, kinds: tuple[str, ...] | None = None) -> Pixels:
    """RGB pixels ``(H, W, 3)`` of a file, see ``open_image``."""
    with open_image(source, kinds=kinds) as image:
        return image.pixels


@contextmanager
def open_image(
    source: str | Path | bytes, *, kinds: tuple[str, ...] | None = None
) -> Iterator[Decoded]:
    """Decode a file, given as its path or as its contents; a large image holds ``ROOM`` meanwhile.

    The EXIF orientation is applied, transparent pixels become black, only the first frame or page
    is read, and colour profiles are ignored. 16-bit values are scaled by their full range (a 12-bit
    TIFF by 4095); 32-bit integers and floats outside [0, 1] are stretched from minimum to maximum.
    DICOM files are windowed, see ``lmd.data.sources.dicom``. ``kinds`` are the only formats that
    are tried, by their names in Pillow; the default is all.
    """
    path = source if isinstance(source, bytes) else Path(source)
    with ExitStack() as stack:

        def hold(width: int, height: int) -> None:
            if width * height > MAX_PIXELS:
                raise too_large(path)
            stack.enter_context(ROOM.hold(width * height))

        yield _decode(path, hold, kinds)


Hold = Callable[[int, int], None]  # called with width and height before an image is decoded


def _decode(path: Path | bytes, hold: Hold, kinds: tuple[str, ...] | None) -> Decoded:
    kind = FILE if isinstance(path, bytes) else what_is(path)
    if isinstance(path, Path) and kind != FILE:
        raise _not_a_file(path, kind)
    try:
        with quiet_decoders():
            if has_dicom_mark(path) if isinstance(path, bytes) else is_dicom(path):
                return _decode_dicom(path, hold)
            return _decode_picture(path, hold, kinds)
    except (LmdError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise too_large(path) from None
    except Exception as error:  # Pillow and pydicom raise many kinds of errors on broken files.
        raise unreadable(path, error) from error


def _decode_dicom(path: Path | bytes, hold: Hold) -> Decoded:
    from lmd.data.sources import dicom

    pydicom = dicom.require_pydicom(shown(path))
    with _opened(path) as file:
        header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=dicom.SIZE)
        hold(int(header.Columns), int(header.Rows))
        file.seek(0)
        return Decoded(dicom.first_frame(pydicom.dcmread(file)), dicom.frames_of(header))


def _decode_picture(path: Path | bytes, hold: Hold, kinds: tuple[str, ...] | None) -> Decoded:
    with _opened(path) as file, Image.open(file, formats=kinds) as image:
        hold(image.width, image.height)
        pixels = _deep_colour(file, image)
        if pixels is None:
            image.load()
            pixels = pillow_pixels(image)
        return Decoded(pixels, _frames_of(image))


def _opened(path: Path | bytes) -> BinaryIO:
    return io.BytesIO(path) if isinstance(path, bytes) else path.open("rb")


def _frames_of(image: Image.Image) -> int:
    """The number of frames or pages; cameras store a preview with a JPEG, which does not count."""
    try:
        return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))
    except Exception:  # Pillow raises many kinds of errors where a later page is broken.
        return 1


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


def _deep_colour(file: BinaryIO, image: Image.Image) -> Pixels | None:
    """Colour of 16 bits, of which Pillow keeps only the upper 8; ``None`` if the file has less."""
    if image.mode not in {"RGB", "RGBA", "LA"} or ";16" not in str(getattr(image, "tile", "")):
        return None
    place = file.tell()
    file.seek(0)
    data = np.frombuffer(file.read(), np.uint8)
    file.seek(place)
    found = cv2.imdecode(data, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if found is None or found.dtype != np.uint16 or found.ndim != 3 or found.shape[2] < 3:
        return None
    order = [2, 1, 0, 3][: found.shape[2]]  # OpenCV has blue first
    upright = Image.fromarray(scaled(found, 65535)[:, :, order])
    del found, data
    upright.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return pillow_pixels(upright)


def frames_note(frames: Mapping[str, int]) -> str:
    """One line about files by name, with the number of their frames.

    >>> frames_note({"a.tif": 3})
    '1 file has several frames or pages, and the first was taken: a.tif (3)'
    """
    text = "{n} [file has|files have] several frames or pages, and the first was taken: "
    return counted(len(frames), text) + shorten([f"{name} ({n})" for name, n in frames.items()])
