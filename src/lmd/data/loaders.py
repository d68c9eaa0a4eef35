"""From decoded images to batches of views: transforms, streams, seeds and worker processes.

Every transform is a pure function of the image and its parameters; a view draws the parameters from
its generator (rows 9 and 10 of ``docs/paper-vs-code.md``). Lengths are fractions of the side, so
that 32 px and 224 px behave alike. Normalisation happens later, on the device.
"""

import math
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from types import TracebackType
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmd.base.distributed import cut, derive_seed, environment_number
from lmd.data.table import Part

Image = cv2.typing.MatLike  # uint8 (S, S, 3)
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
    return cv2.flip(image, -1 if horizontal and vertical else int(horizontal))


def motion_blur(image: Image, length: int, angle: float) -> Image:
    """Average along a line of ``length`` (odd) pixels at ``angle`` radians."""
    kernel = np.zeros((length, length), np.float32)
    reach = length // 2
    dx, dy = round(reach * math.cos(angle)), round(reach * math.sin(angle))
    cv2.line(kernel, (reach - dx, reach - dy), (reach + dx, reach + dy), 1.0)
    return cv2.filter2D(image, -1, kernel / kernel.sum())


def shift_scale_rotate(
    image: Image, shift: tuple[float, float], scale: float, angle: float
) -> Image:
    """Rotate by ``angle`` degrees and scale about the centre, then shift by fractions of a side."""
    size = image.shape[0]
    centre = (size - 1) / 2
    matrix = cv2.getRotationMatrix2D((centre, centre), angle, scale)
    matrix[:, 2] += (shift[0] * size, shift[1] * size)
    return cv2.warpAffine(image, matrix, (size, size), borderMode=cv2.BORDER_REFLECT_101)


def grid_distortion(image: Image, stretch_x: Map, stretch_y: Map) -> Image:
    """Stretch each column and row of a grid by its own factor; the whole still fits the image."""
    size = image.shape[0]
    x, y = np.meshgrid(_stretched(stretch_x, size), _stretched(stretch_y, size))
    return _remap(image, x, y)


def elastic_distortion(image: Image, offsets: Map) -> Image:
    """Move pixels by a smooth field through ``offsets (n, n, 2)``, fractions of the side."""
    size = image.shape[0]
    x, y, _ = _coordinates(size)
    field = cv2.resize(offsets * np.float32(size), (size, size), interpolation=cv2.INTER_CUBIC)
    return _remap(image, x + field[..., 0], y + field[..., 1])


def optical_distortion(image: Image, strength: float, centre: tuple[float, float]) -> Image:
    """Apply a barrel (positive) or pincushion lens: radius r is read at ``r (1 + strength r²)``.

    The radius is a fraction of the side; ``centre`` is the offset from the centre of the image.
    """
    size = image.shape[0]
    x, y, radius2 = _coordinates(size)
    middle = (size - 1) / 2
    gain = np.float32(strength) * radius2
    dx, dy = np.float32(middle + centre[0] * size), np.float32(middle + centre[1] * size)
    return _remap(image, x + gain * (x - dx), y + gain * (y - dy))


def rgb_shift(image: Image, shift: ArrayLike) -> Image:
    """Add one number to each channel, clipped to [0, 255]."""
    table = np.arange(256, dtype=np.float32)[:, None] + np.asarray(shift, np.float32)
    return cv2.LUT(image, np.rint(table).clip(0, 255).astype(np.uint8)[None])


def brightness_contrast(image: Image, brightness: float, contrast: float) -> Image:
    """Return ``(1 + contrast) v + 255 brightness``, clipped to [0, 255]."""
    table = np.arange(256, dtype=np.float32) * (1 + contrast) + 255 * brightness
    return cv2.LUT(image, np.rint(table).clip(0, 255).astype(np.uint8))


def grid_dropout(image: Image, offset: Sequence[float]) -> Image:
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
    """Flip at random, both ways (row 10): ``(S, S, 3)``; may return the image itself."""
    return flip(image, rng.random() < FLIP, rng.random() < FLIP)


def strong(image: Image, rng: np.random.Generator) -> Image:
    """Flip, blur, rotate, distort, change colours, drop a grid (row 9): ``(S, S, 3)``."""
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
        view = rgb_shift(view, rng.uniform(-MAX_RGB, MAX_RGB, 3))
    if fires[4]:
        brightness, contrast = rng.uniform(-1, 1, 2).tolist()
        view = brightness_contrast(view, MAX_BRIGHTNESS * brightness, MAX_CONTRAST * contrast)
    return grid_dropout(view, rng.random(2).tolist()) if fires[5] else view


