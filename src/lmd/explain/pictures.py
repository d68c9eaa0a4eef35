"""Draw heat over pictures, and pictures side by side."""

import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lmd.report.charts import shorten

Pixels = NDArray[np.uint8]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

OPACITY = 0.75  # where the heat is 1
GAP, CAPTION, BAR = 12, 46, 10  # px
# Fonts with other scripts, by the names of their files on Linux, Windows and macOS.
FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSansArabic-Regular.ttf",
    "NotoSansDevanagari-Regular.ttf",
    "NotoSansThai-Regular.ttf",
    "wqy-zenhei.ttc",
    "msyh.ttc",
    "malgun.ttf",
    "arial.ttf",
    "Nirmala.ttf",
    "PingFang.ttc",
    "Arial Unicode.ttf",
)


def overlay(picture: Pixels, heat: NDArray[np.float32]) -> Pixels:
    """Return ``picture (H, W, 3)`` under ``heat (H, W)`` from 0 to 1; no heat, no colour.

    The colours are viridis, which people with colour-blindness can read and which also grows
    lighter with the heat.
    """
    colours = colour_map()[(heat * 255).round().astype(np.uint8)].astype(np.float32)
    cover = OPACITY * heat.clip(0, 1)[:, :, None]
    return np.asarray((picture * (1 - cover) + colours * cover).round().clip(0, 255), np.uint8)


@lru_cache(maxsize=1)
def colour_map() -> Pixels:
    """Return the colours of heat 0 to 1, RGB ``(256, 3)``."""
    import cv2  # tables and figures without pictures do not need it

    ramp = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[None], cv2.COLORMAP_VIRIDIS)
    return np.ascontiguousarray(np.asarray(ramp, np.uint8).reshape(256, 3)[:, ::-1])


def side_by_side(pictures: Sequence[Pixels], captions: Sequence[tuple[str, str]]) -> Image.Image:
    """Draw pictures ``(H, W, 3)`` in one row on white, each with a title and a note below.

    A bar with the colours from no evidence to the most is below the second and later pictures.
    """
    high, wide = pictures[0].shape[:2]
    room = max(wide, 150)
    size = len(pictures) * (room + GAP) + GAP, high + CAPTION + 2 * GAP
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for i, (picture, (title, note)) in enumerate(zip(pictures, captions, strict=True)):
        left, top = GAP + i * (room + GAP), GAP
        first = shorten(title, room, 8.2)
        # The usual font has no narrow spaces.
        second = shorten(note.replace("\u202f", " "), room - 70, 7.0)
        canvas.paste(Image.fromarray(picture), (left, top))
        draw.text((left, top + high + 6), first, "#1c2126", font_for(first, 15))
        draw.text((left, top + high + 26), second, "#5b646d", font_for(second, 13))
        if i > 0:
            bar = Image.fromarray(np.repeat(colour_map()[None, ::4], BAR, axis=0))
            canvas.paste(bar, (left + room - bar.width, top + high + 30))
    return canvas


def font_for(text: str, size: int) -> Font:
    """Return the usual font, or the first of the machine's that has more of the characters."""
    best: Font = ImageFont.load_default(size)
    lacking = _lacking(best, text)
    for name in FONTS if lacking else ():
        try:
            font = ImageFont.truetype(name, size)
        except OSError:
            continue
        if (fewer := _lacking(font, text)) < lacking:
            best, lacking = font, fewer
        if not lacking:
            break
    return best


def _lacking(font: Font, text: str) -> int:
    """Count the characters that a font draws like one that it does not have."""
    none = bytes(font.getmask("\uffff"))
    return sum(bytes(font.getmask(c)) == none for c in set(text) if not c.isspace())


def as_png(image: Image.Image) -> bytes:
    """Return the bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
