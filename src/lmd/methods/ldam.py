"""LDAM: margins that grow as classes shrink, with resampling or deferred re-weighting."""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmd.methods.method import BelowOne, Method, NonNegative, Positive, Share
from lmd.methods.stage import Batch, Epoch, Stage, Stages, Task, Terms
from lmd.methods.supervised import balances_by, class_balanced_weights, cosine_classifier
from lmd.model import Model

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
        task: Task,
        rule: Rule,
        max_margin: float,
        scale: float,
        beta: float,
        defer: float,
    ) -> None:
        # The margins alone do not balance: it takes weights, from the first epoch or later.
        super().__init__(balanced=(rule == "rs" or defer < 1) and balances_by(beta))
        self.model, self.classifier = model, cosine_classifier(model, scale)
        self.scale, self.rule, self.defer = scale, rule, defer
        balance = class_balanced_weights(task.class_counts, beta)
        margins = ldam_margins(task.class_counts, max_margin)
        self.register_buffer("margins", margins, persistent=False)
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
    yield LDAM(model, task, rule, max_margin, scale, beta, defer)


CAO = (
    "Cao et al., Learning imbalanced datasets with label-distribution-aware margin loss, "
    "NeurIPS 2019"
)


METHODS = (
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
    Method("ldam_drw", "LDAM-DRW", ldam, CAO, ("LDAM",), head="cosine", preset={"rule": "drw"}),
)
