"""The built-in synthetic set: eight invented classes of lesion-like images with a long tail.

It lets you try every command without data. Nothing in it comes from a patient, and its class names
are not diagnoses. Image i of a class depends only on the seed, the class, i and the size.
"""

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from lmd.data.splits import pareto_counts
from lmd.data.table import PARTS, Table

Field = NDArray[np.float32]

SEED, SIZE = 0, 32
HEAD_SIZE, FACTOR = 500, 100  # of the training part
TEST_SIZE, VALIDATION_SIZE = 60, 20  # images of each class
ROWS_PER_CLASS = 100_000


@dataclass(frozen=True)
class Look:
    """What is typical of a class; images vary around it, so that classes overlap.

    ``colour`` is RGB in [0, 1]; ``irregular`` and ``lobed`` shape the outline, ``network``,
    ``globules`` and ``streaks`` the texture, and ``soft`` the border, each about 0 to 1.
    """

    name: str
    colour: tuple[float, float, float]
    irregular: float = 0.0
    lobed: float = 0.0
    network: float = 0.0
    globules: float = 0.0
    streaks: float = 0.0
    soft: float = 0.2


BROWN, DARK = (0.52, 0.33, 0.22), (0.33, 0.21, 0.17)
RED, BLUE = (0.70, 0.30, 0.29), (0.40, 0.39, 0.45)

# From head to tail. Every rare class shares its colour, outline or texture with a frequent one,
# so a classifier trained on skewed data confuses them.
LOOKS = (
    Look("syn-round-brown", BROWN, network=0.2),
    Look("syn-irregular-brown", BROWN, irregular=0.9, network=1.0, soft=0.6),
    Look("syn-round-red", RED, soft=0.5),
    Look("syn-lobed-brown", BROWN, lobed=0.9, globules=0.9),
    Look("syn-irregular-dark", DARK, irregular=0.9, streaks=0.9, soft=0.5),
    Look("syn-lobed-red", RED, lobed=0.8, globules=0.7),
    Look("syn-round-dark", DARK, globules=0.6, soft=0.2),
    Look("syn-irregular-blue", BLUE, irregular=0.9, network=0.3, soft=0.7),
)

# How much images differ from the look of their class.
COLOUR_SPREAD = 0.6
BRIGHTNESS_SPREAD = 0.1
SHAPE_SPREAD = 0.2
TEXTURE_SPREAD = 0.17


def synthetic_table() -> Table:
    """Return eight classes: in training ``N_c = N_0 r^(-c / (K - 1))``, in other parts balanced."""
    held_out = TEST_SIZE + VALIDATION_SIZE  # the first images of a class
    per_class = held_out + pareto_counts(HEAD_SIZE, FACTOR, len(LOOKS))
    labels = np.repeat(np.arange(len(LOOKS)), per_class)
    index = np.concatenate([np.arange(n) for n in per_class])
    return Table(
        ids=np.array([f"synthetic-{c:04d}-{i:05d}" for c, i in zip(labels, index, strict=True)]),
        labels=labels.astype(np.int64),
        classes=tuple(look.name for look in LOOKS),
        images=SyntheticImages(),
        rows=(labels * ROWS_PER_CLASS + index).astype(np.int64),
        parts=np.array(PARTS[::-1])[np.digitize(index, (TEST_SIZE, held_out))],
        source=f"synthetic(seed={SEED},size={SIZE},head_size={HEAD_SIZE},factor={FACTOR})",
        kind="synthetic",
        synthetic=True,
    )


