"""CB+WD+Max: weight decay balances the classes' weights, MaxNorm keeps them balanced.

Alshammari et al., Long-Tailed Recognition via Weight Balancing, CVPR 2022. Stage 1 is
cross-entropy with a strong weight decay; stage 2 trains the classifier alone with a class-balanced
loss, weight decay and a MaxNorm constraint.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lmd.methods.method import BelowOne, Method, NonNegative, RateFor64, Share, Stage2Epochs
from lmd.methods.stage import Batch, Epoch, Options, Rate, Stage, Stages, Task, Terms
from lmd.methods.supervised import PerClass, Supervised, balances_by, class_balanced_weights
from lmd.model import Model


def max_norm_radius(weight: Tensor, threshold: float) -> Tensor:
    """``min_k ‖w_k‖ + threshold · (max_k ‖w_k‖ − min_k ‖w_k‖)``: ``(K, C) → ()``."""
    norms: Tensor = weight.norm(dim=1)
    return torch.lerp(norms.min(), norms.max(), threshold)


def max_norm(weight: Tensor, radius: Tensor) -> Tensor:
    """Rows longer than the radius are scaled onto it (projected gradient): ``(K, C) → (K, C)``."""
    norm = weight.norm(dim=1, keepdim=True)
    return torch.where(norm > radius, weight * (radius / norm), weight)


def softmax_bce_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Binary cross-entropy on softmax probabilities, weighted by the true class, over B·K entries.

    What the authors' code calls the class-balanced softmax loss: it is not weighted cross-entropy.
    ``(B, K)``, ``(B,)``, ``(K,)``.
    """
    log_p = logits.log_softmax(1)
    own = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
    # log(1 − p_k) as a sum over the other classes stays exact where p_k rounds to 1.
    log_not_p = log_p[:, None, :].masked_fill(own, -torch.inf).logsumexp(2)
    target = F.one_hot(labels, logits.shape[1]).bool()
    entries = -torch.where(target, log_p, log_not_p)
    return (weight[labels, None] * entries).mean()


class MaxNorm(Stage):
    """The classifier alone: class-balanced loss, weight decay, rows projected after each epoch.

    The radius is fixed once, by the classifier that the stage starts from; the bias is free.
    """

    radius: Tensor
    left: Tensor

    def __init__(
        self, model: Model, criterion: nn.Module, threshold: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(model.classifier, **options)
        self.model, self.criterion = model, criterion
        weight = model.classifier.weight.detach()
        self.register_buffer("radius", max_norm_radius(weight, threshold))
        self.register_buffer("left", torch.tensor(0))

    def start_epoch(self, epoch: Epoch) -> Mapping[str, float]:
        """Count the steps down from here; the radius goes into the history."""
        self.left.fill_(epoch.steps)
        return {"radius": float(self.radius)}

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """The class-balanced loss."""
        return {"loss": self.criterion(self.model(batch.views["label"]), batch.labels)}

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update; the last one of an epoch ends with the projection, before validation."""
        terms = super().step(optimizer, *batches)
        self.left -= 1
        with torch.no_grad():
            weight = self.model.classifier.weight
            # Not an "if": it would wait for the device in every step.
            weight.copy_(torch.where(self.left == 0, max_norm(weight, self.radius), weight))
        return terms


def cb_wd_max(
    model: Model,
    task: Task,
    *,
    stage1_weight_decay: Annotated[NonNegative, "Weight decay of stage 1."] = 5e-3,
    stage2_weight_decay: Annotated[NonNegative, "Weight decay of the classifier in stage 2."] = 0.1,
    beta: Annotated[BelowOne, "β of the effective number; 0 weighs all classes alike."] = 0.9999,
    threshold: Annotated[Share, "MaxNorm radius: the shortest (0) to the longest (1) row."] = 0.1,
    cb_loss: Annotated[
        Literal["softmax_bce", "cross_entropy"],
        "Loss of stage 2; cross_entropy is a weighted mean, Σ w l / Σ w of a batch.",
    ] = "softmax_bce",
    classifier_epochs: Stage2Epochs = 10,
    classifier_lr: RateFor64 = 0.01,
) -> Stages:
    """Strong weight decay, then a class-balanced loss and MaxNorm on the classifier alone.

    The values come from the authors' CIFAR-100-LT code. They searched the weight decays, so
    search them again on your validation part. ``softmax_bce`` is the loss that their stage 2 runs;
    ``cross_entropy`` is the class-balanced softmax loss of Cui et al., but for its mean: it divides
    by the sum of the weights in a batch, theirs by the number of images. The authors' test-time
    flips are left out.
    """
    yield Supervised(model, weight_decay=stage1_weight_decay)
    loss = softmax_bce_loss if cb_loss == "softmax_bce" else F.cross_entropy
    criterion = PerClass(loss, class_balanced_weights(task.class_counts, beta))
    yield MaxNorm(
        model,
        criterion,
        threshold,
        weight_decay=stage2_weight_decay,
        epochs=classifier_epochs,
        lr=Rate(classifier_lr, 64),
        balanced=balances_by(beta),
    )


METHODS = (
    Method(
        "cb_wd_max",
        "CB+WD+Max",
        cb_wd_max,
        "Alshammari et al., CVPR 2022",
        ("cross-entropy with weight decay", "class-balanced MaxNorm"),
        note="Its weight decays are the authors' for CIFAR-100-LT, not searched on this data.",
    ),
)
