"""The contract between a method and the training loop.

A method is a generator of stages. The loop trains each stage that it yields; the code after the
``yield`` runs when that stage is trained. A stage keeps all its state in parameters, buffers and
sub-modules, so that ``state_dict()`` is a complete checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lmd.base.distributed import average_gradients, world

Terms = Mapping[str, Tensor]
Schedule = Literal["constant", "cosine"]
ParameterGroups = Sequence[nn.Parameter] | Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """All that a method may know about the data: ``class_counts (K,)`` and ``feature_dim``."""

    class_counts: Tensor
    feature_dim: int


@dataclass(frozen=True)
class Rate:
    """A learning rate for batches of ``batch`` images; other sizes scale it in proportion.

    Goyal et al., Accurate, Large Minibatch SGD, 2017.
    """

    value: float
    batch: int

    def at(self, batch: int) -> float:
        """The learning rate for batches of this size.

        >>> Rate(0.2, 512).at(128)
        0.05
        """
        return self.value * batch / self.batch


class Options(TypedDict, total=False):
    """How ``Stage`` trains; a subclass passes them on as ``**options``."""

    weights: Tensor | None
    weight_decay: float | None
    epochs: int | None
    lr: Rate | None
    schedule: Schedule | None
    balanced: bool | None


@dataclass(frozen=True)
class Batch:
    """``views[name] (B, 3, H, W)`` for each of ``Stage.views``, and ``labels (B,)``.

    If several processes share a batch, each has a slice of the views, but all labels and all
    encoder features. A stage that combines images before the encoder cannot run that way.
    """

    views: Mapping[str, Tensor]
    labels: Tensor
    labels_before: Tensor | None = None  # they were moved to the device

    @property
    def host_labels(self) -> Tensor:
        """The labels on the CPU: reading these does not wait for the device."""
        return self.labels.cpu() if self.labels_before is None else self.labels_before


class Epoch(Protocol):
    """What the loop lends a stage for one epoch.

    ``index`` counts the epochs of the stage from 0 to ``total - 1``, ``steps`` the batches in one,
    ``generator`` (CPU) has its own seed for every stage and epoch, and ``val_recall (K,)`` is the
    validation recall of each class after the previous epoch (``None`` at the start of training or
    without a validation part).
    """

    index: int
    total: int
    steps: int
    generator: torch.Generator
    val_recall: Tensor | None

    def features(
        self,
        drawn: Literal["natural", "balanced"] = "natural",
        part: Literal["train", "validation"] = "train",
        view: Literal["eval", "weak", "strong"] = "eval",
    ) -> tuple[Tensor, Tensor]:
        """Features ``(N, C)`` and labels ``(N,)`` of one view of each image, without gradient.

        ``natural`` takes every image once; ``balanced`` draws N times with replacement, each class
        with probability 1/K.
        """
        ...


class Stage(nn.Module):
    """One stage of training: subclass once, never twice.

    ``views`` names the views of an image that the stage uses: ``label`` is the one that the
    protocol has for label losses, ``weak``, ``strong`` and ``eval`` are always those. A stage
    without views trains nothing and works in ``start_epoch``. ``part`` is what is trained (default:
    all), ``weights (K,)`` how images are drawn (default: each once). ``epochs``, ``lr``,
    ``schedule`` and ``weight_decay`` are the stage's own budget: where they are set, they replace
    the protocol's. ``balanced`` says that training balances the classes, so that the probabilities
    assume equally frequent ones; by default a stage with ``weights`` does. A stage whose steps
    update no weights has ``updates = False``: its learning rate is not recorded. One that has
    ``needs_validation`` cannot do without validation images. ``name`` is for progress and history.
    """

    views: tuple[str, ...] = ("label",)
    updates: ClassVar[bool] = True
    epochs: int | None = None
    lr: Rate | None = None
    schedule: Schedule | None = None
    weight_decay: float | None = None
    balanced: bool = False
    needs_validation: bool = False
    weights: Tensor | None
    # ``with self.clock("teacher"):`` books the time inside; the loop puts its own clock here.
    clock: Callable[[str], AbstractContextManager[Any]] = nullcontext

    def __init__(self, part: nn.Module | None = None, **options: Unpack[Options]) -> None:
        super().__init__()
        self.part, self.name = part, type(self).__name__
        self.register_buffer("weights", options.pop("weights", None), persistent=False)
        # A class may have values of its own, which only a given value replaces.
        defaults = {} if self.weights is None else {"balanced": True}
        values = {name: value for name, value in options.items() if value is not None}
        vars(self).update(defaults | values)

    def trainable(self) -> ParameterGroups:
        """Parameters, or groups of them with their own ``lr``; empty: the loop trains nothing."""
        if not self.views:
            return []
        parameters = list((self if self.part is None else self.part).parameters())
        if self.weight_decay is None:
            return parameters
        return [{"params": parameters, "weight_decay": self.weight_decay}]

    def class_weights(self, epoch: Epoch) -> list[Tensor | None]:
        """One entry for each data stream.

        ``None`` draws the images as they come, each once. A ``(K,)`` vector draws N images with
        replacement, an image of class k with weight ``w[k]``, so ``1 / counts`` balances the
        classes. An empty list: no batches this epoch.
        """
        return [self.weights] if self.views else []

    def start_epoch(self, epoch: Epoch) -> Mapping[str, float] | None:
        """Called before the batches of an epoch; returned numbers go into the history."""

    def chosen(self) -> Mapping[str, float]:
        """Values that the stage chose on validation; if there is one, they go into the record."""
        return {}

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Named terms from one batch of each stream; ``"loss"`` is minimised."""
        raise NotImplementedError

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss; processes that share a batch get the mean of theirs."""
        loss.backward()
        if world() > 1:
            average_gradients(self.parameters())

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update. Overridden only where one backward pass is not enough."""
        optimizer.zero_grad(set_to_none=True)
        terms = self.loss(*batches)
        with self.clock("backward and update"):
            self.backward(terms["loss"])
            optimizer.step()
        return terms


Stages = Iterator[Stage]


def prepare(stage: Stage) -> ParameterGroups:
    """Freeze all but what is trainable, and return that.

    A sub-module without trained parameters is put into ``eval`` mode: otherwise the BatchNorm
    statistics of a frozen encoder would still change.
    """
    groups = stage.trainable()
    trained = {id(p) for g in groups for p in (g["params"] if isinstance(g, dict) else [g])}
    for parameter in stage.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    stage.train()
    for module in stage.modules():
        parameters = list(module.parameters())
        if parameters and not any(id(p) in trained for p in parameters):
            module.eval()
    return groups
