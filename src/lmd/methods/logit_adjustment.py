"""Post-hoc logit adjustment: the class prior is taken out of the logits after training."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.optim import Optimizer

from lmd.methods.method import Method
from lmd.methods.settings import Candidates
from lmd.methods.stage import Epoch, Stage, Stages, Task
from lmd.methods.supervised import Supervised
from lmd.methods.weighting import log_priors
from lmd.model import Model
from lmd.scoring.metrics import mean_recall

PAPER = "Menon et al., Long-tail learning via logit adjustment, ICLR 2021"
GRID = tuple(step / 10 for step in range(0, 26))


def adjust_logits(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """``z - τ ln π`` after training (Menon et al., ICLR 2021, Eq. 9): ``(B, K) → (B, K)``."""
    return logits - tau * log_priors(counts)


def choose_tau(logits: Tensor, labels: Tensor, counts: Tensor, grid: Sequence[float]) -> float:
    """The τ of the grid with the best mean recall; of equals, the one nearest to 1.

    Theory asks for τ = 1 if the probabilities are exact; so it is also the answer without images.
    """
    if len(labels) == 0:
        return min(grid, key=lambda tau: abs(tau - 1))
    given = {tau: adjust_logits(logits, counts, tau).argmax(1).numpy(force=True) for tau in grid}
    true = labels.numpy(force=True)
    return max(grid, key=lambda tau: (mean_recall(true, given[tau]), -abs(tau - 1)))


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
    def start_epoch(self, epoch: Epoch, optimizer: Optimizer | None) -> Mapping[str, float] | None:
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


METHODS = (
    Method(
        "logit_adjust_posthoc",
        "Logit adjustment (post-hoc)",
        logit_adjust_posthoc,
        PAPER,
        ("cross-entropy", "logit adjustment"),
        note="τ is chosen on the validation part, so its validation results are optimistic.",
    ),
)
