"""Read an image as RGB pixels and give it the size of a model: one rule for training and later.

A file, a Pillow image and an array with the same content have the same pixels. ``resize`` takes the
mean of an image over a window around the place of each pixel of the result. The window is as wide
as a pixel of the result, but at least as wide as a pixel of the image; beyond the edge, the
outermost pixel is repeated. Weights are integers of ``BITS`` bits, and both passes are exact in
floating point: float32 holds the first sum, below 2^24, and float64 the second, below 2^40. There
is one rounding, at the end, half up. So no library or processor can change a bit.
"""

import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, listing_problem, what_is
from lmd.base.text import counted, shorten

Pixels = NDArray[np.uint8]
Hold = Callable[[int, int], None]  # called with width and height before an image is decoded

DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})
SUFFIXES = DICOM_SUFFIXES | {
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".jp2", ".ppm",
    ".pgm",
}  # fmt: skip
# A small file can unpack to any size; this is half a gigabyte of RGB pixels.
MAX_PIXELS = 178_956_970
SMALL = 1 << 22  # images of fewer pixels are decoded without asking
BLOCK = 1 << 20  # values that are converted at once
ORIENTATION = 0x0112  # the EXIF tag

BITS = 16
ROWS = 8  # of the result, at most, that one product of matrices computes
PRODUCT = 1 << 17  # pixels that it computes, if one row does not need more
LONG = 1 << 16  # weights of longer sides are not cached
NARROW = 16  # images with a larger ratio of width to height are transposed first


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


class Decoded(NamedTuple):
    """RGB pixels ``(H, W, 3)`` of the first of the frames of a file."""

    pixels: Pixels
    frames: int = 1


def read_image(source: str | Path | bytes, *, kinds: tuple[str, ...] | None = None) -> Pixels:
    """Return RGB pixels ``(H, W, 3)`` of a file, see ``open_image``."""
    with open_image(source, kinds=kinds) as image:
        return image.pixels


@contextmanager
def open_image(
    source: str | Path | bytes, *, kinds: tuple[str, ...] | None = None
) -> Iterator[Decoded]:
    """Decode a file, by its path or its contents; a large image holds ``ROOM`` meanwhile.

    The EXIF orientation is applied, transparent pixels become black, only the first frame or page
    is read, and colour profiles are ignored. 16-bit values are scaled by their full range (a 12-bit
    TIFF by 4095); 32-bit integers and floats outside [0, 1] are stretched from minimum to maximum.
    DICOM files are windowed, see ``lmd.data.dicom``. ``kinds`` are the only formats that are tried,
    by their names in Pillow; the default is all.
    """
    path = source if isinstance(source, bytes) else Path(source)
    with ExitStack() as stack:

        def hold(width: int, height: int) -> None:
            if width * height > MAX_PIXELS:
                raise _too_large(path)
            stack.enter_context(ROOM.hold(width * height))

        yield _decode(path, hold, kinds)


def _decode(path: Path | bytes, hold: Hold, kinds: tuple[str, ...] | None) -> Decoded:
    state = FILE if isinstance(path, bytes) else what_is(path)
    if isinstance(path, Path) and state != FILE:
        if state == MISSING:
            raise LmdError(f"image {path} does not exist or is not a file")
        if state == FOLDER:
            why = listing_problem(path)
            state = "a folder" if why is None else f"a folder that cannot be listed: {why}"
        raise unreadable(path, f"it is {state}" if state.startswith("a ") else state)
    try:
        with quiet_decoders():
            medical = has_dicom_mark(path) if isinstance(path, bytes) else is_dicom(path)
            with io.BytesIO(path) if isinstance(path, bytes) else path.open("rb") as file:
                if not medical:
                    return _decode_file(file, hold, kinds)
                from lmd.data import dicom

                return dicom.decode(file, _shown(path), hold)
    except (LmdError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _too_large(path) from None
    except Exception as error:  # Pillow and pydicom raise many kinds of errors on broken files.
        raise unreadable(path, error) from error


def _decode_file(file: BinaryIO, hold: Hold, kinds: tuple[str, ...] | None) -> Decoded:
    with Image.open(file, formats=kinds) as image:
        hold(image.width, image.height)
        pixels = _deep_colour(file, image)
        if pixels is None:
            image.load()
            pixels = _pillow_pixels(image)
        try:  # A camera stores a preview with a JPEG, which does not count.
            frames = 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))
        except Exception:  # Pillow raises many kinds of errors where a later page is broken.
            frames = 1
        return Decoded(pixels, frames)


