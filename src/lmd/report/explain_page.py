"""The page of explanations: heat maps and nearest training images of each image."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from lmd import __version__
from lmd.report.heat_maps import Pixels, as_png, overlay, side_by_side
from lmd.report.page import environment
from lmd.report.pictures import data_uri
from lmd.report.words import percent

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
