"""From cached pixels to batches of views: streams, seeds and worker processes."""

import hashlib
import os
import platform
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmd.data.views import VIEWS

Pixels = NDArray[np.uint8]
# One stream's batch as it leaves a worker: views (B, S, S, 3) by name, and labels (B,).
RawBatch = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class ImageSet:
    """Decoded images ``(N, S, S, 3)`` and their labels ``(N,)``."""

    pixels: Pixels
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Normalise:
    """uint8 ``(B, S, S, 3)`` to normalised float ``(B, 3, S, S)``, channels last in memory."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(
        cls,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        device: torch.device,
    ) -> "Normalise":
        """From a backbone's channel means and deviations (of intensities in 0..1)."""
        as_column = [torch.tensor(v, device=device).mul(255).view(1, 3, 1, 1) for v in (mean, std)]
        return cls(*as_column)

    def __call__(self, images: Tensor) -> Tensor:
        """Move to the device of ``mean`` and normalise there: bytes travel, not floats."""
        moved = images.to(self.mean.device, non_blocking=True).permute(0, 3, 1, 2)
        return moved.float().sub_(self.mean).div_(self.std)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any values, the same on every machine.

    >>> derive_seed(0, "epoch", 1) == derive_seed(0, "epoch", 1) != derive_seed(0, "epoch", 2)
    True
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def draw(
    labels: NDArray[np.int64], weights: NDArray[np.float64] | None, seed: int
) -> NDArray[np.int64]:
    """An epoch's order ``(N,)``: every image once, or N draws with each class's weight."""
    rng = np.random.default_rng(seed)
    if weights is None:
        return rng.permutation(len(labels)).astype(np.int64)
    each = weights[labels]
    if not (np.isfinite(each).all() and (each >= 0).all() and each.sum() > 0):
        raise ValueError(f"class weights must be finite, not negative and not all 0: {weights}")
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
    """The b-th batch of every stream; its randomness depends on seed, stream and b alone."""

    def __init__(
        self,
        images: ImageSet,
        plans: list[list[NDArray[np.int64]]],
        views: tuple[str, ...],
        seed: int,
    ) -> None:
        self.images, self.plans, self.views, self.seed = images, plans, views, seed

    def __len__(self) -> int:
        return min(len(plan) for plan in self.plans)

    def __getitem__(self, b: int) -> list[RawBatch]:
        return [self._stream(s, plan[b], b) for s, plan in enumerate(self.plans)]

    def _stream(self, stream: int, index: NDArray[np.int64], b: int) -> RawBatch:
        rng = np.random.default_rng([self.seed, stream, b])
        pixels = np.asarray(self.images.pixels[index])
        views = {}
        for name in self.views:
            # "strong2" is a second, independent draw of the pipeline "strong".
            view = VIEWS[re.sub(r"\d+$", "", name)]
            views[name] = torch.from_numpy(np.stack([view(image, rng) for image in pixels]))
        return views, torch.from_numpy(self.images.labels[index])


def default_workers(device: torch.device) -> int:
    """Worker processes for the views: all spare cores beside a GPU, one beside a CPU."""
    cores = os.cpu_count() or 1
    return min(8, max(1, cores - 1)) if device.type != "cpu" else min(1, cores - 1)


def training_batches(
    images: ImageSet,
    weights: list[NDArray[np.float64] | None],
    *,
    views: tuple[str, ...],
    batch_size: int,
    seed: int,
    workers: int,
) -> "DataLoader[list[RawBatch]]":
    """Batches of one epoch: one stream for each entry of ``weights``."""
    plans = [
        batches_of(draw(images.labels, w, derive_seed(seed, "stream", s)), batch_size)
        for s, w in enumerate(weights)
    ]
    forks = workers > 0 and platform.system() == "Linux"
    return DataLoader(
        _Batches(images, plans, views, seed),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_start_worker if workers else None,
        multiprocessing_context="fork" if forks else None,
        pin_memory=torch.cuda.is_available(),
    )


def _start_worker(_: int) -> None:
    # Ctrl-C reaches every process of the terminal: the main one alone decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    cv2.setNumThreads(0)


def evaluation_batches(pixels: Pixels, batch_size: int) -> Iterator[Tensor]:
    """The evaluation view, in order: uint8 ``(B, S, S, 3)``."""
    for start in range(0, len(pixels), batch_size):
        yield torch.from_numpy(np.array(pixels[start : start + batch_size]))
