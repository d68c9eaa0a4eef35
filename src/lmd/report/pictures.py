"""Images that are embedded in a page."""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def data_uri(pixels: NDArray[np.uint8], side: int, quality: int = 72) -> str:
    """A JPEG of an image ``(H, W, 3)``, at most ``side`` pixels high and wide, as a data URI."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def png_uri(png: bytes) -> str:
    """The bytes of a PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
