"""The one rule by which an image gets the size of a model.

A pixel of the result is the mean of the image over a window around its place. The window is as
wide as a pixel of the result, but at least as wide as a pixel of the image: shrinking averages, so
that nothing is aliased, and enlarging interpolates linearly. Beyond the edge, the outermost pixel
is repeated.

Weights are integers of ``BITS`` bits, and both passes are exact in floating point: float32 holds
the first sum, below 2^24, and float64 the second, below 2^40. There is one rounding, at the end,
half up. So no order of operations, library or processor can change a bit.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["float32", "float64"]

BITS = 16
ROWS = 8  # at most so many rows of the result are computed by one product of matrices
PIXELS = 1 << 17  # and of about so many pixels, if one row does not need more
LONG = 1 << 16  # weights of longer sides are not kept
NARROW = 16  # images with a larger ratio of width to height are transposed first


def resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Squash ``(H, W, 3)`` to ``(size, size, 3)``; as in the paper the aspect ratio is lost."""
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return np.ascontiguousarray(image)
    if width > NARROW * height:  # the first pass must shrink the long side, to save memory
        return np.ascontiguousarray(resize(image.transpose(1, 0, 2), size).transpose(1, 0, 2))
    columns = np.empty((width * 3, size), np.float32)
    for places, sources, block in _blocks(height, width, size, "float32"):
        # Only the rows that are needed are converted, so that a huge image fits.
        rows = image[sources].astype(np.float32, order="C").reshape(-1, width * 3)
        columns[:, places] = (block @ rows).T
    columns = columns.reshape(width, 3 * size)
    result = np.empty((size, size, 3), np.uint8)
    for places, sources, block in _blocks(width, size, size, "float64"):
        sums = block @ columns[sources].astype(np.float64)
        means = (sums * 2.0 ** (-2 * BITS) + 0.5).astype(np.uint8)
        result[:, places] = means.reshape(-1, 3, size).transpose(2, 0, 1)
    return result


def weights(length: int, size: int) -> NDArray[np.int64]:
    """Weights ``(size, length)`` of the pixels of a side in each pixel of the result.

    Every row has the sum ``2**BITS``.

    >>> weights(4, 2) / 2**BITS
    array([[0.5, 0.5, 0. , 0. ],
           [0. , 0. , 0.5, 0.5]])
    >>> weights(2, 4) / 2**BITS
    array([[1.  , 0.  ],
           [0.75, 0.25],
           [0.25, 0.75],
           [0.  , 1.  ]])
    """
    return _weights(length, size, (0, size), (0, length))


def _weights(
    length: int, size: int, places: tuple[int, int], sources: tuple[int, int]
) -> NDArray[np.int64]:
    """Differences of the rounded share of each window that lies before each source pixel."""
    # Lengths are in units of 1 / (2 size) source pixels, in which all are integers.
    wide = 2 * max(length, size)
    start = (2 * np.arange(*places, dtype=np.int64) + 1) * length - wide // 2
    edges = 2 * size * np.arange(sources[0], sources[1] + 1, dtype=np.int64)
    before = np.clip(edges - start[:, None], 0, wide)
    before[:, edges == 0] = 0
    before[:, edges == 2 * size * length] = wide
    rounded: NDArray[np.int64] = ((before << (BITS + 1)) + wide) // (2 * wide)
    return np.diff(rounded, axis=1)


def _blocks(
    length: int, across: int, size: int, kind: Kind
) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
    make = _block if length <= LONG else _block.__wrapped__
    rows = max(1, min(ROWS, PIXELS * size // (length * across)))
    for first in range(0, size, rows):
        yield make(length, size, first, min(first + rows, size), kind)


@lru_cache(maxsize=512)
def _block(
    length: int, size: int, first: int, last: int, kind: Kind
) -> tuple[slice, slice, NDArray[Any]]:
    """Rows of the result, the rows of the source they need, and the weights between them."""
    wide = max(length, size)
    low = max(0, ((2 * first + 1) * length - wide) // (2 * size))
    high = min(length, -((-(2 * last - 1) * length - wide) // (2 * size)))
    block = _weights(length, size, (first, last), (low, high)).astype(kind)
    block.flags.writeable = False  # shared by all calls
    return slice(first, last), slice(low, high), block
