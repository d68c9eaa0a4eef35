"""Pictures of heat maps: laid over the image, and side by side with captions."""

import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lmd.report.svg import shorten

Pixels = NDArray[np.uint8]

OPACITY = 0.75  # where the heat is 1
GAP = 12
CAPTION = 46
BAR = 10


def overlay(picture: Pixels, heat: NDArray[np.float32]) -> Pixels:
    """``picture (H, W, 3)`` with ``heat (H, W)`` from 0 to 1 over it; no heat, no colour.

    The colours are viridis, which people with colour-blindness can read and which also grows
    lighter with the heat.
    """
    colours = colour_map()[(heat * 255).round().astype(np.uint8)].astype(np.float32)
    cover = OPACITY * heat.clip(0, 1)[:, :, None]
    return np.asarray((picture * (1 - cover) + colours * cover).round().clip(0, 255), np.uint8)


@lru_cache(maxsize=1)
def colour_map() -> Pixels:
    """The colours of heat 0 to 1, RGB ``(256, 3)``."""
    import cv2  # tables and figures without pictures do not need it

    ramp = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[None], cv2.COLORMAP_VIRIDIS)
    return np.ascontiguousarray(np.asarray(ramp, np.uint8).reshape(256, 3)[:, ::-1])


def side_by_side(pictures: Sequence[Pixels], captions: Sequence[tuple[str, str]]) -> Image.Image:
    """Pictures ``(H, W, 3)`` in one row on white; each caption is a bold-like line and a soft one.

    A bar with the colours from no evidence to the most is below the second and later pictures.
    """
    high, wide = pictures[0].shape[:2]
    room = max(wide, 150)
    canvas = Image.new("RGB", (len(pictures) * (room + GAP) + GAP, high + CAPTION + 2 * GAP))
    canvas.paste("white", (0, 0, *canvas.size))
    draw = ImageDraw.Draw(canvas)
    large, small = ImageFont.load_default(15), ImageFont.load_default(13)
    for i, (picture, (title, note)) in enumerate(zip(pictures, captions, strict=True)):
        left, top = GAP + i * (room + GAP), GAP
        canvas.paste(Image.fromarray(picture), (left, top))
        draw.text((left, top + high + 6), shorten(title, room, 8.2), "#1c2126", large)
        # The font has no narrow spaces.
        words = shorten(note.replace("\u202f", " "), room - 70, 7.0)
        draw.text((left, top + high + 26), words, "#5b646d", small)
        if i > 0:
            bar = Image.fromarray(np.repeat(colour_map()[None, ::4], BAR, axis=0))
            canvas.paste(bar, (left + room - bar.width, top + high + 30))
    return canvas


def as_png(image: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
