"""The contract between a method and the training loop.

A method is a generator of stages. The loop trains each stage that is yielded; what follows the
``yield`` in the method happens after that. A stage keeps all of its state in parameters, buffers
and sub-modules, so that ``state_dict()`` is a complete checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Terms = Mapping[str, Tensor]
ParameterGroups = Sequence[nn.Parameter] | Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """All that a method may know about the data: ``class_counts (K,)`` and ``feature_dim``."""

    class_counts: Tensor
    feature_dim: int


@dataclass(frozen=True)
class Batch:
    """``views[name] (B, 3, H, W)`` for each name in ``Stage.views``, and ``labels (B,)``.

    Where several processes share a batch, the views are this process's slice of it. The encoder's
    features, like the labels, are those of the whole batch in every process. A stage that takes
    images of a batch together in front of the encoder is refused there.
    """

    views: Mapping[str, Tensor]
    labels: Tensor


class Run(Protocol):
    """What the loop lends to a stage for one epoch.

    ``epoch`` of ``epochs`` counts from 0, ``steps`` is the number of batches in an epoch,
    ``generator`` (CPU) is seeded anew for every stage and epoch, and ``val_recall (K,)`` holds the
    recall of each class on the validation part after the epoch before (``None`` at the start of
    training or without a validation part).
    """

    epoch: int
    epochs: int
    steps: int
    generator: torch.Generator
    val_recall: Tensor | None

    def features(
        self,
        drawn: Literal["natural", "balanced"] = "natural",
        part: Literal["train", "validation"] = "train",
    ) -> tuple[Tensor, Tensor]:
        """Features ``(N, C)`` and labels ``(N,)`` of the evaluation view, without gradient.

        ``natural`` takes every image once; ``balanced`` draws N times with replacement, each class
        with probability 1/K.
        """
        ...


class Stage(nn.Module):
    """One stage of training: subclass once, never twice.

    ``views`` names what the stage wants to see of an image (``weak``, ``strong`` or ``eval``).
    ``epochs`` is ``None`` where the protocol decides.
    """

    views: ClassVar[tuple[str, ...]] = ("weak",)
    epochs: int | None = None
    # ``with self.clock("teacher"):`` books the time inside; the loop puts its own clock here.
    clock: Callable[[str], AbstractContextManager[Any]] = nullcontext

    def trainable(self) -> ParameterGroups:
        """Parameters, or groups of them with their own ``lr``; empty: the loop trains nothing."""
        return list(self.parameters())

    def class_weights(self, run: Run) -> list[Tensor | None]:
        """One entry for each data stream.

        ``None`` draws the images as they come, each once. A ``(K,)`` vector draws N images with
        replacement, an image of class k with weight ``w[k]``, so ``1 / counts`` balances the
        classes. An empty list: no batches this epoch.
        """
        return [None]

    def start_epoch(self, run: Run, optimizer: Optimizer | None) -> Mapping[str, float] | None:
        """Runs before the batches of an epoch; numbers returned go into the history."""

    def chosen(self) -> Mapping[str, float]:
        """Values that the stage chose for itself; they go into the record."""
        return {}

    def loss(self, *batches: Batch) -> Terms:
        """Named terms from one batch of each stream; ``"loss"`` is minimised."""
        raise NotImplementedError

    def forward(self, *batches: Batch) -> Terms:
        """Is ``loss``; wrappers that need a ``forward`` go through here."""
        return self.loss(*batches)

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update. Overridden only where one backward pass is not enough."""
        optimizer.zero_grad(set_to_none=True)
        terms: Terms = self(*batches)
        with self.clock("backward and update"):
            terms["loss"].backward()
            optimizer.step()
        return terms


Stages = Iterator[Stage]


def prepare(stage: Stage) -> ParameterGroups:
    """Free what is trainable, freeze the rest, and return what is trainable.

    A sub-module of which no parameter is trained is put into ``eval`` mode: a frozen encoder would
    otherwise still drift through its BatchNorm statistics.
    """
    groups = stage.trainable()
    trained = {id(p) for group in groups for p in _parameters(group)}
    for parameter in stage.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    stage.train()
    for module in stage.modules():
        parameters = list(module.parameters())
        if parameters and not any(id(p) in trained for p in parameters):
            module.eval()
    return groups


def _parameters(group: nn.Parameter | dict[str, Any]) -> list[nn.Parameter]:
    return list(group["params"]) if isinstance(group, dict) else [group]
