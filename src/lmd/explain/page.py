"""Draw heat maps over pictures, the page of `lmd explain`, and the report's examples."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lmd import __version__
from lmd.explain.examples import Examples, read_examples
from lmd.report.page import environment
from lmd.report.sections import Report, Values
from lmd.report.svg import data_uri, shorten
from lmd.report.wording import percent

Pixels = NDArray[np.uint8]

OPACITY = 0.75  # where the heat is 1
GAP = 12
CAPTION = 46
BAR = 10
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
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


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
    # The usual font has no narrow spaces.
    lines = [
        (shorten(title, room, 8.2), shorten(note.replace("\u202f", " "), room - 70, 7.0))
        for title, note in captions
    ]
    for i, (picture, (title, note)) in enumerate(zip(pictures, lines, strict=True)):
        left, top = GAP + i * (room + GAP), GAP
        canvas.paste(Image.fromarray(picture), (left, top))
        draw.text((left, top + high + 6), title, "#1c2126", font_for(title, 15))
        draw.text((left, top + high + 26), note, "#5b646d", font_for(note, 13))
        if i > 0:
            bar = Image.fromarray(np.repeat(colour_map()[None, ::4], BAR, axis=0))
            canvas.paste(bar, (left + room - bar.width, top + high + 30))
    return canvas


def font_for(words: str, size: int) -> Font:
    """The usual font, or the first of the machine's that has more of the characters."""
    best: Font = ImageFont.load_default(size)
    lacking = _lacking(best, words)
    for name in FONTS if lacking else ():
        try:
            font = ImageFont.truetype(name, size)
        except OSError:
            continue
        if (fewer := _lacking(font, words)) < lacking:
            best, lacking = font, fewer
        if not lacking:
            break
    return best


def _lacking(font: Font, words: str) -> int:
    """How many characters a font draws like one that it does not have."""
    none = bytes(font.getmask("\uffff"))
    return sum(bytes(font.getmask(c)) == none for c in set(words) if not c.isspace())


def as_png(image: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


SIDE = 384  # longest side of a picture in the page


@dataclass(frozen=True)
class Answer:
    """A class with its probability, and the heat ``(H, W)`` from 0 to 1 of the evidence for it."""

    name: str
    probability: float
    heat: NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A training image near to the explained one."""

    label: str
    distance: float
    row: int
    name: str | None


@dataclass(frozen=True)
class Panel:
    """One explained image, ready for the page; ``pictures`` are data URIs with captions."""

    name: str
    file: str
    pictures: list[tuple[str, str, str]]
    nearest: list[Case]
    unlike: bool


def draw(
    name: str,
    file: str,
    picture: Pixels,
    answers: Sequence[Answer],
    nearest: Sequence[Case] = (),
    unlike: bool | None = None,
) -> tuple[Panel, bytes]:
    """The panel of the page and the PNG file of one image ``picture (H, W, 3)``."""
    pictures = [picture, *(overlay(picture, answer.heat) for answer in answers)]
    note = "unlike the training images" if unlike else ""
    captions = [
        (PurePath(name).name, note),
        *((answer.name, percent(answer.probability)) for answer in answers),
    ]
    shown = [
        (data_uri(pixels, SIDE, quality=80), title, about)
        for pixels, (title, about) in zip(pictures, captions, strict=True)
    ]
    png = as_png(side_by_side(pictures, captions))
    return Panel(name, file, shown, list(nearest), bool(unlike)), png


def explain_page(model: str, method: str, panels: Sequence[Panel], indexed: bool) -> bytes:
    """The self-contained HTML page; ``indexed`` says whether nearest cases were looked for."""
    page = environment().get_template("explain.html")
    text = page.render(
        model=model, method=method, panels=panels, indexed=indexed, version=__version__
    )
    return text.encode()


PICTURE_SIDE = 160
QUALITY = 80


def looks_view(report: Report) -> Values | None:
    """Two lists of pictures with what the predictions say about them."""
    run = report.run
    examples = read_examples(run.path) if report.images else None
    of = run.predictions.parts.get("test") if run.predictions else None
    if examples is None or of is None:
        return None
    places = {str(name): i for i, name in enumerate(of.ids.tolist())}
    classes, cards = run.record.data.classes, list[dict[str, Any]]()
    for i, name in enumerate(examples.ids.tolist()):
        if name not in places:  # of an earlier run in this folder
            continue
        row = of.probabilities[places[name]]
        true, said = int(of.labels[places[name]]), int(row.argmax())
        cards.append(
            {
                "name": name,
                "right": true == said,
                "true": classes[true],
                "predicted": classes[said],
                "probability": percent(float(row[said])),
                "own": percent(float(row[true])),
                **_pictures(examples, i),
            }
        )
    mistakes = [card for card in cards if not card["right"]]
    hits = [card for card in cards if card["right"]]
    return {"mistakes": mistakes, "hits": hits, "heat": examples.heat is not None}


def _pictures(examples: Examples, i: int) -> dict[str, str]:
    picture, heat = examples.pictures[i], ""
    if examples.heat is not None:
        level = examples.heat[i].astype(np.float32) / 255
        heat = data_uri(overlay(picture, level), PICTURE_SIDE, QUALITY)
    return {"picture": data_uri(picture, PICTURE_SIDE, QUALITY), "heat": heat}
