"""Balanced softmax: training sees the class prior, the shipped model does not."""

from torch import Tensor
from torch.nn import functional as F

from lmd.contract.method import Method
from lmd.contract.stage import Stages, Task
from lmd.contract.supervised import PerClass, Supervised
from lmd.contract.weighting import log_priors
from lmd.model import Model


def balanced_softmax_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy of ``z + ln n``; equal counts are plain cross-entropy.

    Ren et al., Balanced meta-softmax for long-tailed visual recognition, NeurIPS 2020, Eq. 3;
    logits ``(B, K)``, labels ``(B,)``, counts ``(K,)``.
    """
    return F.cross_entropy(logits + log_priors(counts), labels)


def balanced_softmax(model: Model, task: Task) -> Stages:
    """Balanced softmax on the images as they come (Ren et al., NeurIPS 2020; no settings)."""
    yield Supervised(model, PerClass(balanced_softmax_loss, task.class_counts))


METHODS = (
    Method(
        "balanced_softmax",
        "Balanced Softmax",
        balanced_softmax,
        "Ren et al., Balanced meta-softmax for long-tailed visual recognition, NeurIPS 2020",
        ("balanced softmax",),
    ),
)
