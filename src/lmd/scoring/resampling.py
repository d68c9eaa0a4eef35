"""The stratified bootstrap: metrics on many resamples of the images at once.

A resample draws, within each true class, as many images as the class has, with replacement. It is
kept as the number of times each image was drawn. If the patients or lesions of the images are
known, these are drawn instead, each with all its images of the class.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    return bootstrap_all([sample], keys, resamples=resamples, seed=seed)[0]


def bootstrap_all(
    samples: Sequence[Sample],
    keys: Iterable[str] = METRICS,
    *,
    resamples: int = 1000,
    seed: int = 0,
    tick: Callable[[int], object] = lambda done: None,
) -> list[Draws]:
    """What ``bootstrap`` gives for each of several samples of the same images, drawn only once.

    ``tick`` is called with the number of resamples that have been added to one sample.
    """
    functions = {key: METRICS[key].function for key in keys}
    found: list[list[Draws]] = [[] for _ in samples]
    for weights in draw(samples[0], resamples, seed):
        for sample, chunks in zip(samples, found, strict=True):
            drawn = Weighted(sample, weights)
            chunks.append({key: function(drawn) for key, function in functions.items()})
            tick(len(weights))
    return [
        {key: np.concatenate([chunk[key] for chunk in chunks]) for key in functions}
        for chunks in found
    ]


def draw(sample: Sample, count: int, seed: int) -> Iterator[Floats]:
    """Stratified resamples in chunks: how often each image was drawn ``(R, N)``.

    The weights of one image are contiguous, because AUC puts the images into another order.
    """
    if count < 1:
        raise LmdError(f"resamples must be at least 1; it is {count}")
    generator = np.random.default_rng(seed)
    size = max(1, _CHUNK // len(sample.labels))
    groups = [sample.groups_of(k) for k in range(len(sample.rows))]
    for start in range(0, count, size):
        rows = min(size, count - start)
        yield np.concatenate([_drawn(group, rows, generator) for group in groups]).T


def _drawn(group: NDArray[np.integer[Any]], rows: int, generator: np.random.Generator) -> Floats:
    """How often each of n images was drawn ``(n, R)``; ``group (n,)`` numbers groups from 0."""
    n = int(group.max()) + 1 if len(group) else 0
    drawn = generator.integers(n, size=(rows, n)) if n else np.zeros((rows, 0), np.int64)
    drawn = drawn * rows + np.arange(rows)[:, None]
    times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(n, rows)
    return (times if n == len(group) else times[group]).astype(np.float64)