def _deep_colour(file: BinaryIO, image: Image.Image) -> Pixels | None:
    """Read colour of 16 bits, of which Pillow keeps only 8; ``None`` if the file has less."""
    if image.mode not in {"RGB", "RGBA", "LA"} or ";16" not in str(getattr(image, "tile", "")):
        return None
    place = file.tell()
    file.seek(0)
    data = np.frombuffer(file.read(), np.uint8)
    file.seek(place)
    deep = cv2.imdecode(data, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if deep is None or deep.dtype != np.uint16 or deep.ndim != 3 or deep.shape[2] < 3:
        return None
    order = [2, 1, 0, 3][: deep.shape[2]]  # OpenCV has blue first
    upright = Image.fromarray(_scale(deep, 65535)[:, :, order])
    del deep, data
    upright.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return _pillow_pixels(upright)


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Suppress warnings of Pillow and pydicom: lmd checks itself what it can read.

    Filters are global to the process: code that decodes in threads enters this before they start.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(PIL|pydicom)\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def is_image(path: Path) -> bool:
    """Return whether a file is an image, by its suffix or by the mark of DICOM."""
    return path.suffix.lower() in SUFFIXES or (not has_suffix(path) and is_dicom(path))


def is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM, by its suffix, or without one by the mark at byte 128.

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
    """Return whether the contents of a file have the mark of DICOM at byte 128."""
    return data[128:132] == b"DICM"


def has_suffix(path: Path) -> bool:
    """Return whether a name has a suffix that means something, unlike the last number of a UID.

    >>> has_suffix(Path("a.png")), has_suffix(Path("a")), has_suffix(Path("1.2.840.113"))
    (True, False, False)
    """
    return bool(path.suffix) and not path.suffix[1:].isdecimal()


def _too_large(path: Path | bytes) -> LmdError:
    return LmdError(
        f"{_shown(path)} has more than {MAX_PIXELS} pixels and is not decoded, because it might "
        "fill the memory: make it smaller, or remove it"
    )


def unreadable(path: Path | bytes, reason: object) -> LmdError:
    """Return the error for a broken file."""
    return LmdError(
        f"{_shown(path)} cannot be read ({reason}): replace or remove it, "
        "or leave out unreadable images with --skip-bad"
    )


def _shown(path: Path | bytes) -> str:
    return "the image" if isinstance(path, bytes) else f"image {path}"


def frames_note(frames: Mapping[str, int]) -> str:
    """Return one line about files by name, with the number of their frames."""
    text = "{n} [file has|files have] several frames or pages, and the first was taken: "
    return counted(len(frames), text) + shorten([f"{name} ({n})" for name, n in frames.items()])


def rgb_pixels(image: Any, name: str) -> Pixels:
    """Return RGB ``(H, W, 3)`` of a Pillow image or an array; refuse anything else.

    Arrays are ``(H, W)``, ``(H, W, 1)``, ``(H, W, 3)`` or ``(H, W, 4)``, of uint8 or uint16.
    """
    if isinstance(image, Image.Image):
        try:
            return _pillow_pixels(image)
        except (OSError, ValueError, SyntaxError) as error:
            raise LmdError(f"{name} cannot be read ({error}): open it again or remove it") from None
    if isinstance(image, np.ndarray):
        shaped = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3, 4))
        if shaped and image.size and image.dtype in (np.uint8, np.uint16):
            return array_pixels(image)
        shown = f"an array of {image.dtype} with shape {image.shape}"
    else:
        shown = f"of type {type(image).__name__}"
    raise LmdError(
        f"{name} is {shown}: give a path, a Pillow image, or an array of uint8 or uint16 with "
        "shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), channels last"
    )


def array_pixels(array: NDArray[Any]) -> Pixels:
    """Return RGB ``(H, W, 3)`` of a grey, RGB or RGBA array; scale uint16 by its full range."""
    if array.dtype == np.uint16:
        array = _scale(array, 65535)
    if array.ndim == 3 and array.shape[2] == 4:
        return _pillow_pixels(Image.fromarray(np.ascontiguousarray(array)))
    if array.ndim == 2:
        array = array[:, :, None]
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else np.array(array, order="C")


def _pillow_pixels(image: Image.Image) -> Pixels:
    """Return RGB ``(H, W, 3)``: upright by EXIF, on black, with 8 bits."""
    top, inverted = _grey_range(image)
    if image.getexif().get(ORIENTATION, 1) != 1:  # else it would be copied
        image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        if top is None and image.mode == "F" and values.min() >= 0 and values.max() <= 1:
            top = 1
        grey = stretch(values) if top is None else _scale(values, top)
        return np.repeat((255 - grey if inverted else grey)[:, :, None], 3, axis=2)
    if not image.has_transparency_data:
        return np.array(image if image.mode == "RGB" else image.convert("RGB"), dtype=np.uint8)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for rows, strip in strips(image):
        opaque = Image.new("RGBA", strip.size, (0, 0, 0, 255))
        pixels[rows] = np.asarray(Image.alpha_composite(opaque, strip))[:, :, :3]
    return pixels


