"""Seesaw loss: softens the push of frequent classes on rare ones, hardens it where they err."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.methods.method import Method, NonNegative, Positive
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised, cosine_classifier
from lmd.model import Model


def seesaw_loss(
    logits: Tensor, labels: Tensor, counts: Tensor, p: float, q: float, *, floor: float = 0.01
) -> Tensor:
    """Cross-entropy of ``z_k + ln(M_yk · C_yk)``; p = q = 0 is cross-entropy.

    Wang et al., Seesaw loss for long-tailed instance segmentation, CVPR 2021, Eq. 3-6; logits
    ``(B, K)``, labels ``(B,)``, counts ``(K,)``. Mitigation ``M = min(1, n_k / n_y)^p``,
    compensation ``C = max(1, σ_k / max(σ_y, floor))^q`` without gradient.
    """
    true = labels[:, None]
    log_counts = counts.clamp(min=1).log()
    mitigation = p * (log_counts - log_counts[labels][:, None]).clamp(max=0)
    log_scores = torch.log_softmax(logits.detach(), dim=1)
    own = log_scores.gather(1, true).clamp(min=math.log(floor))
    compensation = q * (log_scores - own).clamp(min=0)
    # Both terms are 0 at k = y, so the true logit is left alone without a mask.
    return F.cross_entropy(logits + mitigation + compensation, labels)


class Seesaw(nn.Module):
    """Counts the labels it is trained on, in a buffer, so that a resumed run has them."""

    counts: Tensor

    def __init__(self, classes: int, p: float, q: float) -> None:
        super().__init__()
        self.p, self.q = p, q
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.long))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Count the batch, then the loss: ``(B, K)``, ``(B,)`` → scalar."""
        if self.training:
            # Not bincount or one_hot, which wait for the device.
            classes = torch.arange(len(self.counts), device=labels.device)
            self.counts += (labels[:, None] == classes).sum(0)
        return seesaw_loss(logits, labels, self.counts, self.p, self.q)


def seesaw(
    model: Model,
    task: Task,
    *,
    p: Annotated[NonNegative, "Power of the mitigation by class size; 0 turns it off."] = 0.8,
    q: Annotated[NonNegative, "Power of the compensation of mistakes; 0 turns it off."] = 2.0,
    temperature: Annotated[
        Positive | None, "Scale of a normalised head; null: 30. A linear head has none."
    ] = None,
) -> Stages:
    """Seesaw loss with online counts; p and q as in Wang et al., CVPR 2021, Section 4.

    Images are drawn as they come: with class-balanced batches the mitigation would vanish. Its
    configurations in MMDetection have a normalised head of temperature 20 (``seesaw_norm``).
    """
    if temperature is not None:
        remedy = "leave 'temperature' out, or use method 'seesaw_norm'"
        cosine_classifier(model, temperature, remedy)
    yield Supervised(model, Seesaw(len(task.class_counts), p, q), balanced=True)


WANG = "Wang et al., Seesaw loss for long-tailed instance segmentation, CVPR 2021"


METHODS = (
    Method(
        "seesaw",
        "Seesaw",
        seesaw,
        WANG,
        ("seesaw loss",),
        note="With a linear head; its authors' configurations for LVIS normalise it (seesaw_norm).",
    ),
    Method(
        "seesaw_norm",
        "Seesaw (normalised head)",
        seesaw,
        WANG,
        ("seesaw loss on cosines",),
        head="cosine",
        preset={"temperature": 20.0},
    ),
)
