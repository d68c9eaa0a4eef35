"""Which images look alike: a 64-bit perceptual hash, banded lookup, and a check by correlation."""

from collections.abc import Iterable, Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

SIDE = 32
# Chosen on HAM10000, whose 10 015 photographs are much alike: of 50 million pairs of different
# lesions one passes both (a photograph filed under two lesions), while 99 of 100 copies pass that
# were saved as JPEG of quality 40, halved, brightened or squeezed to a square.
MAX_DISTANCE = 6
MIN_CORRELATION = 0.99
# Below this spread of grey values (of 255) there is too little to compare.
MIN_SPREAD = 4.0
BANDS, BAND_BITS = 4, 16
CHUNK, BATCH = 2_000_000, 2048
ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def thumbnail(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A grey miniature ``(32, 32)`` of an image ``(H, W, 3)``, whatever its proportions."""
    small = cv2.resize(rgb, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def perceptual_hash(grey: NDArray[np.uint8]) -> int:
    """64 bits of a miniature ``(32, 32)``: which low frequencies of its DCT exceed their median.

    The constant term is left out, so brightness does not matter; the last bit is always 0.
    """
    low = cv2.dct(grey.astype(np.float32))[:8, :8].ravel()[1:]
    bits = np.append(low > np.median(low), False)
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def comparable(grey: NDArray[np.uint8]) -> bool:
    """Whether a miniature shows enough to be compared with others."""
    return float(grey.std()) >= MIN_SPREAD


def near_clusters(
    hashes: NDArray[np.uint64],
    miniatures: NDArray[np.uint8],
    groups: NDArray[np.int64] | None = None,
) -> list[tuple[int, ...]]:
    """Sets of images whose hashes ``(N,)`` and miniatures ``(N, 32, 32)`` are nearly equal.

    Two images of one of the ``groups (N,)`` are not compared; an image that nearly equals another
    is in one set with all that nearly equal that one.
    """
    flat = miniatures.reshape(len(miniatures), -1)
    parent = np.arange(len(hashes))
    for first, second in _candidates(hashes):
        close = _distance(hashes[first], hashes[second]) <= MAX_DISTANCE
        if groups is not None:
            close &= groups[first] != groups[second]
        _join(parent, flat, first[close], second[close])
    return _sets(parent)


def clusters(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Sets of what is connected, each in ascending order, by their first members.

    >>> clusters([(1, 2), (5, 7), (2, 3)])
    [(1, 2, 3), (5, 7)]
    """
    joined = list(pairs)
    items = sorted({i for pair in joined for i in pair})
    index = {item: k for k, item in enumerate(items)}
    parent = np.arange(len(items))
    for i, j in joined:
        _unite(parent, index[i], index[j])
    return [tuple(items[k] for k in each) for each in _sets(parent)]


def _candidates(
    hashes: NDArray[np.uint64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs that agree in a band of 16 bits but for one: all within distance 7 are among them."""
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1)
    # Bits that hardly vary in this set are dealt out evenly, or a band of them would match all.
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
    """Each i with every ``order[low[i]:high[i]]`` above i, in pieces that fit into memory."""
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


def _distance(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bits that differ ``(P,)``."""
    counts: NDArray[np.int64] = ONES[(a ^ b).view(np.uint8).reshape(-1, 8)].sum(axis=1)
    return counts


def _join(
    parent: NDArray[np.int64],
    flat: NDArray[np.uint8],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> None:
    """Join those pairs of rows of ``flat (N, 1024)`` whose correlation is high."""
    for start in range(0, len(first), BATCH):
        i, j = first[start : start + BATCH], second[start : start + BATCH]
        # Pairs that are joined already are not compared, so a film of equal frames costs little.
        roots = _roots(parent)
        apart = roots[i] != roots[j]
        i, j = i[apart], j[apart]
        high = np.einsum("pd,pd->p", _standard(flat[i]), _standard(flat[j])) >= MIN_CORRELATION
        for one, other in zip(i[high].tolist(), j[high].tolist(), strict=True):
            _unite(parent, one, other)


def _standard(rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Rows of mean 0 and length 1; none is constant, see ``comparable``."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return unit


def _unite(parent: NDArray[np.int64], one: int, other: int) -> None:
    a, b = sorted((_root(parent, one), _root(parent, other)))
    parent[b] = a


def _sets(parent: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """All sets of several members, in ascending order."""
    members: dict[int, list[int]] = {}
    for i, root in enumerate(_roots(parent).tolist()):
        members.setdefault(root, []).append(i)
    return [tuple(each) for each in members.values() if len(each) > 1]


def _root(parent: NDArray[np.int64], i: int) -> int:
    while parent[i] != i:
        i = int(parent[i])
    return i


def _roots(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """The root of each ``(N,)``; shortens all ways to them."""
    while not np.array_equal(parent[parent], parent):
        parent[:] = parent[parent]
    return parent.copy()
