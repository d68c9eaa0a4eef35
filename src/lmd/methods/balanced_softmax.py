"""Balanced softmax: training sees the class prior, the shipped model does not."""

from torch import Tensor, nn
from torch.nn import functional as F

from lmd.contract.method import Method
from lmd.contract.stage import Stages, Task
from lmd.contract.supervised import Supervised
from lmd.contract.weighting import log_priors
from lmd.model import Model


def balanced_softmax_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy of ``z + ln n``; equal counts are plain cross-entropy.

    Ren et al., Balanced meta-softmax for long-tailed visual recognition, NeurIPS 2020, Eq. 3;
    logits ``(B, K)``, labels ``(B,)``, counts ``(K,)``.
    """
    return F.cross_entropy(logits + log_priors(counts), labels)


class BalancedSoftmax(nn.Module):
    """Holds the counts ``(K,)`` next to the model."""

    counts: Tensor

    def __init__(self, counts: Tensor) -> None:
        super().__init__()
        self.register_buffer("counts", counts, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The balanced softmax loss: ``(B, K)``, ``(B,)`` → scalar."""
        return balanced_softmax_loss(logits, labels, self.counts)


def balanced_softmax(model: Model, task: Task) -> Stages:
    """Balanced softmax on the images as they come (Ren et al., NeurIPS 2020; no settings)."""
    yield Supervised(model, BalancedSoftmax(task.class_counts))


METHODS = (
    Method(
        "balanced_softmax",
        "Balanced Softmax",
        balanced_softmax,
        "Ren et al., Balanced meta-softmax for long-tailed visual recognition, NeurIPS 2020",
        ("balanced softmax",),
    ),
)
