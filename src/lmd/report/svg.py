"""Build SVG elements, and put figures, data and pictures into a page."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from lmd.base.text import csv_text

Place = float | str  # px, or per cent of the width such as "12.5%"
CHARACTER = 7.1  # mean width of a character at the charts' 12.5 px, in px
_CORNERS = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
    "triangle": [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
}


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element around markup; ``class_`` and ``stroke_width`` lose their underscores.

    >>> element("rect", x=1.23456, class_="a")
    '<rect x="1.23" class="a"/>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def text(x: Place, y: float, content: str, **attributes: object) -> str:
    """Return escaped text at a point."""
    return element("text", escape(content), x=x, y=y, **attributes)


def with_tip(tip: str, *parts: str) -> str:
    """Return a group with a title, which browsers show as a tooltip."""
    return element("g", element("title", escape(tip)) + "".join(parts))


def line(x1: Place, y1: float, x2: Place, y2: float, class_: str) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def mark(shape: str, x: Place, y: float, class_: str, size: float = 4.8) -> str:
    """Return a circle, square, diamond or triangle, so that colour is not the only difference."""
    if shape == "circle":
        return element("circle", cx=x, cy=y, r=size, class_=class_)
    points = " ".join(f"{size * dx:.2f},{size * dy:.2f}" for dx, dy in _CORNERS[shape])
    polygon = element("polygon", points=points, class_=class_)
    # The points of a polygon cannot be in per cent, but the corner of a drawing within can.
    return element("svg", polygon, x=x, y=y, overflow="visible")


def chart(
    name: str,
    title: str,
    description: str,
    size: tuple[float | None, float],
    parts: Iterable[str],
) -> str:
    """Return a drawing with an accessible name; ``name`` must be unique.

    ``size`` is width and height. Without a width it is as wide as the page allows, and the parts
    have horizontal places in per cent.
    """
    width, height = size
    head = element("title", escape(title), id=f"{name}-title")
    head += element("desc", escape(description), id=f"{name}-desc")
    return element(
        "svg",
        head + "".join(parts),
        role="img",
        viewBox=None if width is None else f"0 0 {_plain(width)} {_plain(height)}",
        width="100%" if width is None else width,
        height=height,
        aria_labelledby=f"{name}-title {name}-desc",
        class_="chart fluid" if width is None else "chart",
    )


def legend_mark(shape: str, tone: str) -> Markup:
    """Return one marker for a legend."""
    drawn = mark(shape, 7.0, 7.0, f"fill {tone}")
    return Markup(element("svg", drawn, width=14, height=14, aria_hidden="true", class_="key"))


def upright(x: float, y: float) -> str:
    """Return the transform of text that reads upwards from a point."""
    return f"translate({x:.1f} {y:.1f}) rotate(-90)"


def shorten(words: str, width: float, character: float = CHARACTER) -> str:
    """Return text cut in the middle to about a width in px, because names often differ at the end.

    >>> shorten("ulcerative colitis grade 2", 100)
    'ulcerati…ade 2'
    """
    wide = sum(east_asian_width(letter) in "WF" for letter in words)
    if wide:  # Chinese, Japanese and Korean signs are nearly twice as wide
        character *= 1 + 0.8 * wide / len(words)
    room = max(int(width / character), 4)
    if len(words) <= room:
        return words
    end = (room - 1) * 2 // 5
    return words[: room - 1 - end].rstrip() + "…" + words[len(words) - end :].lstrip()


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def savable(name: str, drawing: str, rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a drawing with ``rows`` as its data; both are saved under ``name``."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    short = [{key: _six_digits(value) for key, value in row.items()} for row in rows]
    data = escape(csv_text(columns, short))
    return Markup(f'<div class="plot" data-name="{escape(name)}" data-csv="{data}">{drawing}</div>')


def _six_digits(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def data_uri(pixels: NDArray[np.uint8], side: int, quality: int = 72) -> str:
    """Return an image ``(H, W, 3)`` as a data URI, a JPEG of at most ``side`` pixels each way."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def png_uri(png: bytes) -> str:
    """Return the bytes of a PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
