"""From an image in memory to RGB pixels: one rule for files, Pillow images and arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lmd.base.errors import LmdError

Pixels = NDArray[np.uint8]
ORIENTATION = 0x0112  # the EXIF tag


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
        array = as_uint8(array / 65535)
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
        image = image.convert("RGBA")
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        image = Image.alpha_composite(black, image)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"), dtype=np.uint8)


def eight_bits(values: NDArray[Any], top: int | None) -> Pixels:
    """Grey values scaled by ``top``, or without it floats by [0, 1] and others by their range."""
    if top is not None:
        return as_uint8(values / top)
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        return as_uint8(values.astype(np.float64))
    return stretch(values)


def stretch(values: NDArray[Any]) -> Pixels:
    """Scale the minimum to 0 and the maximum to 255; all 0 if they are equal."""
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("it has values that are not finite")
    low, high = wide.min(), wide.max()
    return as_uint8((wide - low) / (high - low) if high > low else wide - low)


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
