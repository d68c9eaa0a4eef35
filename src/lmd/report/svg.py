"""Build SVG elements, and put figures, data and pictures into a page."""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from lmd.base.text import no_formula

CHARACTER = 7.1  # mean width of a character at the charts' 12.5 px, in px


def element(name: str, content: str = "", **attributes: object) -> str:
    """One element around markup; ``class_`` becomes ``class``, ``stroke_width`` ``stroke-width``.

    >>> element("rect", x=1.23456, class_="a")
    '<rect x="1.23" class="a"/>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Escaped text at a point."""
    return element("text", escape(words), x=x, y=y, **attributes)


def tip(words: str) -> str:
    """A title element, which browsers show as a tooltip."""
    return element("title", escape(words))


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def mark(shape: str, x: float, y: float, size: float, class_: str) -> str:
    """A circle, square, diamond or triangle, so that colour is not the only difference."""
    if shape == "circle":
        return element("circle", cx=x, cy=y, r=size, class_=class_)
    half = size * 0.9
    corners = {
        "square": [(-half, -half), (half, -half), (half, half), (-half, half)],
        "diamond": [(0, -1.25 * size), (1.25 * size, 0), (0, 1.25 * size), (-1.25 * size, 0)],
        "triangle": [(0, -1.2 * size), (1.15 * size, 0.9 * size), (-1.15 * size, 0.9 * size)],
    }[shape]
    points = " ".join(f"{x + dx:.2f},{y + dy:.2f}" for dx, dy in corners)
    return element("polygon", points=points, class_=class_)


def chart(
    name: str, title: str, description: str, size: tuple[float, float], parts: Iterable[str]
) -> str:
    """A drawing of ``size`` (width, height) with an accessible name; ``name`` must be unique."""
    width, height = size
    head = element("title", escape(title), id=f"{name}-title")
    head += element("desc", escape(description), id=f"{name}-desc")
    return element(
        "svg",
        head + "".join(parts),
        role="img",
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width=width,
        height=height,
        aria_labelledby=f"{name}-title {name}-desc",
        class_="chart",
    )


def upright(x: float, y: float) -> str:
    """The transform of text that reads upwards from a point."""
    return f"translate({x:.1f} {y:.1f}) rotate(-90)"


def shorten(words: str, width: float, character: float = CHARACTER) -> str:
    """Text cut in the middle to about a width in px, because names often differ at the end.

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
    """A drawing with ``rows`` as its data; ``name`` is that of the files, without an ending."""
    data = escape(as_csv(rows))
    return Markup(f'<div class="plot" data-name="{escape(name)}" data-csv="{data}">{drawing}</div>')


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as CSV; numbers have six digits, and unknown ones are empty.

    >>> as_csv([{"class": "=a", "recall": 1 / 3, "low": None}])
    "class,recall,low\\n'=a,0.333333,\\n"
    """
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    # A class name may look like a formula; a negative number is none.
    return no_formula(value) if isinstance(value, str) else str(value)


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
