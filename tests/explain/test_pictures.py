"""Heat over an image, and pictures side by side."""

import io

import numpy as np
import pytest
from PIL import Image, ImageFont

from lmd.explain import pictures
from lmd.explain.pictures import as_png, colour_map, font_for, overlay, side_by_side


def test_no_heat_leaves_the_image_and_more_heat_adds_more_colour() -> None:
    picture = np.full((4, 6, 3), 120, np.uint8)
    heat = np.zeros((4, 6), np.float32)
    heat[1, 2], heat[2, 3] = 0.5, 1.0
    found = overlay(picture, heat).astype(int)
    change = np.abs(found - 120).sum(2)
    assert np.array_equal(change > 0, heat > 0)
    assert change[2, 3] > change[1, 2]
    yellow = found[2, 3]
    assert yellow[0] > 180
    assert yellow[2] < 100


def test_the_colours_grow_lighter_so_that_hue_is_not_needed() -> None:
    lightness = colour_map() @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(lightness) > -0.8).all()
    assert lightness[-1] - lightness[0] > 150


def test_pictures_stand_side_by_side_above_their_captions() -> None:
    photos = [np.full((200, 180, 3), value, np.uint8) for value in (10, 90, 170)]
    long = "squamous cell carcinoma of the skin, in situ"
    drawn = side_by_side(photos, [("a.jpg", ""), (long, "71.2\u202f%"), ("nevus", "9.0\u202f%")])
    with Image.open(io.BytesIO(as_png(drawn))) as image:
        pixels = np.asarray(image)
    for i, value in enumerate((10, 90, 170)):
        left = 12 + i * 192
        assert (pixels[12:212, left : left + 180] == value).all()
    assert (pixels[:, 192:204] == 255).all()  # a long name does not reach its neighbour
    assert (pixels[212:] < 200).any()


def test_names_in_other_scripts_take_a_font_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.font_manager import findfont

    dejavu = findfont("DejaVu Sans")  # has Cyrillic; the usual font has not
    monkeypatch.setattr(pictures, "FONTS", ("no such font.ttf", dejavu))
    found = font_for("меланома", 15)
    assert isinstance(found, ImageFont.FreeTypeFont)
    assert found.getname()[0] == "DejaVu Sans"
    assert font_for("melanoma", 15).getname() == ImageFont.load_default(15).getname()
    monkeypatch.setattr(pictures, "FONTS", ())
    assert font_for("меланома", 15).getname() == ImageFont.load_default(15).getname()
