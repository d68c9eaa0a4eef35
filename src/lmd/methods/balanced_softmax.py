"""Balanced softmax: training sees the class prior, the shipped model does not.

With τ = 1 it is the logit-adjusted loss of Menon et al., so both are one row.
"""

from typing import Annotated, Any

from torch import Tensor
from torch.nn import functional as F

from lmd.methods.method import Method
from lmd.methods.settings import NonNegative, Share
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import PerClass, Supervised, View
from lmd.methods.weighting import log_priors
from lmd.model import Model

PAPER = "Ren et al., Balanced meta-softmax for long-tailed visual recognition, NeurIPS 2020"
MENON = "Menon et al., Long-tail learning via logit adjustment, ICLR 2021"


def balanced_softmax_loss(
    logits: Tensor, labels: Tensor, counts: Tensor, tau: float = 1.0
) -> Tensor:
    """Cross-entropy of ``z + τ ln π``; equal counts or τ = 0 are plain cross-entropy.

    Ren et al., NeurIPS 2020, Eq. 3 (τ = 1; ``ln n`` and ``ln π`` differ by a constant), and Menon
    et al., ICLR 2021, Eq. 10; logits ``(B, K)``, labels ``(B,)``, counts ``(K,)``.
    """
    return F.cross_entropy(logits + tau * log_priors(counts), labels)


def balanced_softmax(
    model: Model,
    task: Task,
    *,
    tau: Annotated[NonNegative, "How much of the log prior is added; 0 is cross-entropy."] = 1.0,
    view: Annotated[View, "Augmentation for the loss; label: that of the protocol."] = "label",
    average: Annotated[Share | None, "Average the weights over this share of the steps."] = None,
) -> Stages:
    """Balanced softmax on the images as they come; τ = 1 in Ren et al., and in Menon et al."""
    criterion = PerClass(balanced_softmax_loss, task.class_counts, tau=tau)
    yield Supervised(model, criterion, balanced=tau > 0.5, view=view, average=average)


def _control(ending: str, words: str, stage: str, **preset: Any) -> Method:
    return Method(
        f"balanced_softmax_{ending}",
        f"Balanced Softmax ({words})",
        balanced_softmax,
        PAPER,
        (f"balanced softmax {stage}",),
        note="A control: what strong views or an averaged model do for Balanced Softmax.",
        preset=preset,
    )


METHODS = (
    Method(
        "balanced_softmax",
        "Balanced Softmax",
        balanced_softmax,
        PAPER,
        ("balanced softmax",),
        note="With tau = 1 this is the logit-adjusted loss of Menon et al., ICLR 2021, too.",
    ),
    _control("strong", "strong views", "on strong views", view="strong"),
    _control("ema", "averaged", "with averaged weights", average=0.1),
    _control(
        *("strong_ema", "strong views, averaged", "on strong views with averaged weights"),
        view="strong",
        average=0.1,
    ),
    _control(
        *("two_views_ema", "two views, averaged", "on two views with averaged weights"),
        view="both",
        average=0.1,
    ),
    # In ``ALSO``: at tau = 1 it would be trained twice.
    Method(
        "logit_adjust",
        "Logit adjustment",
        balanced_softmax,
        MENON,
        ("logit-adjusted loss",),
        note="With tau = 1 it is Balanced Softmax, which is the row of the tables.",
    ),
)
