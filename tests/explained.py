"""A small run on skin-like images, and images of another kind."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lmd
from lmd.data.synthetic import render
from lmd.runs.folder import Run

SIZE = 16
LABELS = (0, 2, 6)  # of the synthetic set: brown, red and dark
SETTINGS: dict[str, Any] = {
    "backbone": "resnet8",
    "weights": "none",
    "image_size": SIZE,
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.05,
    "workers": 0,
}


def skin(label: int, n: int, start: int = 0) -> NDArray[np.uint8]:
    """Images ``(n, S, S, 3)`` of one class of the synthetic set."""
    return np.stack([render(0, label, start + i, SIZE) for i in range(n)])


def endoscopy(n: int, seed: int = 0, size: int = SIZE) -> NDArray[np.uint8]:
    """A red tube with folds, a dark lumen, highlights and a black frame: ``(n, S, S, 3)``."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / (size / 2) - 1
    images = np.zeros((n, size, size, 3))
    for image in images:
        radius = np.hypot(x - rng.uniform(-0.3, 0.3), y - rng.uniform(-0.3, 0.3))
        folds = 0.15 * np.cos(rng.uniform(6, 12) * radius + rng.uniform(0, 6))
        wall = np.array([0.75, 0.32, 0.25]) * rng.uniform(0.7, 1.2)
        image[:] = wall * (1 - 0.5 * radius[..., None]) + folds[..., None] * [1, 0.6, 0.5]
        image[radius < 0.25] *= 0.2
        image[np.hypot(x, y) > 0.95] = 0.02
        for left, top in rng.uniform(-0.6, 0.6, (3, 2)):
            image[np.hypot(x - left, y - top) < 0.1] = 1
    return np.asarray((images.clip(0, 1) * 255).round(), np.uint8)


def skin_data(path: Path, counts: tuple[int, ...] = (40, 24, 12), held_out: int = 20) -> Path:
    """An .npz of skin-like images; ``held_out`` validation and test images of each class."""
    arrays: dict[str, Any] = {}
    sizes = {"test": (held_out,) * 3, "val": (held_out,) * 3, "train": counts}
    starts = {"test": 0, "val": 100, "train": 200}
    for part, of in sizes.items():
        images = [skin(label, n, starts[part]) for label, n in zip(LABELS, of, strict=True)]
        arrays[f"{part}_images"] = np.concatenate(images)
        arrays[f"{part}_labels"] = np.repeat(np.arange(3), of)[:, None]
    np.savez(path, **arrays)
    return path


def skin_run(folder: Path, **options: Any) -> Run:
    """A run on skin-like images in ``folder / "run"``."""
    data = skin_data(folder / "skin.npz")
    out = folder / "run"
    return lmd.train(data, method="ce", settings=SETTINGS, out=out, quiet=True, **options)