class SyntheticImages:
    """Renders on request; row ``c * ROWS_PER_CLASS + i`` is image i of class c."""

    def read(self, row: int) -> NDArray[np.uint8]:
        """Return RGB pixels ``(SIZE, SIZE, 3)``, the same each time."""
        return render(SEED, row // ROWS_PER_CLASS, row % ROWS_PER_CLASS, SIZE)


def render(seed: int, label: int, index: int, size: int) -> NDArray[np.uint8]:
    """Draw image ``index`` of class ``label``: RGB ``(size, size, 3)``."""
    rng = np.random.default_rng([seed, label, index])
    side = 2 * size  # drawn at twice the size and averaged, for smooth edges
    image = _hairs(_lesion(_skin(rng, side), LOOKS[label], rng), rng)
    image *= _light(rng, side)
    small = np.asarray(cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA), np.float32)
    small += rng.normal(0, 0.012, small.shape).astype(np.float32)
    return np.asarray(np.rint(small * 255).clip(0, 255), np.uint8)


def _skin(rng: np.random.Generator, side: int) -> Field:
    """Draw mottled skin, between pale and tan: ``(side, side, 3)`` in [0, 1]."""
    pale, tan = np.array([0.93, 0.78, 0.71]), np.array([0.76, 0.57, 0.46])
    tone = rng.beta(1.5, 2.5)
    colour = (1 - tone) * pale + tone * tan + rng.normal(0, 0.015, 3)
    mottle = 0.022 * _noise(rng, 5, side) + 0.015 * _noise(rng, 14, side)
    # Mottling is blood: it darkens green and blue more than red.
    tint = np.array([0.6, 1.1, 1.0], np.float32)
    return np.asarray(colour + mottle[:, :, None] * tint, np.float32)


def _lesion(image: Field, look: Look, rng: np.random.Generator) -> Field:
    """Draw a lesion over the skin."""
    side = image.shape[0]
    near, angle = _polar(look, rng, side)
    streaks = _scatter(look.streaks, TEXTURE_SPREAD, rng)
    rays = np.cos(int(rng.integers(9, 14)) * angle + 1.8 * _noise(rng, 4, side))
    rays = rays * streaks * np.clip((near - 0.4) / 0.4, 0, 1)
    near = near - np.float32(0.13) * rays
    soft = 0.03 + 0.10 * _scatter(look.soft, SHAPE_SPREAD, rng)
    cover = 1 / (1 + np.exp(np.clip((near - 1) / soft, -30, 30)))
    cover *= rng.uniform(0.75, 0.95)

    cells = _cells(rng, side)
    network = _scatter(look.network, TEXTURE_SPREAD, rng) * (np.clip(cells, 0, 1.6) - 0.75)
    spots = 1 / (1 + np.exp(9 * (cells - 0.55))) - 0.35
    globules = _scatter(look.globules, TEXTURE_SPREAD, rng) * spots
    pigment = 0.28 * network + 0.30 * globules + 0.15 * rays + 0.045 * _noise(rng, 5, side)
    pigment += 0.10 * rng.uniform(-0.5, 1.0) * (0.6 - near.clip(0, 1))
    tint = np.array([1.0, 0.85, 0.75], np.float32)
    body = _colour(look, rng, side) - pigment[:, :, None] * tint
    opacity = cover[:, :, None]
    return np.asarray(image * (1 - opacity) + body.clip(0.05, 1) * opacity, np.float32)


def _colour(look: Look, rng: np.random.Generator, side: int) -> Field:
    """Mix the colour of the class unevenly with the other colours."""
    palette = np.array([BROWN, DARK, RED, BLUE], np.float32)
    other = rng.dirichlet(np.full(len(palette), 0.7)).astype(np.float32) @ palette
    colour = np.array(look.colour, np.float32)
    share = COLOUR_SPREAD * rng.random() + 0.12 * _noise(rng, 4, side)
    mixed = colour + share.clip(0, 0.9)[:, :, None] * (other - colour)
    return np.asarray(mixed * (1 + rng.normal(0, BRIGHTNESS_SPREAD)), np.float32)