def evaluation(image: Image, rng: np.random.Generator) -> Image:
    """Return the image as it is; the generator is not used (row 10)."""
    return np.ascontiguousarray(image)


def random_blur(image: Image, rng: np.random.Generator) -> Image:
    """Apply motion, median or box blur, equally likely, from ``MIN_BLUR`` to ``MAX_BLUR``.

    The smallest window is 3 px; for less, its result is mixed with the image.
    """
    width = image.shape[0] * rng.uniform(MIN_BLUR, MAX_BLUR)
    length = max(3, 1 + 2 * int(width / 2))
    choice = rng.integers(3)
    if choice == 0:
        blurred = motion_blur(image, length, rng.uniform(0, math.pi))
    else:
        blurred = cv2.medianBlur(image, length) if choice == 1 else cv2.blur(image, (length,) * 2)
    if width >= 3:
        return blurred
    return cv2.addWeighted(blurred, width / 3, image, 1 - width / 3, 0)


def random_distortion(image: Image, rng: np.random.Generator) -> Image:
    """Apply a grid, elastic or optical distortion, equally likely."""
    choice = rng.integers(3)
    if choice == 0:
        stretch = rng.uniform(1 - MAX_STRETCH, 1 + MAX_STRETCH, (2, 5)).astype(np.float32)
        return grid_distortion(image, stretch[0], stretch[1])
    if choice == 1:
        offsets = rng.uniform(-MAX_ELASTIC, MAX_ELASTIC, (6, 6, 2)).astype(np.float32)
        return elastic_distortion(image, offsets)
    strength, dx, dy = rng.uniform(-1, 1, 3).tolist()
    return optical_distortion(image, MAX_BARREL * strength, (MAX_SHIFT * dx, MAX_SHIFT * dy))


VIEWS: dict[str, View] = {"weak": weak, "strong": strong, "eval": evaluation}


@lru_cache(maxsize=8)
def _coordinates(size: int) -> tuple[Map, Map, Map]:
    """Return x, y and squared distance to the centre (in sides) of each pixel, ``(size, size)``."""
    y, x = np.mgrid[:size, :size].astype(np.float32)
    middle = (size - 1) / 2
    radius2 = ((x - middle) ** 2 + (y - middle) ** 2) / size**2
    for values in (x, y, radius2):
        values.flags.writeable = False  # shared by all calls
    return x, y, radius2


def _stretched(stretch: Map, size: int) -> Map:
    """Return where each pixel of a side is read from, ``(size,)``; the ends stay fixed."""
    ends = np.concatenate([[0.0], np.cumsum(stretch)])
    even = np.linspace(0, size - 1, len(ends))
    places = np.interp(np.arange(size), even, ends / ends[-1] * (size - 1))
    return np.asarray(places, np.float32)


def _remap(image: Image, x: Map, y: Map) -> Image:
    return cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)


class RawBatch(NamedTuple):
    """One stream's batch from a worker, and the seconds its views took there.

    ``views[name] (b, S, S, 3)`` and ``labels (B,)``. If several processes share a batch, ``views``
    are the slice of this process, ``labels`` belong to the whole batch.
    """

    views: dict[str, Tensor]
    labels: Tensor
    seconds: float


def draw(
    labels: NDArray[np.int64], weights: NDArray[np.float64] | None, seed: int
) -> NDArray[np.int64]:
    """Return the order of an epoch ``(N,)``: every image once, or N draws weighted by class."""
    rng = np.random.default_rng(seed)
    if weights is None:
        return rng.permutation(len(labels)).astype(np.int64)
    chances = weights[labels]
    if not (np.isfinite(chances).all() and (chances >= 0).all() and chances.sum() > 0):
        raise ValueError(f"class weights must be finite, at least 0 and not all 0: {weights}")
    cumulative = np.cumsum(chances / chances.sum())
    return np.minimum(
        np.searchsorted(cumulative, rng.random(len(labels)), side="right"), len(labels) - 1
    ).astype(np.int64)


