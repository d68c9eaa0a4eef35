"""Cross-entropy on images as they come (CE), and on images that are drawn in other ways.

RS draws every class equally often, Balanced-MixUp mixes such images with images as they come, and
flexible sampling draws more images of the classes that the model still gets wrong: Ju et al.,
Flexible Sampling for Long-tailed Skin Lesion Classification, MICCAI 2022. Their published code has
no training loop; what is here is the sampler that the first author published later in the MONICA
benchmark: after each epoch the weight of an image is one over the validation recall of its class.
"""

import math
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from lmd.methods.method import Method, Positive, Settings, Share
from lmd.methods.stage import Batch, Epoch, Stage, Stages, Task, Terms
from lmd.methods.supervised import Retraining, Supervised, Views, image_weights
from lmd.model import Model


def ce(model: Model, task: Task, *, views: Views) -> Stages:
    """Mean ``-log p_y`` on the images as they come."""
    yield Supervised(model, **views.model_dump())


def rs(
    model: Model,
    task: Task,
    *,
    q: Annotated[Share, "0 draws images as they come, 1 balances the classes."] = 1.0,
    views: Views,
) -> Stages:
    """Cross-entropy; an image of class k is drawn with weight ``n_k^-q``, with replacement.

    Kang et al., Decoupling representation and classifier for long-tailed recognition, ICLR 2020.
    The images of a tiny class come many times an epoch and differ only by augmentation.
    """
    weights = image_weights(task.class_counts, q)
    yield Supervised(model, weights=weights, balanced=q > 0.5, **views.model_dump())


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


class Sampler(Settings):
    """How flexible sampling draws images."""

    epsilon: Annotated[Positive, "Added to each recall; small values make draws swing."] = 0.05
    combine_with_inverse_count: Annotated[bool, "Draw classes by difficulty, not size."] = False


def difficulty_weights(recall: Tensor, epsilon: float) -> Tensor:
    """``(1/(recall_k + ε)) / Σ_j 1/(recall_j + ε)``: ``(K,) → (K,)``.

    ε keeps the weight finite at recall 0. A class without validation images (NaN) counts as one of
    average difficulty.
    """
    known = recall[~recall.isnan()]
    middle = float(known.mean()) if len(known) else 1.0
    weights = 1 / (recall.nan_to_num(nan=middle) + epsilon)
    return weights / weights.sum()


def recall_weights(
    epoch: Epoch, sampler: Sampler, counts: Tensor, balance_first: bool = False
) -> Tensor | None:
    """Return weights ``(K,)`` from the validation recall, if there is one yet.

    ``balance_first`` balances the classes with ``counts (K,)`` in the first epoch.
    """
    if balance_first and epoch.index == 0:
        return image_weights(counts)
    if epoch.val_recall is None:
        return None
    weights = difficulty_weights(epoch.val_recall, sampler.epsilon)
    combine = sampler.combine_with_inverse_count
    return weights * image_weights(counts).to(weights) if combine else weights


def fs(model: Model, task: Task, *, sampler: Sampler) -> Stages:
    """Cross-entropy with a sampler that follows the validation recall of each class.

    The weights belong to images, so large classes still dominate by their number, as in MONICA.
    ``epsilon`` is ours: MONICA divides by a recall that may be 0.
    """
    draw = partial(recall_weights, sampler=sampler, counts=task.class_counts)
    yield Supervised(model, draw=draw, balanced=sampler.combine_with_inverse_count)


def fs_crt(model: Model, task: Task, *, sampler: Sampler, budget: Retraining) -> Stages:
    """Cross-entropy, then a fresh classifier alone with the sampler that follows the recall.

    This is how MONICA's configurations use the sampler: on a frozen encoder, with a class-balanced
    first epoch. The budget of stage 2 is that of cRT (Kang et al., ICLR 2020).
    """
    yield Supervised(model)
    model.classifier.reset_parameters()
    draw = partial(recall_weights, sampler=sampler, counts=task.class_counts, balance_first=True)
    options = budget.options(balanced=sampler.combine_with_inverse_count)
    yield Supervised(model, part=model.classifier, draw=draw, **options)


KANG = "Kang et al., Decoupling representation and classifier, ICLR 2020"
GALDRAN = (
    "Galdran et al., Balanced-MixUp for highly imbalanced medical image classification, MICCAI 2021"
)
# Draws by recall leave large classes dominant, so the class mix is nearer to the training part's.
_NOTE = (
    "The difficulty-aware sampler alone, as the first author published it later (MONICA): the "
    "anchors and the curriculum of the paper are unverified and absent. It learns from validation "
    "labels, so validation scores are optimistic."
)
METHODS = (
    Method("ce", "CE", ce, "cross-entropy", ("cross-entropy",)),
    Method(
        "ce_strong",
        "CE (strong views)",
        ce,
        "cross-entropy",
        ("cross-entropy on strong views",),
        note="A control: cross-entropy that sees strong views, whatever the other rows see.",
        preset={"view": "strong"},
    ),
    Method("rs", "RS", rs, KANG, ("resampling",)),
    Method(
        "rs_strong",
        "RS (strong views)",
        rs,
        KANG,
        ("resampling on strong views",),
        note="A control: RS that sees strong views, whatever the other rows see.",
        preset={"view": "strong"},
    ),
    Method("bal_mixup", "Bal-Mixup", balanced_mixup, GALDRAN, ("Balanced-MixUp",)),
    Method(
        "fs",
        "FS",
        fs,
        "Ju et al., MICCAI 2022",
        ("flexible sampling",),
        note=f"{_NOTE} Cross-entropy in one stage is our use of it.",
    ),
    Method(
        "fs_crt",
        "FS (cRT)",
        fs_crt,
        "Ju et al., MICCAI 2022",
        ("cross-entropy", "classifier re-training with flexible sampling"),
        note=f"{_NOTE} It draws for a classifier on a frozen encoder, as in MONICA.",
    ),
)
