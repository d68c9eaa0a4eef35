"""Losses that weigh images or shift logits: focal loss, CB-Focal, LDAM and Seesaw.

Focal loss counts images that are classified well already less. Class-balanced focal loss (CB-Focal)
has one sigmoid per class, weighted by effective number. LDAM has margins that grow as classes
shrink. Seesaw softens the push of frequent classes on rare ones, and hardens it where they err.
"""

import math
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.methods.method import BelowOne, Method, NonNegative, Positive, Share
from lmd.methods.stage import Batch, Epoch, Stage, Stages, Task, Terms
from lmd.methods.supervised import (
    PerClass,
    Supervised,
    balances_by,
    class_balanced_weights,
    cosine_classifier,
)
from lmd.model import Model


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Mean of ``-(1 - p_y)^γ ln p_y`` with ``p = softmax(logits)``; γ = 0 is cross-entropy.

    Lin et al., Focal loss for dense object detection, ICCV 2017, Eq. 4, for exclusive classes;
    logits ``(B, K)``, labels ``(B,)``.
    """
    log_p = torch.log_softmax(logits, dim=1)
    true = labels[:, None]
    # ln(1 - p_y) from the other classes: 1 - p_y may round to 0, where 0^γ has an infinite slope
    # for γ < 1.
    log_rest = log_p.scatter(1, true, -torch.inf).logsumexp(dim=1)
    return -((gamma * log_rest).exp() * log_p.gather(1, true).squeeze(1)).mean()


def sigmoid_focal_loss(logits: Tensor, labels: Tensor, weights: Tensor, gamma: float) -> Tensor:
    """``(1/B) Σ_i w_{y_i} Σ_k (1 - σ(t_ik))^γ · -ln σ(t_ik)``; t is +z for the true class, else -z.

    Cui et al., Class-balanced loss based on effective number of samples, CVPR 2019, Eq. 5 and 9;
    logits ``(B, K)``, labels ``(B,)``, weights ``(K,)``. The sum is over B, not over B·K.
    """
    true = F.one_hot(labels, logits.shape[1]).bool()
    t = torch.where(true, logits, -logits)
    # -ln σ(t) = softplus(-t) and ln(1 - σ(t)) = -softplus(t): finite for every logit.
    focal = torch.exp(-gamma * F.softplus(t)) * F.softplus(-t)
    return (weights[labels] * focal.sum(dim=1)).mean()


class ClassBalancedFocal(Stage):
    """Trains all of the model; the bias of the classifier starts at ``-ln(K-1)``, undecayed."""

    def __init__(self, model: Model, criterion: nn.Module, *, balanced: bool) -> None:
        super().__init__(balanced=balanced)
        self.model, self.criterion = model, criterion
        assert isinstance(model.classifier, nn.Linear), "the row asks for the linear head"
        self.bias = model.classifier.bias
        # Every sigmoid starts at 1/K; at 1/2 the K - 1 negatives would swamp the first epochs.
        nn.init.constant_(self.bias, -math.log(max(len(self.bias) - 1, 1)))

    def trainable(self) -> list[dict[str, Any]]:
        """All parameters; the bias of the classifier in a group without weight decay."""
        rest = [p for p in self.model.parameters() if p is not self.bias]
        return [{"params": rest}, {"params": [self.bias], "weight_decay": 0.0}]

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Weighted sigmoid focal loss on the label view."""
        return {"loss": self.criterion(self.model(batch.views["label"]), batch.labels)}


Gamma = Annotated[NonNegative, "How strongly well-classified images are down-weighted."]


def focal(model: Model, task: Task, *, gamma: Gamma = 2.0) -> Stages:
    """Focal loss on the images as they come, without class weights.

    γ = 2 is the value Lin et al. recommend (Section 5.1); Cao et al. (NeurIPS 2019) use 1.
    """
    yield Supervised(model, partial(focal_loss, gamma=gamma))


def cb_focal(
    model: Model,
    task: Task,
    *,
    beta: Annotated[BelowOne, "β of the effective number; 0 weighs all classes alike."] = 0.9999,
    gamma: Gamma = 1.0,
) -> Stages:
    """Class-balanced focal loss on the images as they come; β and γ as in the authors' script.

    With fewer than about 1000 images per class β = 0.9999 smooths nothing (the weights are 1/n);
    ``1 - 1/n_max`` does. The shipped softmax is what the sigmoids imply for exclusive classes: if
    exactly one of K independent events with probabilities ``σ(z_k)`` happens, it is the k-th with
    probability ``∝ σ(z_k) / (1 - σ(z_k)) = exp(z_k)``. Like every re-weighted loss it is not
    calibrated.
    """
    weights = class_balanced_weights(task.class_counts, beta)
    criterion = PerClass(sigmoid_focal_loss, weights, gamma=gamma)
    yield ClassBalancedFocal(model, criterion, balanced=balances_by(beta))


Rule = Literal["rs", "drs", "drw"]


def ldam_margins(counts: Tensor, max_margin: float) -> Tensor:
    """``max_margin · (n_min / n_k)^¼``: the rarest class has the largest margin; ``(K,) → (K,)``.

    Cao et al., NeurIPS 2019, Eq. 13. A class without images has the margin of the rarest.
    """
    rarest = torch.where(counts > 0, counts, counts.max()).min()
    return max_margin * (rarest / torch.maximum(counts, rarest)) ** 0.25