def _polar(look: Look, rng: np.random.Generator, side: int) -> tuple[Field, Field]:
    """Return the distance to the centre of the lesion, 1 on its outline, and the angle."""
    y, x = np.mgrid[:side, :side].astype(np.float32) / np.float32(side / 2) - np.float32(1)
    x -= rng.uniform(-0.18, 0.18)
    y -= rng.uniform(-0.18, 0.18)
    turn = rng.uniform(0, math.tau)
    c, s = math.cos(turn), math.sin(turn)
    x, y = c * x - s * y, (s * x + c * y) * rng.uniform(1.0, 1.3)
    angle = np.arctan2(y, x)

    lobed = 0.32 * _scatter(look.lobed, SHAPE_SPREAD, rng)
    irregular = 0.03 + 0.17 * _scatter(look.irregular, SHAPE_SPREAD, rng)
    around = np.linspace(-math.pi, math.pi, 257)
    outline = lobed * (np.abs(np.cos(rng.integers(3, 6) * around / 2)) - 0.6)
    for wave in range(2, 9):
        phase = rng.uniform(0, math.tau)
        outline += irregular * rng.normal() / wave**0.7 * np.cos(wave * around + phase)
    outline = rng.uniform(0.48, 0.72) * np.clip(1 + outline, 0.35, 1.8)
    radius = np.interp(angle, around, outline).astype(np.float32)
    return np.hypot(x, y) / radius, angle


def _cells(rng: np.random.Generator, side: int) -> Field:
    """Return the distance to the nearest of scattered points, in units of half their spacing."""
    n = int(rng.integers(6, 9))
    x, y = np.meshgrid(np.arange(n) + 0.5, np.arange(n) + 0.5)
    x[::2] += 0.5
    points = np.stack([x, y], -1) + rng.uniform(-0.3, 0.3, (n, n, 2))
    pixels = (points * (side / n)).astype(np.int64).reshape(-1, 2) % side
    canvas = np.full((side, side), 255, np.uint8)
    canvas[pixels[:, 1], pixels[:, 0]] = 0
    distance = cv2.distanceTransform(canvas, cv2.DIST_L2, cv2.DIST_MASK_5)
    return np.asarray(distance * (2 * n / side), np.float32)


def _hairs(image: Field, rng: np.random.Generator) -> Field:
    """Draw up to six dark curved hairs."""
    side = image.shape[0]
    mask = np.zeros((side, side), np.uint8)
    for _ in range(rng.choice(7, p=[0.55, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02])):
        start, bend, end = rng.uniform(-0.1, 1.1, (3, 2)) * side
        bend = (start + end) / 2 + 0.3 * (bend - (start + end) / 2)
        t = np.linspace(0, 1, 16)[:, None]
        curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end
        points = np.round(curve * 16).astype(np.int32)
        cv2.polylines(mask, [points], False, 255, max(1, side // 110), cv2.LINE_AA, 4)
    dark = np.array([0.16, 0.11, 0.09], np.float32)
    opacity = (mask * np.float32(rng.uniform(0.5, 0.8) / 255))[:, :, None]
    return image * (1 - opacity) + dark * opacity


def _light(rng: np.random.Generator, side: int) -> Field:
    """Return exposure, white balance and vignetting as a factor ``(side, side, 3)``."""
    y, x = np.mgrid[:side, :side].astype(np.float32) / np.float32(side / 2) - np.float32(1)
    radius2 = (x - rng.uniform(-0.2, 0.2)) ** 2 + (y - rng.uniform(-0.2, 0.2)) ** 2
    vignette = 1 - rng.uniform(0.05, 0.22) * radius2
    balance = rng.uniform(0.9, 1.08) * (1 + rng.normal(0, 0.025, 3))
    return np.asarray(vignette[:, :, None] * balance, np.float32)


def _noise(rng: np.random.Generator, cells: int, side: int) -> Field:
    """Return smooth noise of about unit spread: ``(side, side)``."""
    coarse = rng.standard_normal((cells, cells)).astype(np.float32)
    return np.asarray(cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC), np.float32)


def _scatter(typical: float, spread: float, rng: np.random.Generator) -> float:
    """Draw how strong a property is in one image: near the typical value, from 0 to 1.4."""
    return float(np.clip(typical + rng.normal(0, spread), 0, 1.4))