def _grey_range(image: Image.Image) -> tuple[int | None, bool]:
    """Return the largest grey value, if the format defines it, and whether 0 means white."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(258, (16,))  # BitsPerSample
    inverted = tags.get(262, 1) == 0  # PhotometricInterpretation, which Pillow does not apply here
    if image.mode.startswith("I;16"):
        return 2 ** int(bits[0] if isinstance(bits, tuple) else bits) - 1, inverted
    # Older versions of Pillow open 16-bit PNG, and all open wide PGM, as 32-bit integers.
    return (65535 if image.format in {"PNG", "PPM"} else None), inverted


def strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """Yield rows of an image, and these as RGBA, so that no copy of a huge image is made."""
    for rows in _row_blocks(image.height, image.width):
        yield rows, image.crop((0, rows.start, image.width, rows.stop)).convert("RGBA")


def _row_blocks(height: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // max(width, 1))
    for first in range(0, height, step):
        yield slice(first, min(first + step, height))


def stretch(values: NDArray[Any]) -> Pixels:
    """Scale the minimum to 0 and the maximum to 255; all 0 if they are equal."""
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():  # the minimum of an array with a NaN is NaN
        raise ValueError("it has values that are not finite")
    return _scale(values, high, low) if high > low else np.zeros(values.shape, np.uint8)


def _scale(values: NDArray[Any], top: float, low: float = 0.0) -> Pixels:
    """Scale from [low, top], by rows: floats need eight times the memory."""
    pixels = np.empty(values.shape, np.uint8)
    for rows in _row_blocks(len(values), int(np.prod(values.shape[1:]))):
        pixels[rows] = as_uint8((values[rows].astype(np.float64) - low) / (top - low))
    return pixels


def as_uint8(unit: NDArray[np.floating[Any]]) -> Pixels:
    """Scale [0, 1] to the nearest integers in 0 … 255."""
    pixels: Pixels = np.floor(np.clip(unit, 0, 1) * 255 + 0.5).astype(np.uint8)
    return pixels


def resize(image: Pixels, size: int) -> Pixels:
    """Squash ``(H, W, 3)`` to ``(size, size, 3)``; as in the paper the aspect ratio is lost."""
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return np.ascontiguousarray(image)
    if width > NARROW * height:  # the first pass must shrink the long side, to save memory
        return np.ascontiguousarray(resize(image.transpose(1, 0, 2), size).transpose(1, 0, 2))
    columns = np.empty((width * 3, size), np.float32)
    for places, sources, block in _blocks(height, width, size, "float32"):
        # Only the rows that are needed are converted, so that a huge image fits.
        rows = image[sources].astype(np.float32, order="C").reshape(-1, width * 3)
        columns[:, places] = (block @ rows).T
    columns = columns.reshape(width, 3 * size)
    result = np.empty((size, size, 3), np.uint8)
    for places, sources, block in _blocks(width, size, size, "float64"):
        sums = block @ columns[sources].astype(np.float64)
        means = (sums * 2.0 ** (-2 * BITS) + 0.5).astype(np.uint8)
        result[:, places] = means.reshape(-1, 3, size).transpose(2, 0, 1)
    return result


def _blocks(
    length: int, across: int, size: int, dtype: str
) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
    block = _block if length <= LONG else _block.__wrapped__
    rows = max(1, min(ROWS, PRODUCT * size // (length * across)))
    for first in range(0, size, rows):
        yield block(length, size, first, min(first + rows, size), dtype)


@lru_cache(maxsize=512)
def _block(
    length: int, size: int, first: int, last: int, dtype: str
) -> tuple[slice, slice, NDArray[Any]]:
    """Return rows of the result, the rows of the source they need, and the weights between them."""
    wide = max(length, size)
    low = max(0, ((2 * first + 1) * length - wide) // (2 * size))
    high = min(length, -((-(2 * last - 1) * length - wide) // (2 * size)))
    block = weights(length, size, (first, last), (low, high)).astype(dtype)
    block.flags.writeable = False  # shared by all calls
    return slice(first, last), slice(low, high), block


def weights(
    length: int, size: int, places: tuple[int, int], sources: tuple[int, int]
) -> NDArray[np.int64]:
    """Return weights of the pixels ``sources`` of a side in the pixels ``places`` of the result.

    Every full row has the sum ``2**BITS``. They are differences of the rounded share of each window
    that lies before each source pixel.
    """
    # Lengths are in units of 1 / (2 size) source pixels, in which all are integers.
    wide = 2 * max(length, size)
    start = (2 * np.arange(*places, dtype=np.int64) + 1) * length - wide // 2
    edges = 2 * size * np.arange(sources[0], sources[1] + 1, dtype=np.int64)
    before = np.clip(edges - start[:, None], 0, wide)
    before[:, edges == 0] = 0
    before[:, edges == 2 * size * length] = wide
    rounded: NDArray[np.int64] = ((before << (BITS + 1)) + wide) // (2 * wide)
    return np.diff(rounded, axis=1)
