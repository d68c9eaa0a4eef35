"""Small real data that many tests share."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD

from lmd.base.progress import Display
from lmd.data.table import Part
from lmd.methods import METHODS
from lmd.methods.lmd.gaussians import ClassGaussians, Distance
from lmd.methods.lmd.icc import attraction_and_repulsion
from lmd.methods.method import Method
from lmd.methods.stage import Batch, Stage, Task, prepare
from lmd.model import CosineClassifier, Model
from lmd.training.loop import Trainer

MakeTrainer = Callable[..., Trainer]

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"  # real data beside the repository; tests skip where it is absent
VECTORS = ROOT / "tests" / "reference_vectors.json"
# The inputs of the reference numbers.
COUNTS = torch.tensor([100, 40, 10, 4])
LABELS = torch.tensor([0, 1, 2, 3, 0])
LOGITS = torch.tensor(
    [
        [2.0, 0.5, -1.0, 0.1],
        [0.3, 1.2, 0.0, -0.7],
        [1.5, 0.2, 0.4, -0.3],
        [0.8, -0.2, 0.1, 0.6],
        [-0.5, 0.9, 0.3, 0.2],
    ]
)
COSINE = torch.tensor(
    [
        [0.9, 0.1, -0.3, 0.05],
        [0.2, 0.7, 0.1, -0.4],
        [0.5, 0.1, 0.3, -0.2],
        [0.4, -0.1, 0.0, 0.35],
        [-0.2, 0.6, 0.15, 0.1],
    ]
)
WEIGHT = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.5, 0.0], [0.2, 0.1]])
# Small values where a default would make a test slow; the behaviour is the same.
QUICK: dict[str, dict[str, object]] = {"lmd": {"virtual_features": 200}}


def quick(key: str) -> dict[str, object]:
    """Settings that make a method quick without changing what it does."""
    method = METHODS[key]
    short = {"classifier_epochs": 2} if "classifier_epochs" in method.settings() else {}
    return short | QUICK.get(method.family or key, {})


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    """The derivative of ``loss`` with respect to ``of``."""
    (found,) = torch.autograd.grad(loss, of)
    return found


def close(found: Tensor, expected: Any, **options: float) -> None:
    """Fails unless both are the same up to rounding."""
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), **options)


class Listening(Display):
    """A quiet display that remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        """Remember a line."""
        self.said.append(text)


