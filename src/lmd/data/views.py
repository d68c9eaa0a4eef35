"""Views of an image for training and evaluation (rows 9 and 10 of ``docs/paper-vs-code.md``).

Every transform is a pure function of the image and its parameters; a view draws the parameters from
its generator. Lengths are fractions of the side, so that 32 px and 224 px behave alike.
Normalisation happens later, on the device.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
View = Callable[[Image, np.random.Generator], Image]
Map = NDArray[np.float32]

# Probability of each transform of the strong view; the two flips are independent.
FLIP, BLUR, AFFINE, DISTORTION = 0.5, 0.5, 0.5, 0.7
RGB_SHIFT, BRIGHTNESS, GRID_DROPOUT = 0.5, 0.5, 0.2

# Largest strength. Shift, distortions and blur are fractions of the side.
MAX_ANGLE = 45.0
MAX_SHIFT = 0.0625
MAX_ZOOM = 0.1
MIN_BLUR, MAX_BLUR = 3 / 224, 7 / 224
MAX_STRETCH = 0.3
MAX_ELASTIC = 0.03
MAX_BARREL = 0.3
MAX_RGB = 15
MAX_BRIGHTNESS = 0.2
MAX_CONTRAST = 0.2
GRID_CELLS, GRID_HOLE = 10, 0.5


def flip(image: Image, horizontal: bool, vertical: bool) -> Image:
    """Mirror left to right, top to bottom, both or neither."""
    if not (horizontal or vertical):
        return np.ascontiguousarray(image)
    return _uint8(cv2.flip(image, -1 if horizontal and vertical else int(horizontal)))


def motion_blur(image: Image, length: int, angle: float) -> Image:
    """Average along a line of ``length`` (odd) pixels at ``angle`` radians."""
    kernel = np.zeros((length, length), np.float32)
    reach = length // 2
    dx, dy = round(reach * math.cos(angle)), round(reach * math.sin(angle))
    cv2.line(kernel, (reach - dx, reach - dy), (reach + dx, reach + dy), 1.0)
    return _uint8(cv2.filter2D(image, -1, kernel / kernel.sum()))


def median_blur(image: Image, length: int) -> Image:
    """The median of each ``length × length`` window (odd)."""
    return _uint8(cv2.medianBlur(image, length))


def box_blur(image: Image, length: int) -> Image:
    """The mean of each ``length × length`` window."""
    return _uint8(cv2.blur(image, (length, length)))


def shift_scale_rotate(
    image: Image, shift: tuple[float, float], scale: float, angle: float
) -> Image:
    """Rotate by ``angle`` degrees and scale about the centre, then shift by fractions of a side."""
    size = image.shape[0]
    centre = (size - 1) / 2
    matrix = cv2.getRotationMatrix2D((centre, centre), angle, scale)
    matrix[:, 2] += (shift[0] * size, shift[1] * size)
    return _uint8(cv2.warpAffine(image, matrix, (size, size), borderMode=cv2.BORDER_REFLECT_101))


def grid_distortion(image: Image, stretch_x: Map, stretch_y: Map) -> Image:
    """Stretch each column and row of a grid by its own factor; the whole still fits the image."""
    size = image.shape[0]
    columns = np.broadcast_to(_stretched(stretch_x, size), (size, size))
    rows = np.broadcast_to(_stretched(stretch_y, size)[:, None], (size, size))
    return _remap(image, np.ascontiguousarray(columns), np.ascontiguousarray(rows))


def elastic_distortion(image: Image, offsets: Map) -> Image:
    """Move pixels by a smooth field through ``offsets (n, n, 2)``, fractions of the side."""
    size = image.shape[0]
    x, y, _ = _coordinates(size)
    field = cv2.resize(offsets * np.float32(size), (size, size), interpolation=cv2.INTER_CUBIC)
    return _remap(image, x + field[..., 0], y + field[..., 1])


def optical_distortion(image: Image, strength: float, centre: tuple[float, float]) -> Image:
    """Barrel (positive) or pincushion (negative) lens: radius r is read at ``r (1 + strength r²)``.

    The radius is a fraction of the side; ``centre`` is the offset from the centre of the image.
    """
    size = image.shape[0]
    x, y, radius2 = _coordinates(size)
    middle = (size - 1) / 2
    gain = np.float32(strength) * radius2
    dx, dy = np.float32(middle + centre[0] * size), np.float32(middle + centre[1] * size)
    return _remap(image, x + gain * (x - dx), y + gain * (y - dy))


def rgb_shift(image: Image, shift: tuple[float, float, float]) -> Image:
    """Add one number to each channel, clipped to [0, 255]."""
    table = np.arange(256, dtype=np.float32)[:, None] + np.asarray(shift, np.float32)
    return _uint8(cv2.LUT(image, np.rint(table).clip(0, 255).astype(np.uint8)[None]))


def brightness_contrast(image: Image, brightness: float, contrast: float) -> Image:
    """``(1 + contrast) v + 255 brightness``, clipped to [0, 255]."""
    table = np.arange(256, dtype=np.float32) * (1 + contrast) + 255 * brightness
    return _uint8(cv2.LUT(image, np.rint(table).clip(0, 255).astype(np.uint8)))


def grid_dropout(image: Image, offset: tuple[float, float]) -> Image:
    """Blacken one square hole in each cell of a grid; ``offset`` in [0, 1) of a cell."""
    size = image.shape[0]
    # Cells may be fractions of a pixel: rounded, the holes would cover half of a small image.
    place = (np.arange(size) + 0.5) / max(2.0, size / GRID_CELLS)
    across = (place + offset[0]) % 1 < GRID_HOLE
    down = (place + offset[1]) % 1 < GRID_HOLE
    view = image.copy()
    view[down[:, None] & across] = 0
    return view


def weak(image: Image, rng: np.random.Generator) -> Image:
    """Random horizontal and vertical flips (row 10): ``(S, S, 3)``; may be the image itself."""
    return flip(image, rng.random() < FLIP, rng.random() < FLIP)


def strong(image: Image, rng: np.random.Generator) -> Image:
    """Flips, blur, rotation, distortion, colour jitter, grid dropout (row 9): ``(S, S, 3)``."""
    view = weak(image, rng)
    fires = rng.random(6) < (BLUR, AFFINE, DISTORTION, RGB_SHIFT, BRIGHTNESS, GRID_DROPOUT)
    if fires[0]:
        view = random_blur(view, rng)
    if fires[1]:
        angle, zoom, dx, dy = rng.uniform(-1, 1, 4).tolist()
        view = shift_scale_rotate(
            view, (MAX_SHIFT * dx, MAX_SHIFT * dy), 1 + MAX_ZOOM * zoom, MAX_ANGLE * angle
        )
    if fires[2]:
        view = random_distortion(view, rng)
    if fires[3]:
        red, green, blue = rng.uniform(-MAX_RGB, MAX_RGB, 3).tolist()
        view = rgb_shift(view, (red, green, blue))
    if fires[4]:
        brightness, contrast = rng.uniform(-1, 1, 2).tolist()
        view = brightness_contrast(view, MAX_BRIGHTNESS * brightness, MAX_CONTRAST * contrast)
    if fires[5]:
        across, down = rng.random(2).tolist()
        view = grid_dropout(view, (across, down))
    return view


def evaluation(image: Image, rng: np.random.Generator) -> Image:
    """The image as it is; the generator is not used (row 10)."""
    return np.ascontiguousarray(image)


def random_blur(image: Image, rng: np.random.Generator) -> Image:
    """Motion, median or box blur, equally likely, from ``MIN_BLUR`` to ``MAX_BLUR``.

    The smallest window is 3 px; for less, its result is mixed with the image.
    """
    width = image.shape[0] * rng.uniform(MIN_BLUR, MAX_BLUR)
    length = max(3, 1 + 2 * int(width / 2))
    kind = rng.integers(3)
    if kind == 0:
        blurred = motion_blur(image, length, rng.uniform(0, math.pi))
    else:
        blurred = median_blur(image, length) if kind == 1 else box_blur(image, length)
    if width >= 3:
        return blurred
    return _uint8(cv2.addWeighted(blurred, width / 3, image, 1 - width / 3, 0))


def random_distortion(image: Image, rng: np.random.Generator) -> Image:
    """Grid, elastic or optical distortion, equally likely."""
    kind = rng.integers(3)
    if kind == 0:
        stretch = rng.uniform(1 - MAX_STRETCH, 1 + MAX_STRETCH, (2, 5)).astype(np.float32)
        return grid_distortion(image, stretch[0], stretch[1])
    if kind == 1:
        offsets = rng.uniform(-MAX_ELASTIC, MAX_ELASTIC, (6, 6, 2)).astype(np.float32)
        return elastic_distortion(image, offsets)
    strength, dx, dy = rng.uniform(-1, 1, 3).tolist()
    return optical_distortion(image, MAX_BARREL * strength, (MAX_SHIFT * dx, MAX_SHIFT * dy))


VIEWS: dict[str, View] = {"weak": weak, "strong": strong, "eval": evaluation}


@lru_cache(maxsize=8)
def _coordinates(size: int) -> tuple[Map, Map, Map]:
    """x, y and squared distance to the centre (in sides) of each pixel, ``(size, size)`` each."""
    y, x = np.mgrid[:size, :size].astype(np.float32)
    middle = (size - 1) / 2
    radius2 = ((x - middle) ** 2 + (y - middle) ** 2) / size**2
    for values in (x, y, radius2):
        values.flags.writeable = False  # shared by all calls
    return x, y, radius2


def _stretched(stretch: Map, size: int) -> Map:
    """The position ``(size,)`` from which each pixel of a side is read; the ends stay fixed."""
    ends = np.concatenate([[0.0], np.cumsum(stretch)])
    even = np.linspace(0, size - 1, len(ends))
    places = np.interp(np.arange(size), even, ends / ends[-1] * (size - 1))
    return np.asarray(places, np.float32)


def _remap(image: Image, x: Map, y: Map) -> Image:
    return _uint8(cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101))


def _uint8(array: cv2.typing.MatLike) -> Image:
    """Tell the type checker that OpenCV returns uint8 for uint8."""
    return np.asarray(array, np.uint8)
