"""Small real data that many tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmd.data.loaders import ImageSet
from lmd.methods import METHODS
from lmd.model import Model
from lmd.training import Trainer

MakeTrainer = Callable[..., Trainer]

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"  # real data beside the repository; tests skip where it is absent
VECTORS = ROOT / "tests" / "reference_vectors.json"
# Small values where a default would make a test slow; the behaviour is the same.
QUICK = {"lmd": {"virtual_features": 200}}


def quick(key: str) -> dict[str, object]:
    """Settings that make a method quick without changing what it does."""
    method = METHODS[key]
    return dict(QUICK.get(method.family or key, {}))


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    """The derivative of ``loss`` with respect to ``of``."""
    (found,) = torch.autograd.grad(loss, of)
    return found


def close(found: Tensor, expected: Any, **options: float) -> None:
    """Fails unless both are the same up to rounding."""
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), **options)


def toy_images(counts: tuple[int, ...], size: int = 16, seed: int = 0) -> ImageSet:
    """Noise with a class-dependent colour: learnable in a few steps."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    colours = np.random.default_rng(7).integers(40, 215, (len(counts), 1, 1, 3))
    noise = rng.normal(0, 25, (len(labels), size, size, 3))
    return ImageSet(np.clip(colours[labels] + noise, 0, 255).astype(np.uint8), labels)


def toy_probabilities(
    labels: NDArray[Any], classes: int, skill: float = 1.0, seed: int = 0
) -> NDArray[np.float64]:
    """A classifier of a given skill, ``(N, K)``: noise, and a push towards the true class."""
    scores = np.random.default_rng(seed).normal(0, 1, (len(labels), classes))
    scores[np.arange(len(labels)), labels] += skill
    return np.asarray(np.exp(scores) / np.exp(scores).sum(1, keepdims=True))


def toy_predictions(
    support: tuple[int, ...] = (40, 25, 12, 6, 3), skill: float = 1.0, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Shuffled labels ``(N,)`` with ``support`` images of each class, and probabilities."""
    labels = np.repeat(np.arange(len(support)), support)
    labels = np.random.default_rng(seed).permutation(labels)
    return labels, toy_probabilities(labels, len(support), skill, seed + 1)


def write_npz(path: Path, counts: tuple[int, ...] = (16, 8, 4), size: int = 16) -> Path:
    """A data set in a file: training counts as given, 4 validation and 4 test images a class."""
    parts = {"train": counts, "val": (4,) * len(counts), "test": (4,) * len(counts)}
    arrays: dict[str, Any] = {}
    for seed, (name, of) in enumerate(parts.items()):
        images = toy_images(of, size, seed)
        arrays |= {f"{name}_images": images.pixels, f"{name}_labels": images.labels[:, None]}
    np.savez(path, **arrays)
    return path


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    """A copy of everything that a model ships."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Equal to the last bit."""
    assert a.keys() == b.keys()
    different = [k for k in a if not torch.equal(a[k], b[k])]
    assert not different, f"these differ: {different}"