def batches_of(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Cut an order into batches; a last batch of one joins its neighbour (BatchNorm needs two)."""
    cuts = [order[i : i + size] for i in range(0, len(order), size)]
    if len(cuts) > 1 and len(cuts[-1]) == 1:
        cuts[-2:] = [np.concatenate(cuts[-2:])]
    return cuts


@dataclass(frozen=True)
class _Batches(Dataset[list[RawBatch]]):
    """The b-th batch of every stream, or one process's slice of it.

    The randomness of an image depends only on seed, stream, b and its place in the whole batch.
    """

    images: Part
    plans: list[list[NDArray[np.int64]]]
    views: dict[str, View]
    seed: int
    share: tuple[int, int]

    def __len__(self) -> int:
        return min(len(plan) for plan in self.plans)

    def __getitem__(self, b: int) -> list[RawBatch]:
        batches = []
        for stream, plan in enumerate(self.plans):
            started, index = time.perf_counter(), plan[b]
            rows = cut(len(index), *self.share)
            pixels = self.images[index[rows]]
            views = {name: np.empty_like(pixels) for name in self.views}
            random = generators(self.seed, stream, b, rows.start)
            for i, (image, rng) in enumerate(zip(pixels, random, strict=False)):
                for name, view in self.views.items():
                    views[name][i] = view(image, rng)
            labels = torch.from_numpy(self.images.labels[index])
            tensors = {name: torch.from_numpy(view) for name, view in views.items()}
            batches.append(RawBatch(tensors, labels, time.perf_counter() - started))
        return batches


def generators(seed: int, stream: int, batch: int, first: int) -> Iterator[np.random.Generator]:
    """Yield a generator for each image of a batch, from the image at place ``first`` on.

    Each image has its own counter of one generator, which is twenty times cheaper than a new
    generator; their numbers never overlap.
    """
    philox = np.random.Philox(np.random.SeedSequence([seed, stream, batch]))
    fresh, rng = philox.state, np.random.Generator(philox)
    for place in count(first):
        fresh["state"]["counter"][:] = (0, 0, 0, place)
        philox.state = fresh
        yield rng


def default_workers(device: torch.device) -> int:
    """Return the worker processes for views: all spare cores (up to 8) with a GPU, one without."""
    cores = (os.cpu_count() or 1) // environment_number("LOCAL_WORLD_SIZE", 1)
    return min(8, max(1, cores - 1)) if device.type != "cpu" else max(0, min(1, cores - 1))


def training_batches(
    images: Part,
    weights: list[NDArray[np.float64] | None],
    *,
    views: tuple[str, ...],
    batch_size: int,
    seed: int,
    workers: int,
    share: tuple[int, int] = (0, 1),
) -> "DataLoader[list[RawBatch]]":
    """Return the batches of one epoch, with one stream for each entry of ``weights``.

    ``share`` is (index of this process, processes): all draw the same batches, and each makes the
    views of its slice.
    """
    plans = [
        batches_of(draw(images.labels, w, derive_seed(seed, "stream", s)), batch_size)
        for s, w in enumerate(weights)
    ]
    # "strong2" is a second, independent draw of the pipeline "strong".
    pipelines = {name: VIEWS[re.sub(r"\d+$", "", name)] for name in views}
    forks = workers > 0 and platform.system() == "Linux"
    return DataLoader(
        _Batches(images, plans, pipelines, seed, share),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_start_worker if workers else None,
        multiprocessing_context="fork" if forks else None,
        pin_memory=torch.cuda.is_available(),
    )


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals until the end of the block, in which worker processes are started.

    Python ignores what a signal handler raises while it forks, so a Ctrl-C would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, _: caught.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for first in caught[:1]:
        signal.raise_signal(first)


def _start_worker(_: int) -> None:
    # Ctrl-C reaches every process of the terminal; only the main one reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.excepthook = _report
    cv2.setNumThreads(0)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error, but not that the main process was stopped while it fetched a batch."""
    if not issubclass(kind, EOFError | ConnectionError):
        sys.__excepthook__(kind, error, trace)


def evaluation_batches(
    images: Part,
    batch_size: int,
    share: tuple[int, int] = (0, 1),
    view: str = "eval",
    seed: int = 0,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and a view of each batch, in order: uint8 ``(B, S, S, 3)``.

    Each of n processes gets every n-th batch, so batches do not depend on their number. A random
    view depends on ``seed`` and the row alone.
    """
    process, processes = share
    for start in range(process * batch_size, len(images), processes * batch_size):
        rows = slice(start, min(start + batch_size, len(images)))
        batch = images[rows]
        if view != "eval":
            drawn = zip(batch, generators(seed, 0, 0, start), strict=False)
            batch = np.stack([VIEWS[view](image, rng) for image, rng in drawn])
        yield rows, torch.from_numpy(batch)
