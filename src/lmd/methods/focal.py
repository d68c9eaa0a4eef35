"""Focal loss in its softmax form: images that are classified well already count less."""

from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from lmd.methods.method import Method, NonNegative
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised
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


def focal(
    model: Model,
    task: Task,
    *,
    gamma: Annotated[NonNegative, "How strongly well-classified images are down-weighted."] = 2.0,
) -> Stages:
    """Focal loss on the images as they come, without class weights.

    γ = 2 is the value Lin et al. recommend (Section 5.1); Cao et al. (NeurIPS 2019) use 1.
    """
    yield Supervised(model, partial(focal_loss, gamma=gamma))


METHODS = (
    Method(
        "focal",
        "Focal",
        focal,
        "Lin et al., Focal loss for dense object detection, ICCV 2017",
        ("focal loss",),
    ),
)