def ldam_loss(
    cosine: Tensor, labels: Tensor, margins: Tensor, scale: float, weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy of ``scale · (cosine - margin_y at y)``; ``weight`` makes a weighted mean.

    Cao et al., NeurIPS 2019, Eq. 10 and 12; cosine ``(B, K)``, labels ``(B,)``, margins and weight
    ``(K,)``. The weighted mean is ``Σ w_y l / Σ w_y``.
    """
    margin = F.one_hot(labels, cosine.shape[1]) * margins[labels][:, None]
    return F.cross_entropy(scale * (cosine - margin), labels, weight=weight)


def deferred(epoch: int, epochs: int, fraction: float) -> bool:
    """Return whether the second phase of deferred re-weighting has begun, in epoch 0, 1, …

    Cao et al., NeurIPS 2019, Algorithm 1: with fraction 0.8 it begins at epoch 160 of 200. A run
    of any length has a second phase unless the fraction is 1.
    """
    # The small number keeps products such as 0.29 * 100 from falling one epoch short.
    return epoch >= math.floor(fraction * epochs + 1e-9)


class LDAM(Stage):
    """LDAM with one of three rules; each balances the classes exactly once.

    ``rs`` draws images by effective number from the first epoch, ``drs`` after a share ``defer`` of
    the epochs; ``drw`` draws them as they come and weights the loss after ``defer``.
    """

    margins: Tensor
    balance: Tensor
    weight: Tensor

    def __init__(
        self,
        model: Model,
        counts: Tensor,
        margin: float,
        beta: float,
        *,
        scale: float,
        rule: Rule,
        defer: float,
    ) -> None:
        # The margins alone do not balance: it takes weights, from the first epoch or later.
        super().__init__(balanced=(rule == "rs" or defer < 1) and balances_by(beta))
        self.model, self.classifier = model, cosine_classifier(model, scale)
        self.scale, self.rule, self.defer = scale, rule, defer
        balance = class_balanced_weights(counts, beta)
        self.register_buffer("margins", ldam_margins(counts, margin), persistent=False)
        self.register_buffer("balance", balance, persistent=False)
        self.register_buffer("weight", torch.ones_like(balance))

    def class_weights(self, epoch: Epoch) -> list[Tensor | None]:
        """One stream: by effective number where the rule resamples in this epoch."""
        late = deferred(epoch.index, epoch.total, self.defer)
        resample = self.rule == "rs" or (self.rule == "drs" and late)
        return [self.balance if resample else None]

    def start_epoch(self, epoch: Epoch) -> None:
        """Switch the class weights of the loss on where re-weighting was deferred to here."""
        reweight = self.rule == "drw" and deferred(epoch.index, epoch.total, self.defer)
        self.weight.copy_(self.balance if reweight else torch.ones_like(self.balance))

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """LDAM loss on the cosines of the label view."""
        cosine = self.classifier.cosine(self.model.features(batch.views["label"]))
        loss = ldam_loss(cosine, batch.labels, self.margins, self.scale, self.weight)
        return {"loss": loss}


def ldam(
    model: Model,
    task: Task,
    *,
    rule: Annotated[Rule, "Resample, resample late, or re-weight late."] = "rs",
    max_margin: Annotated[NonNegative, "Margin of the rarest class, as a cosine."] = 0.5,
    scale: Annotated[Positive, "Scale of the cosine classifier, which ships."] = 30.0,
    beta: Annotated[BelowOne, "β of the effective number; 0 weighs all classes alike."] = 0.9999,
    defer: Annotated[Share, "Share of the epochs before drs and drw balance the classes."] = 0.8,
) -> Stages:
    """LDAM loss (Cao et al., NeurIPS 2019) with the authors' values.

    No rule both resamples and re-weights: that would count the imbalance twice.
    """
    counts = task.class_counts
    yield LDAM(model, counts, max_margin, beta, scale=scale, rule=rule, defer=defer)


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


CAO = (
    "Cao et al., Learning imbalanced datasets with label-distribution-aware margin loss, "
    "NeurIPS 2019"
)
WANG = "Wang et al., Seesaw loss for long-tailed instance segmentation, CVPR 2021"
METHODS = (
    Method(
        "focal",
        "Focal",
        focal,
        "Lin et al., Focal loss for dense object detection, ICCV 2017",
        ("focal loss",),
    ),
    Method(
        "cb_focal",
        "CB-Focal",
        cb_focal,
        "Cui et al., Class-balanced loss based on effective number of samples, CVPR 2019",
        ("class-balanced focal loss",),
    ),
    Method(
        "ldam_rs",
        "LDAM-RS",
        ldam,
        CAO,
        ("LDAM",),
        head="cosine",
        note="Resampling by effective number from the first epoch; rule=drw defers re-weighting.",
        preset={"rule": "rs"},
    ),
    Method(
        "ldam_drw",
        "LDAM-DRW",
        ldam,
        CAO,
        ("LDAM",),
        head="cosine",
        preset={"rule": "drw"},
    ),
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
