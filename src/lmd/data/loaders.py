"""From cached pixels to batches of views: streams, seeds and worker processes."""

import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmd.base.distributed import cut, derive_seed, local_world
from lmd.data.table import Part
from lmd.data.views import VIEWS


class RawBatch(NamedTuple):
    """One stream's batch from a worker, and the seconds its views took there.

    ``views[name] (b, S, S, 3)`` and ``labels (B,)``. If several processes share a batch, ``views``
    are the slice of this process, ``labels`` those of the whole batch.
    """

    views: dict[str, Tensor]
    labels: Tensor
    seconds: float


@dataclass(frozen=True)
class Normalise:
    """uint8 ``(B, S, S, 3)`` to normalised float ``(B, 3, S, S)``, channels last in memory."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], device: torch.device) -> "Normalise":
        """From channel means and standard deviations of intensities in [0, 1]."""
        as_column = [torch.tensor(v, device=device).mul(255).view(1, 3, 1, 1) for v in (mean, std)]
        return cls(*as_column)

    def __call__(self, images: Tensor) -> Tensor:
        """Move to the device of ``mean``, as bytes, and normalise there."""
        moved = images.to(self.mean.device, non_blocking=True).permute(0, 3, 1, 2)
        return moved.float().sub_(self.mean).div_(self.std)


def draw(
    labels: NDArray[np.int64], weights: NDArray[np.float64] | None, seed: int
) -> NDArray[np.int64]:
    """The order of an epoch ``(N,)``: every image once, or N draws weighted by class."""
    rng = np.random.default_rng(seed)
    if weights is None:
        return rng.permutation(len(labels)).astype(np.int64)
    each = weights[labels]
    if not (np.isfinite(each).all() and (each >= 0).all() and each.sum() > 0):
        raise ValueError(f"class weights must be finite, at least 0 and not all 0: {weights}")
    cumulative = np.cumsum(each / each.sum())
    return np.minimum(
        np.searchsorted(cumulative, rng.random(len(labels)), side="right"), len(labels) - 1
    ).astype(np.int64)


def batches_of(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Cut an order into batches; a last batch of one joins its neighbour (BatchNorm needs two)."""
    cuts = [order[i : i + size] for i in range(0, len(order), size)]
    if len(cuts) > 1 and len(cuts[-1]) == 1:
        cuts[-2:] = [np.concatenate(cuts[-2:])]
    return cuts


class _Batches(Dataset[list[RawBatch]]):
    """The b-th batch of every stream, or one process's slice of it.

    The randomness of an image depends only on seed, stream, b and its place in the whole batch.
    """

    def __init__(
        self,
        images: Part,
        plans: list[list[NDArray[np.int64]]],
        views: tuple[str, ...],
        seed: int,
        share: tuple[int, int],
    ) -> None:
        self.images, self.plans, self.seed, self.share = images, plans, seed, share
        # "strong2" is a second, independent draw of the pipeline "strong".
        self.views = {name: VIEWS[re.sub(r"\d+$", "", name)] for name in views}

    def __len__(self) -> int:
        return min(len(plan) for plan in self.plans)

    def __getitem__(self, b: int) -> list[RawBatch]:
        return [self._stream(s, plan[b], b) for s, plan in enumerate(self.plans)]

    def _stream(self, stream: int, index: NDArray[np.int64], b: int) -> RawBatch:
        started = time.perf_counter()
        own = cut(len(index), *self.share)
        pixels = self.images[index[own]]
        views = {name: np.empty_like(pixels) for name in self.views}
        random = generators(self.seed, stream, b, own.start)
        for i, (image, rng) in enumerate(zip(pixels, random, strict=False)):
            for name, view in self.views.items():
                views[name][i] = view(image, rng)
        labels = torch.from_numpy(self.images.labels[index])
        made = {name: torch.from_numpy(view) for name, view in views.items()}
        return RawBatch(made, labels, time.perf_counter() - started)


def generators(seed: int, stream: int, batch: int, first: int) -> Iterator[np.random.Generator]:
    """A generator for each image of a batch, from the image at place ``first`` on.

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
    """Worker processes for the views: all spare cores (up to 8) with a GPU, one without."""
    cores = (os.cpu_count() or 1) // local_world()
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
    """Batches of one epoch, with one stream for each entry of ``weights``.

    ``share`` is (index of this process, processes): all draw the same batches, and each makes the
    views of its slice.
    """
    plans = [
        batches_of(draw(images.labels, w, derive_seed(seed, "stream", s)), batch_size)
        for s, w in enumerate(weights)
    ]
    forks = workers > 0 and platform.system() == "Linux"
    return DataLoader(
        _Batches(images, plans, views, seed, share),
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
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for caught in came[:1]:
        signal.raise_signal(caught)


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
    """Rows and a view of each batch, in order: uint8 ``(B, S, S, 3)``.

    Each of n processes gets every n-th batch, so batches do not depend on their number. A random
    view depends on ``seed`` and the row alone.
    """
    process, processes = share
    for start in range(process * batch_size, len(images), processes * batch_size):
        rows = slice(start, min(start + batch_size, len(images)))
        batch = images[rows]
        if view != "eval":
            made = zip(batch, generators(seed, 0, 0, start), strict=False)
            batch = np.stack([VIEWS[view](image, rng) for image, rng in made])
        yield rows, torch.from_numpy(batch)
