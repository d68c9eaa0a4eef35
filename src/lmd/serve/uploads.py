"""From uploaded bytes to pixels: what is no plain JPEG, PNG, TIFF or DICOM image is refused.

Headers are checked before anything is decoded. Nothing is written to disk.
"""

import io
import unicodedata
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.reading import has_dicom_mark, read_image
from lmd.data.resizing import resize
from lmd.explain.heat_map import shown
from lmd.serve.dicom_check import check_dicom
from lmd.serve.limits import Limits
from lmd.serve.problems import Problem, busy

_MARKS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
}
_MOST_CHUNKS = 65_536
_MOST_NAME = 255
BAD = "The image is damaged, cut short or of an unsupported kind: check that a viewer opens it."


@dataclass(frozen=True)
class Decoded:
    """An image ``pixels (S, S, 3)`` as the model takes it, and ``picture (H, W, 3)`` to show."""

    pixels: NDArray[np.uint8]
    picture: NDArray[np.uint8] | None


def decode(data: bytes, size: int, limits: Limits, *, picture: bool) -> Decoded:
    """The pixels of an upload for a model with images of ``size``.

    The full image is not kept: it may be large, and many requests wait at the same time.
    """
    kind = check(data, limits)
    kinds = None if kind == "DICOM" else (kind,)
    try:
        full = read_image(data, kinds=kinds)
        return Decoded(resize(full, size), shown(full) if picture else None)
    except LmdError as error:
        if "pip install" in str(error):
            raise Problem("wrong-type", "This server cannot read DICOM files.") from None
        raise Problem("bad-image", BAD) from None
    except MemoryError:
        raise busy("There is not enough memory for the image", 5) from None


def check(data: bytes, limits: Limits) -> str:
    """The kind of an upload: JPEG, PNG, TIFF or DICOM; a ``Problem`` for all else."""
    if not data:
        raise Problem("bad-image", "The file is empty.")
    if len(data) > limits.image_bytes:
        raise Problem("too-large", f"A file may have at most {limits.image_mb:g} MB.")
    kind = sniff(data)
    if kind == "PNG" and _has_too_many_chunks(data):
        raise Problem("bad-image", BAD)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "DICOM":
                high, wide, frames = check_dicom(data, limits)
            else:
                high, wide, frames = _raster(data, kind, limits)
    except Problem:
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels(limits) from None
    except Exception:  # Pillow and pydicom raise many kinds of errors on a broken header.
        raise Problem("bad-image", BAD) from None
    if frames > limits.frames:
        raise Problem(
            "too-many-frames",
            f"An image may have at most {limits.frames} frames or pages: send one of them.",
        )
    if high < 1 or wide < 1:
        raise Problem("bad-image", BAD)
    if high * wide > limits.pixels or max(high, wide) > limits.side:
        raise _too_many_pixels(limits)
    return kind


def sniff(data: bytes) -> str:
    """The kind by the first bytes; names and declared types do not count."""
    if has_dicom_mark(data):
        return "DICOM"
    for mark, kind in _MARKS.items():
        if data.startswith(mark):
            return kind
    raise Problem("wrong-type", "Send a JPEG, PNG, TIFF or DICOM image.")


def check_name(name: str) -> str:
    """A file name that can be shown; it is never used as a path."""
    odd = any(unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Co", "Cn"} for letter in name)
    if odd or not name.strip(" .") or len(name.encode(errors="replace")) > _MOST_NAME:
        raise Problem("bad-name", "A file name must be printable text of at most 255 bytes.")
    if set(name) & set("/\\"):
        raise Problem("bad-name", "A file name must not contain a path.")
    return name


def _has_too_many_chunks(png: bytes) -> bool:
    """Return whether a PNG file has more chunks than an image needs; reading each takes time."""
    place = 8
    for _ in range(_MOST_CHUNKS):
        if place + 12 > len(png):
            return False
        place += 12 + int.from_bytes(png[place : place + 4])
    return True


def _raster(data: bytes, kind: str, limits: Limits) -> tuple[int, int, int]:
    """Height, width and frames, by the header."""
    with Image.open(io.BytesIO(data), formats=(kind,)) as image:
        wide, high = image.size
        return high, wide, _frames(image, kind, limits)


def _frames(image: Any, kind: str, limits: Limits) -> int:
    if kind == "PNG":
        return int(getattr(image, "n_frames", 1))
    if kind == "TIFF":  # counting all pages could take long
        try:
            image.seek(limits.frames)
        except EOFError:
            return 1
        return limits.frames + 1
    return 1  # further pictures in a JPEG file are previews


def _too_many_pixels(limits: Limits) -> Problem:
    return Problem(
        "too-many-pixels",
        f"An image may have at most {limits.megapixels:g} million pixels and {limits.side} on a "
        "side: make it smaller.",
    )
