"""Vector scaling (VS): logits are shifted by the class prior and scaled by the class size."""

from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from lmd.methods.method import Method
from lmd.methods.settings import NonNegative
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import PerClass, Supervised
from lmd.methods.weighting import log_priors
from lmd.model import Model


def vs_scales(counts: Tensor, gamma: float) -> Tensor:
    """``Δ_k = (n_max / n_k)^γ``, 1 for the largest class; ``(K,) → (K,)``.

    A class without images counts as one image.
    """
    counts = counts.clamp(min=1)
    return (counts.max() / counts) ** gamma


def vs_loss(logits: Tensor, labels: Tensor, counts: Tensor, gamma: float, tau: float) -> Tensor:
    """Cross-entropy of ``z / Δ + τ ln π``; γ = 0 is logit adjustment, γ = τ = 0 cross-entropy.

    Kini et al., Label-imbalanced and group-sensitive classification under overparameterization,
    NeurIPS 2021, Eq. 4; logits ``(B, K)``, labels ``(B,)``, counts ``(K,)``.
    """
    shifted = logits / vs_scales(counts, gamma) + tau * log_priors(counts)
    return F.cross_entropy(shifted, labels)


def vector_scaling(
    model: Model,
    task: Task,
    *,
    gamma: Annotated[NonNegative, "Power of the scale by class size; 0 turns it off."] = 0.3,
    tau: Annotated[NonNegative, "How much of the log prior is added; 0 turns it off."] = 1.0,
) -> Stages:
    """VS loss on the images as they come; γ and τ are the defaults of the authors' code.

    The shipped model has the bare logits: training scales those of small classes up.
    """
    criterion = PerClass(vs_loss, task.class_counts, gamma=gamma, tau=tau)
    yield Supervised(model, criterion, balanced=tau > 0.5)


METHODS = (
    Method(
        "vs_loss",
        "VS loss",
        vector_scaling,
        "Kini et al., Label-imbalanced and group-sensitive classification under "
        "overparameterization, NeurIPS 2021",
        ("VS loss",),
    ),
)
