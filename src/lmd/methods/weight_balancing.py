"""CB+WD+Max: weight decay balances the classes' weights, MaxNorm keeps them balanced.

Alshammari et al., Long-Tailed Recognition via Weight Balancing, CVPR 2022. Stage 1 is
cross-entropy with a strong weight decay; stage 2 trains the classifier alone with a class-balanced
loss, weight decay and a MaxNorm constraint.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lmd.contract.method import Method
from lmd.contract.settings import BelowOne, NonNegative, Share
from lmd.contract.stage import Batch, ParameterGroups, Run, Stage, Stages, Task, Terms
from lmd.contract.weighting import class_balanced_weights
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


class Decayed(Stage):
    """Cross-entropy on all parameters with a weight decay of its own."""

    def __init__(self, model: Model, *, weight_decay: float) -> None:
        super().__init__()
        self.model, self.weight_decay = model, weight_decay

    def trainable(self) -> ParameterGroups:
        """The whole model as one group."""
        return [{"params": list(self.model.parameters()), "weight_decay": self.weight_decay}]

    def loss(self, *batches: Batch) -> Terms:
        """Cross-entropy."""
        (batch,) = batches
        return {"loss": F.cross_entropy(self.model(batch.views["weak"]), batch.labels)}


class MaxNorm(Stage):
    """The classifier alone: class-balanced loss, weight decay, rows projected after each epoch.

    The radius is fixed once, by the classifier that the stage starts from; the bias is free.
    """

    radius: Tensor
    class_weight: Tensor
    left: Tensor

    def __init__(
        self,
        model: Model,
        class_weight: Tensor,
        *,
        weight_decay: float,
        threshold: float,
        cb_loss: str,
    ) -> None:
        super().__init__()
        self.model, self.weight_decay, self.cb_loss = model, weight_decay, cb_loss
        weight = model.classifier.weight.detach()
        self.register_buffer("radius", max_norm_radius(weight, threshold))
        self.register_buffer("class_weight", class_weight, persistent=False)
        self.register_buffer("left", torch.tensor(0))

    def trainable(self) -> ParameterGroups:
        """The classifier as one group."""
        classifier: nn.Module = self.model.classifier
        return [{"params": list(classifier.parameters()), "weight_decay": self.weight_decay}]

    def start_epoch(self, run: Run, optimizer: Optimizer | None) -> Mapping[str, float]:
        """Count the steps down from here; the radius goes into the history."""
        self.left.fill_(run.steps)
        return {"radius": float(self.radius)}

    def loss(self, *batches: Batch) -> Terms:
        """The class-balanced loss."""
        (batch,) = batches
        logits = self.model(batch.views["weak"])
        if self.cb_loss == "softmax_bce":
            return {"loss": softmax_bce_loss(logits, batch.labels, self.class_weight)}
        return {"loss": F.cross_entropy(logits, batch.labels, self.class_weight)}

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update; the last one of an epoch ends with the projection, before validation."""
        terms = super().step(optimizer, *batches)
        self.left -= 1
        if self.left == 0:
            with torch.no_grad():
                weight = self.model.classifier.weight
                weight.copy_(max_norm(weight, self.radius))
        return terms


def cb_wd_max(
    model: Model,
    task: Task,
    *,
    stage1_weight_decay: Annotated[NonNegative, "Weight decay of stage 1."] = 5e-3,
    stage2_weight_decay: Annotated[NonNegative, "Weight decay of the classifier in stage 2."] = 0.1,
    beta: Annotated[BelowOne, "β of the effective number; 0 weighs all classes alike."] = 0.9999,
    threshold: Annotated[
        Share, "MaxNorm radius, from the shortest (0) to the longest (1) row."
    ] = 0.1,
    cb_loss: Annotated[
        Literal["softmax_bce", "cross_entropy"], "Class-balanced loss of stage 2."
    ] = "softmax_bce",
) -> Stages:
    """Strong weight decay, then a class-balanced loss and MaxNorm on the classifier alone.

    The values are those of the authors' CIFAR-100-LT code, where the weight decays were searched:
    search them anew on your validation part. ``cb_loss`` is the loss their stage 2 runs, with
    which its weight decay was found; ``cross_entropy`` is the class-balanced softmax loss of Cui et
    al. Their test-time flips are left out.
    """
    yield Decayed(model, weight_decay=stage1_weight_decay)
    yield MaxNorm(
        model,
        class_balanced_weights(task.class_counts, beta),
        weight_decay=stage2_weight_decay,
        threshold=threshold,
        cb_loss=cb_loss,
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
