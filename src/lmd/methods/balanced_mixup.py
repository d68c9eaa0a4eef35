"""Balanced-MixUp: images as they come, mixed with class-balanced ones."""

import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from lmd.methods.method import Method, Positive
from lmd.methods.stage import Batch, Epoch, Stage, Stages, Task, Terms
from lmd.methods.supervised import image_weights
from lmd.model import Model


def mix(instance: Tensor, balanced: Tensor, share: float) -> Tensor:
    """``(1 - share) · instance + share · balanced``: λ is the share of the *balanced* batch.

    Galdran et al., MICCAI 2021, Eq. 3; both of one shape.
    """
    return (1 - share) * instance + share * balanced


def mixed_cross_entropy(
    logits: Tensor, instance_labels: Tensor, balanced_labels: Tensor, share: float
) -> Tensor:
    """Cross-entropy against one-hot labels mixed as the images were: ``(B, K)``, 2 × ``(B,)``."""
    instance = F.cross_entropy(logits, instance_labels)
    return mix(instance, F.cross_entropy(logits, balanced_labels), share)


def draw_share(alpha: float, generator: torch.Generator | None = None) -> float:
    """One λ ~ Beta(α, 1), with mean ``α / (1 + α)``; its distribution function is ``λ^α``."""
    return math.pow(float(torch.rand((), generator=generator)), 1 / alpha)


class BalancedMixup(Stage):
    """Two streams: images as they come, and classes drawn alike; one λ for each batch."""

    def __init__(self, model: Model, weights: Tensor, alpha: float) -> None:
        super().__init__(weights=weights, balanced=False)
        self.model, self.alpha = model, alpha
        self.generator: torch.Generator | None = None

    def class_weights(self, epoch: Epoch) -> list[Tensor | None]:
        """The instance stream, then the class-balanced stream."""
        return [None, self.weights]

    def start_epoch(self, epoch: Epoch) -> None:
        """Take the generator that the loop seeds for this epoch."""
        self.generator = epoch.generator

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Soft cross-entropy on mixed images; both batches are cut to the shorter one."""
        instance, (balanced,) = batch, others
        size = min(len(instance.labels), len(balanced.labels))
        share = draw_share(self.alpha, self.generator)
        images = mix(instance.views["label"][:size], balanced.views["label"][:size], share)
        labels = instance.labels[:size], balanced.labels[:size]
        return {"loss": mixed_cross_entropy(self.model(images), *labels, share)}


def balanced_mixup(
    model: Model,
    task: Task,
    *,
    alpha: Annotated[Positive, "Draws the share of the balanced image from Beta(α, 1)."] = 0.1,
) -> Stages:
    """Balanced-MixUp; of α = 0.1, 0.2, 0.3 in Galdran et al., MICCAI 2021, their example's 0.1."""
    yield BalancedMixup(model, image_weights(task.class_counts), alpha)


GALDRAN = (
    "Galdran et al., Balanced-MixUp for highly imbalanced medical image classification, MICCAI 2021"
)


METHODS = (Method("bal_mixup", "Bal-Mixup", balanced_mixup, GALDRAN, ("Balanced-MixUp",)),)