def toy_images(counts: tuple[int, ...], size: int = 16, seed: int = 0) -> Part:
    """Noise with a class-dependent colour: learnable in a few steps."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    colours = np.random.default_rng(7).integers(40, 215, (len(counts), 1, 1, 3))
    noise = rng.normal(0, 25, (len(labels), size, size, 3))
    pixels = np.clip(colours[labels] + noise, 0, 255).astype(np.uint8)
    return Part(pixels, np.arange(len(labels)), labels)


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


@dataclass
class FakeEpoch:
    """What the loop lends for one epoch: images in memory, features by the model in ``eval`` mode.

    Without images of its own the validation part is the training part.
    """

    model: Model
    images: Tensor
    labels: Tensor
    validation: tuple[Tensor, Tensor] | None = None
    index: int = 0
    total: int = 1
    steps: int = 1
    val_recall: Tensor | None = None
    generator: torch.Generator = field(init=False)
    asked: list[tuple[str, str]] = field(default_factory=list)
    drawn: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.index)

    @torch.no_grad()
    def features(
        self, drawn: str = "natural", part: str = "train", view: str = "eval"
    ) -> tuple[Tensor, Tensor]:
        self.asked.append((drawn, part))
        images, labels = self.images, self.labels
        if part == "validation" and self.validation is not None:
            images, labels = self.validation
        if drawn == "balanced":
            weight = 1 / labels.bincount()[labels].float()
            rows = torch.multinomial(weight, len(labels), True, generator=self.generator)
            images, labels = images[rows], labels[rows]
        modes = [(m, m.training) for m in self.model.modules()]
        features = self.model.eval().features(images)
        for module, mode in modes:
            module.training = mode
        self.drawn.append((features.clone(), labels))
        return features, labels


@dataclass
class World:
    """A small loop over images whose colour tells their class."""

    counts: list[int]
    batch_size: int = 4
    epochs: int = 2
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        classes = len(self.counts)
        self.colours = torch.randn(classes, 3, 1, 1, generator=generator)
        self.train = self.draw(self.counts, generator)
        self.validation = self.draw([3] * classes, generator)
        self.task = Task(torch.tensor(self.counts), 6)

    def draw(self, counts: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        noise = torch.randn(len(labels), 3, 6, 6, generator=generator)
        return self.colours[labels] + 0.5 * noise, labels

    def start(self, key: str, **settings: Any) -> Iterator[Stage]:
        method: Method = METHODS[key]
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        head = CosineClassifier if method.head == "cosine" else nn.Linear
        self.model = Model(encoder, head(6, len(self.counts)))
        return method.start(self.model, self.task, settings)

    def at(self, index: int = 0) -> FakeEpoch:
        steps = -(-len(self.train[1]) // self.batch_size)
        return FakeEpoch(self.model, *self.train, self.validation, index, self.epochs, steps)

    def batches(self, stage: Stage, weights: list[Tensor | None]) -> Iterator[list[Batch]]:
        images, labels = self.train
        orders = []
        for w in weights:
            assert w is None or (w.isfinite().all() and (w >= 0).all())
            natural = torch.randperm(len(labels))
            orders.append(
                natural if w is None else w.float()[labels].multinomial(len(labels), True)
            )
        for i in range(0, len(labels) if orders else 0, self.batch_size):
            chosen = [order[i : i + self.batch_size] for order in orders]
            yield [
                Batch(
                    {v: images[c] + 0.1 * torch.randn_like(images[c]) for v in stage.views},
                    labels[c],
                )
                for c in chosen
            ]

    def train_epoch(
        self, stage: Stage, optimizer: SGD | None, index: int
    ) -> list[dict[str, float]]:
        torch.manual_seed(100 + index)
        epoch = self.at(index)
        stage.start_epoch(epoch)
        history = []
        for batches in self.batches(stage, stage.class_weights(epoch)):
            assert optimizer is not None
            terms = stage.step(optimizer, *batches)
            history.append({k: v.item() for k, v in terms.items()})
        return history

    def train_stage(self, stage: Stage) -> list[dict[str, float]]:
        optimizer = optimise(stage)
        epochs = stage.epochs or self.epochs
        return [row for e in range(epochs) for row in self.train_epoch(stage, optimizer, e)]

    def to_stage(self, key: str, index: int, **settings: Any) -> Stage:
        for i, stage in enumerate(self.start(key, **settings)):
            if i == index:
                return stage
            self.train_stage(stage)
        raise AssertionError("no such stage")


def optimise(stage: Stage) -> SGD | None:
    """SGD for what the stage trains."""
    groups = prepare(stage)
    return SGD(groups, lr=0.05, momentum=0.9) if groups else None


def state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's state."""
    return copy.deepcopy(module.state_dict())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two states are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def inputs(scores: Tensor = LOGITS) -> tuple[Tensor, Tensor, Tensor]:
    """Scores that want a gradient, labels and counts of the reference numbers."""
    return scores.clone().requires_grad_(), LABELS, COUNTS


def small_model(classes: int = 3, seed: int = 0) -> Model:
    """A convolution with BatchNorm, 16 features and a linear classifier."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    return Model(encoder, nn.Linear(16, classes))


def overlapping(classes: int = 4, dim: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """400 features ``(N, C)`` of classes with shapes of their own that overlap, and labels."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(400) % classes
    mean = torch.randn(classes, dim, generator=g)
    shape = torch.randn(classes, dim, dim, generator=g) * torch.logspace(0.3, -1.2, dim)
    noise = torch.einsum("ncd,nd->nc", shape[labels], torch.randn(400, dim, generator=g))
    return mean[labels] + noise + 3, labels


def fdc_loss(
    features: Tensor, labels: Tensor, gaussians: ClassGaussians, distance: Distance = "mahalanobis"
) -> Tensor:
    """Feature Distribution Consistency, Psi - Phi (LMD paper, Eq. 10-12), of ``(B, C)``."""
    psi, phi = attraction_and_repulsion(features, labels, gaussians, distance)
    return psi - phi


def virtual_sample(
    gaussians: ClassGaussians, per_class: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """All virtual features ``(K R, C)`` and labels ``(K R,)`` as one batch."""
    return next(gaussians.batches(per_class, len(gaussians.mean) * per_class, generator))
