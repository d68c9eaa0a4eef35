"""Class-balanced focal loss (CB-Focal): one sigmoid per class, weighted by effective number."""

import math
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.methods.method import BelowOne, Method, NonNegative
from lmd.methods.stage import Batch, Stage, Stages, Task, Terms
from lmd.methods.supervised import PerClass, balances_by, class_balanced_weights
from lmd.model import Model


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


def cb_focal(
    model: Model,
    task: Task,
    *,
    beta: Annotated[BelowOne, "β of the effective number; 0 weighs all classes alike."] = 0.9999,
    gamma: Annotated[NonNegative, "How strongly well-classified images are down-weighted."] = 1.0,
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


METHODS = (
    Method(
        "cb_focal",
        "CB-Focal",
        cb_focal,
        "Cui et al., Class-balanced loss based on effective number of samples, CVPR 2019",
        ("class-balanced focal loss",),
    ),
)
