"""From an image in memory to RGB pixels: one rule for files, Pillow images and arrays."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lmd.base.errors import LmdError

Pixels = NDArray[np.uint8]
ORIENTATION = 0x0112  # the EXIF tag
BLOCK = 1 << 20  # values that are converted at once


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Suppress warnings of Pillow and pydicom: lmd checks itself what it can read.

    Filters are global to the process: code that decodes in threads enters this before they start.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(PIL|pydicom)\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def rgb_pixels(image: Any, name: str) -> Pixels:
    """RGB ``(H, W, 3)`` of a Pillow image or an array; an ``LmdError`` for anything else.

    Arrays are ``(H, W)``, ``(H, W, 1)``, ``(H, W, 3)`` or ``(H, W, 4)``, of uint8 or uint16.
    """
    if isinstance(image, Image.Image):
        try:
            return pillow_pixels(image)
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
    """RGB ``(H, W, 3)`` of a grey, RGB or RGBA array; uint16 is scaled by its full range."""
    if array.dtype == np.uint16:
        array = scaled(array, 65535)
    if array.ndim == 3 and array.shape[2] == 4:
        return pillow_pixels(Image.fromarray(np.ascontiguousarray(array)))
    if array.ndim == 2:
        array = array[:, :, None]
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else np.array(array, order="C")


def pillow_pixels(image: Image.Image) -> Pixels:
    """RGB ``(H, W, 3)``: upright by EXIF, on black, with 8 bits by the rule of ``eight_bits``."""
    top, inverted = _grey_range(image)
    if image.getexif().get(ORIENTATION, 1) != 1:  # else it would be copied
        image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        grey = eight_bits(np.asarray(image), top)
        return np.repeat((255 - grey if inverted else grey)[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        return _on_black(image)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"), dtype=np.uint8)


def _on_black(image: Image.Image) -> Pixels:
    found = np.empty((image.height, image.width, 3), np.uint8)
    for rows, strip in strips(image):
        opaque = Image.new("RGBA", strip.size, (0, 0, 0, 255))
        found[rows] = np.asarray(Image.alpha_composite(opaque, strip))[:, :, :3]
    return found


def strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """Rows of an image and these rows as RGBA, so that no copy of a huge image is made."""
    for rows in _row_blocks(image.height, image.width):
        yield rows, image.crop((0, rows.start, image.width, rows.stop)).convert("RGBA")


def _row_blocks(height: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // max(width, 1))
    for first in range(0, height, step):
        yield slice(first, min(first + step, height))


def scaled(values: NDArray[Any], top: float, low: float = 0.0) -> Pixels:
    """``as_uint8((values - low) / (top - low))``, by rows: floats need eight times the memory."""
    found = np.empty(values.shape, np.uint8)
    for rows in _row_blocks(len(values), int(np.prod(values.shape[1:]))):
        wide = values[rows].astype(np.float64)
        found[rows] = as_uint8((wide - low) / (top - low))
    return found


def eight_bits(values: NDArray[Any], top: int | None) -> Pixels:
    """Grey values scaled by ``top``, or without it floats by [0, 1] and others by their range."""
    if top is not None:
        return scaled(values, top)
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        return scaled(values, 1)
    return stretch(values)


def stretch(values: NDArray[Any]) -> Pixels:
    """Scale the minimum to 0 and the maximum to 255; all 0 if they are equal."""
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():  # the minimum of an array with a NaN is NaN
        raise ValueError("it has values that are not finite")
    return scaled(values, high, low) if high > low else np.zeros(values.shape, np.uint8)


def as_uint8(unit: NDArray[np.floating[Any]]) -> Pixels:
    """Scale [0, 1] to the nearest integers in 0 … 255."""
    scaled: Pixels = np.floor(np.clip(unit, 0, 1) * 255 + 0.5).astype(np.uint8)
    return scaled


def _grey_range(image: Image.Image) -> tuple[int | None, bool]:
    """The largest possible grey value, if the format defines it, and whether 0 means white."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(258, (16,))  # BitsPerSample
    inverted = tags.get(262, 1) == 0  # PhotometricInterpretation, which Pillow does not apply here
    if image.mode.startswith("I;16"):
        return 2 ** int(bits[0] if isinstance(bits, tuple) else bits) - 1, inverted
    # Older versions of Pillow open 16-bit PNG, and all open wide PGM, as 32-bit integers.
    return (65535 if image.format in {"PNG", "PPM"} else None), inverted
