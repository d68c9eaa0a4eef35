"""The stratified bootstrap: metrics on many resamples of the images at once.

A resample draws, within each true class, as many images as the class has, with replacement. It is
kept as the number of times each image was drawn. If the patients or lesions of the images are
known, these are drawn instead, each with all its images of the class.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.confusion import Floats
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample, Weighted

Draws = dict[str, Floats]

_CHUNK = 1_000_000  # weights held at once: limits memory and fits the cache


def bootstrap(
    sample: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> Draws:
    """The metrics ``keys`` on R stratified resamples, ``(R,)`` each.

    The same seed draws the same images from two samples of the same images in the same order.
    """
    functions = {key: METRICS[key].function for key in keys}
    chunks: list[Draws] = []
    for weights in draw(sample, resamples, seed):
        drawn = Weighted(sample, weights)
        chunks.append({key: function(drawn) for key, function in functions.items()})
    return {key: np.concatenate([chunk[key] for chunk in chunks]) for key in functions}


def draw(sample: Sample, count: int, seed: int) -> Iterator[Floats]:
    """Stratified resamples in chunks: how often each image was drawn ``(R, N)``."""
    if count < 1:
        raise LmdError(f"resamples must be at least 1; it is {count}")
    generator = np.random.default_rng(seed)
    size = max(1, _CHUNK // len(sample.labels))
    groups = [sample.groups_of(k) for k in range(len(sample.rows))]
    for start in range(0, count, size):
        rows = min(size, count - start)
        yield np.concatenate([_drawn(group, rows, generator) for group in groups], axis=1)


def _drawn(group: NDArray[np.integer[Any]], rows: int, generator: np.random.Generator) -> Floats:
    """How often each of n images was drawn ``(R, n)``; ``group (n,)`` numbers groups from 0."""
    n = int(group.max()) + 1 if len(group) else 0
    drawn = generator.integers(n, size=(rows, n)) if n else np.zeros((rows, 0), np.int64)
    drawn += np.arange(rows)[:, None] * n
    times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
    return (times if n == len(group) else times[:, group]).astype(np.float64)
