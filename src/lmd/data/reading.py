"""From an image file to RGB pixels."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lmd.base.errors import LmdError

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


def read_image(path: str | Path, at_least: int | None = None) -> NDArray[np.uint8]:
    """RGB pixels ``(H, W, 3)`` of a file.

    The EXIF orientation is applied, transparent pixels become black, only the first frame or page
    is read, and colour profiles are ignored. 16-bit grey values are scaled by their full range (a
    12-bit TIFF by 4095); 32-bit integers and floats outside [0, 1] are stretched from minimum to
    maximum. DICOM files are windowed, see ``lmd.data.sources.dicom``. With ``at_least`` a JPEG may
    be decoded at 1/2, 1/4 or 1/8 of its size, but no side becomes shorter than that.
    """
    path = Path(path)
    if not path.is_file():
        raise LmdError(f"image {path} does not exist or is not a file")
    if is_dicom(path):
        from lmd.data.sources.dicom import read_dicom

        return read_dicom(path)
    try:
        with warnings.catch_warnings():
            # Pillow warns about odd metadata, and about sizes that are checked below.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return _decode(path, at_least)
    except (LmdError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise too_large(path) from None
    except Exception as error:  # Pillow raises many kinds of errors on a broken file.
        raise unreadable(path, error) from error


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM, by its suffix, or without one by the mark at byte 128."""
    if path.suffix:
        return path.suffix.lower() in DICOM_SUFFIXES
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def is_image(path: Path) -> bool:
    """Whether a file is an image, by its suffix or by the mark of DICOM."""
    return path.suffix.lower() in SUFFIXES or (not path.suffix and is_dicom(path))


def too_large(path: Path) -> LmdError:
    """The error for an image with more than ``MAX_PIXELS`` pixels."""
    return LmdError(
        f"image {path} has more than {MAX_PIXELS} pixels and is not decoded, because it might "
        "fill the memory: make it smaller, or remove it"
    )


def unreadable(path: Path, reason: object) -> LmdError:
    """The error for a broken file."""
    return LmdError(
        f"image {path} cannot be read ({reason}): replace or remove it, "
        "or leave out unreadable images with --skip-bad"
    )


def file_signature(ids: Sequence[str], paths: Sequence[Path]) -> str:
    """SHA-256 over the names, sizes and modification times of files."""
    digest = hashlib.sha256()
    for name, path in zip(ids, paths, strict=True):
        try:
            state = path.stat()
            size, changed = state.st_size, state.st_mtime_ns
        except OSError:  # A broken link; it is reported when it is read.
            size, changed = -1, 0
        digest.update(f"{name}\0{size}\0{changed}\n".encode())
    return digest.hexdigest()


def stretch(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale the minimum to 0 and the maximum to 255; all 0 if they are equal."""
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("it has values that are not finite")
    low, high = wide.min(), wide.max()
    return as_uint8((wide - low) / (high - low) if high > low else wide - low)


def as_uint8(unit: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Scale [0, 1] to the nearest integers in 0 … 255."""
    return np.floor(np.clip(unit, 0, 1) * 255 + 0.5).astype(np.uint8)


def _decode(path: Path, at_least: int | None) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        if image.width * image.height > MAX_PIXELS:
            raise too_large(path)
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        top, inverted = _grey_range(image)
        upright = ImageOps.exif_transpose(image)
    if upright.mode == "F" or upright.mode.startswith("I"):
        grey = _eight_bits(np.asarray(upright), top)
        return np.repeat((255 - grey if inverted else grey)[:, :, None], 3, axis=2)
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        black = Image.new("RGBA", upright.size, (0, 0, 0, 255))
        upright = Image.alpha_composite(black, upright)
    return np.array(upright.convert("RGB"), dtype=np.uint8)


def _grey_range(image: Image.Image) -> tuple[int | None, bool]:
    """The largest possible grey value, if the format defines it, and whether 0 means white."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(258, (16,))  # BitsPerSample
    inverted = tags.get(262, 1) == 0  # PhotometricInterpretation, which Pillow does not apply here
    if image.mode.startswith("I;16"):
        return 2 ** int(bits[0] if isinstance(bits, tuple) else bits) - 1, inverted
    # Older versions of Pillow open 16-bit PNG, and all open wide PGM, as 32-bit integers.
    return (65535 if image.format in {"PNG", "PPM"} else None), inverted


def _eight_bits(values: NDArray[Any], top: int | None) -> NDArray[np.uint8]:
    if top is not None:
        return as_uint8(values.astype(np.float64) / top)
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        return as_uint8(values.astype(np.float64))
    return stretch(values)
