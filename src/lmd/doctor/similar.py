"""Finds images that look alike by a 64-bit perceptual hash, and confirms them by correlation."""

from collections.abc import Iterable, Iterator
from itertools import chain

import cv2
import numpy as np
from numpy.typing import NDArray

SIDE = 32
# Chosen on HAM10000, with 10 015 similar photographs. Of 50 million pairs of different lesions, one
# passes both limits (a photograph filed under two lesions). Of 100 copies that were saved as JPEG
# of quality 40, halved, brightened or squeezed to a square, 99 pass.
MAX_DISTANCE = 6
MIN_CORRELATION = 0.99
# An image with a smaller standard deviation of grey values (0 to 255) is not compared.
MIN_SPREAD = 4.0
BANDS, BAND_BITS = 4, 16
CHUNK, BATCH = 2_000_000, 2048
ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def thumbnail(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A grey miniature ``(32, 32)`` of an image ``(H, W, 3)`` of any proportions."""
    small = cv2.resize(rgb, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def perceptual_hash(grey: NDArray[np.uint8]) -> int:
    """64 bits of a miniature ``(32, 32)``: which low frequencies of its DCT exceed their median.

    The constant term is left out, so brightness has no effect; the last bit is always 0.
    """
    low = cv2.dct(grey.astype(np.float32))[:8, :8].ravel()[1:]
    bits = np.append(low > np.median(low), False)
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def near_clusters(
    hashes: NDArray[np.uint64],
    miniatures: NDArray[np.uint8],
    groups: NDArray[np.int64] | None = None,
) -> list[tuple[int, ...]]:
    """Sets of images with nearly equal hashes ``(N,)`` and miniatures ``(N, 32, 32)``.

    Images of one of the ``groups (N,)`` are not compared. A set may be a chain: its first and last
    image need not be nearly equal.
    """
    flat = miniatures.reshape(len(miniatures), -1)
    owner = np.arange(len(hashes))
    for first, second in _candidates(hashes):
        differing = (hashes[first] ^ hashes[second]).view(np.uint8).reshape(-1, 8)
        close = ONES[differing].sum(axis=1) <= MAX_DISTANCE
        if groups is not None:
            close &= groups[first] != groups[second]
        _join(owner, flat, first[close], second[close])
    return _sets(owner)


def clusters(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The connected sets of numbers, each in ascending order, ordered by their first members.

    >>> clusters([(1, 2), (5, 7), (2, 3)])
    [(1, 2, 3), (5, 7)]
    """
    joined = list(pairs)
    owner = np.arange(1 + max(chain.from_iterable(joined), default=0))
    for i, j in joined:
        _unite(owner, i, j)
    return _sets(owner)


def _candidates(
    hashes: NDArray[np.uint64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs that differ in at most one bit of some band, so all within distance 7."""
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1)
    # Bits that hardly vary are spread evenly: a band made of them would match everything.
    by_spread = np.argsort(bits.var(axis=0), kind="stable")
    for band in range(BANDS):
        own = np.packbits(bits[:, by_spread[band::BANDS]], axis=1).astype(np.int64)
        codes = 256 * own[:, 0] + own[:, 1]
        order = np.argsort(codes, kind="stable")
        ranked = codes[order]
        for flip in (0, *(1 << bit for bit in range(BAND_BITS))):
            low = np.searchsorted(ranked, codes ^ flip, "left")
            high = np.searchsorted(ranked, codes ^ flip, "right")
            yield from _ranges(order, low, high)


def _ranges(
    order: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of i and each larger ``order[low[i]:high[i]]``, in chunks that fit into memory."""
    sizes = high - low
    start = 0
    totals = np.cumsum(sizes)
    while start < len(sizes):
        base = totals[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(totals, base + CHUNK, "right")))
        own = np.repeat(np.arange(start, stop), sizes[start:stop])
        begins = np.repeat(
            low[start:stop] - (totals[start:stop] - sizes[start:stop] - base), sizes[start:stop]
        )
        other = order[begins + np.arange(len(own))]
        upward = own < other
        yield own[upward], other[upward]
        start = stop


def _join(
    owner: NDArray[np.int64],
    flat: NDArray[np.uint8],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> None:
    """Join the pairs of rows of ``flat (N, 1024)`` with a high correlation."""
    for start in range(0, len(first), BATCH):
        i, j = first[start : start + BATCH], second[start : start + BATCH]
        # Pairs in one set are not compared again, so a video of equal frames costs little.
        apart = owner[i] != owner[j]
        i, j = i[apart], j[apart]
        high = np.einsum("pd,pd->p", _standard(flat[i]), _standard(flat[j])) >= MIN_CORRELATION
        for one, other in zip(i[high].tolist(), j[high].tolist(), strict=True):
            _unite(owner, one, other)


def _standard(rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Rows with mean 0 and length 1; ``MIN_SPREAD`` excludes constant rows."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return unit


def _unite(owner: NDArray[np.int64], one: int, other: int) -> None:
    """Join two sets; ``owner (N,)`` is the first member of the set of each image."""
    a, b = sorted((owner[one], owner[other]))
    if a != b:
        owner[owner == b] = a


def _sets(owner: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """All sets with several members, in ascending order."""
    members: dict[int, list[int]] = {}
    for i, first in enumerate(owner.tolist()):
        members.setdefault(first, []).append(i)
    return [tuple(each) for each in members.values() if len(each) > 1]
