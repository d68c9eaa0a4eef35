"""Losses and logits that know the class prior: balanced softmax, vector scaling, post-hoc.

Training sees the prior, the shipped model does not; post-hoc, it is taken out after training.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmd.methods.linear import MENON, REN, log_priors
from lmd.methods.method import Candidates, Method, NonNegative
from lmd.methods.stage import Epoch, Stage, Stages, Task
from lmd.methods.supervised import PerClass, Supervised, Views, balanced_softmax_loss
from lmd.model import Model
from lmd.scoring.metrics import mean_recall

GRID = tuple(step / 10 for step in range(0, 26))


def balanced_softmax(
    model: Model,
    task: Task,
    *,
    tau: Annotated[NonNegative, "How much of the log prior is added; 0 is cross-entropy."] = 1.0,
    views: Views,
) -> Stages:
    """Balanced softmax on the images as they come; τ = 1 in Ren et al., and in Menon et al."""
    criterion = PerClass(balanced_softmax_loss, task.class_counts, tau=tau)
    yield Supervised(model, criterion, balanced=tau > 0.5, **views.model_dump())


def vs_loss(logits: Tensor, labels: Tensor, counts: Tensor, gamma: float, tau: float) -> Tensor:
    """Cross-entropy of ``z / Δ + τ ln π`` with ``Δ_k = (n_max / n_k)^γ``.

    γ = 0 is logit adjustment, γ = τ = 0 cross-entropy; a class without images counts as one image.
    Kini et al., Label-imbalanced and group-sensitive classification under overparameterization,
    NeurIPS 2021, Eq. 4; logits ``(B, K)``, labels ``(B,)``, counts ``(K,)``.
    """
    counts = counts.clamp(min=1)
    scales = (counts.max() / counts) ** gamma
    return F.cross_entropy(logits / scales + tau * log_priors(counts), labels)


def vector_scaling(
    model: Model,
    task: Task,
    *,
    gamma: Annotated[NonNegative, "Power of the scale by class size; 0 turns it off."] = 0.3,
    tau: Annotated[NonNegative, "How much of the log prior is added; 0 turns it off."] = 1.0,
) -> Stages:
    """VS loss on the images as they come; γ and τ are the defaults of the authors' code.

    The shipped model has the bare logits: training scales the logits of small classes up.
    """
    criterion = PerClass(vs_loss, task.class_counts, gamma=gamma, tau=tau)
    yield Supervised(model, criterion, balanced=tau > 0.5)


def adjust_logits(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """``z - τ ln π`` after training (Menon et al., ICLR 2021, Eq. 9): ``(B, K) → (B, K)``."""
    return logits - tau * log_priors(counts)


def choose_tau(logits: Tensor, labels: Tensor, counts: Tensor, grid: Sequence[float]) -> float:
    """Return the τ of the grid with the best mean recall; of equals, the one nearest to 1.

    Theory asks for τ = 1 if the probabilities are exact; so it is also the answer without images.
    """
    true, recalls = labels.numpy(force=True), dict.fromkeys(grid, 0.0)
    if len(labels):
        for tau in grid:
            predicted = adjust_logits(logits, counts, tau).argmax(1)
            recalls[tau] = mean_recall(true, predicted.numpy(force=True))
    return max(grid, key=lambda tau: (recalls[tau], -abs(tau - 1)))


class PosthocAdjustment(Stage):
    """Chooses τ on the validation part and writes ``-τ ln π`` into the bias; trains nothing."""

    views = ()
    epochs = 1
    balanced = True
    counts: Tensor
    tau: Tensor

    def __init__(self, model: Model, counts: Tensor, grid: Sequence[float]) -> None:
        super().__init__()
        self.model, self.grid = model, tuple(grid)
        self.register_buffer("counts", counts, persistent=False)
        # The τ that is already in the bias, so that a second call does not subtract it again.
        self.register_buffer("tau", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def start_epoch(self, epoch: Epoch) -> Mapping[str, float]:
        """Choose τ (1 without a validation part) and adjust the bias of the classifier."""
        bias = self.model.classifier.bias
        assert isinstance(bias, Tensor), "the linear head has a bias"
        bias += self.tau * log_priors(self.counts)
        features, labels = epoch.features(part="validation")
        logits = self.model.classifier(features.to(bias))
        tau = choose_tau(logits, labels.to(bias.device), self.counts, self.grid)
        bias -= tau * log_priors(self.counts)
        self.tau.fill_(tau)
        return {"tau": tau}

    def chosen(self) -> Mapping[str, float]:
        """τ."""
        return {"tau": float(self.tau)}


def logit_adjust_posthoc(
    model: Model,
    task: Task,
    *,
    grid: Annotated[Candidates, "Values of tau that are tried on the validation part."] = GRID,
) -> Stages:
    """Cross-entropy, then ``z - τ ln π`` with τ from ``grid``, chosen by mean recall.

    Menon et al., ICLR 2021, Section 4.2, tune τ on held-out data. The choice uses the validation
    part, so the validation results of this method are optimistic.
    """
    yield Supervised(model)
    yield PosthocAdjustment(model, task.class_counts, grid)


def _control(ending: str, detail: str, stage: str, **preset: Any) -> Method:
    return Method(
        f"balanced_softmax_{ending}",
        f"Balanced Softmax ({detail})",
        balanced_softmax,
        REN,
        (f"balanced softmax {stage}",),
        note="A control: what strong views or an averaged model do for Balanced Softmax.",
        preset=preset,
    )


_TITLES = "on strong views with averaged weights", "on two views with averaged weights"
METHODS = (
    Method(
        "balanced_softmax",
        "Balanced Softmax",
        balanced_softmax,
        REN,
        ("balanced softmax",),
        note="With tau = 1 this is the logit-adjusted loss of Menon et al., ICLR 2021, too.",
    ),
    _control("strong", "strong views", "on strong views", view="strong"),
    _control("ema", "averaged", "with averaged weights", average=0.1),
    _control("strong_ema", "strong views, averaged", _TITLES[0], view="strong", average=0.1),
    _control("two_views_ema", "two views, averaged", _TITLES[1], view="both", average=0.1),
    # In ``ALSO``: at tau = 1 it would be trained twice.
    Method(
        "logit_adjust",
        "Logit adjustment",
        balanced_softmax,
        MENON,
        ("logit-adjusted loss",),
        note="With tau = 1 it is Balanced Softmax, which is the row of the tables.",
    ),
    Method(
        "logit_adjust_posthoc",
        "Logit adjustment (post-hoc)",
        logit_adjust_posthoc,
        MENON,
        ("cross-entropy", "logit adjustment"),
        note="τ is chosen on the validation part, so its validation results are optimistic.",
    ),
    Method(
        "vs_loss",
        "VS loss",
        vector_scaling,
        "Kini et al., Label-imbalanced and group-sensitive classification under "
        "overparameterization, NeurIPS 2021",
        ("VS loss",),
    ),
)
