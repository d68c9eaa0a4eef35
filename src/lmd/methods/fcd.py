"""FCD-style (reconstruction): a flat first stage, and a second that is distilled from it.

Li et al., Flat-Aware Cross-Stage Distilled Framework for Imbalanced Medical Image Classification,
MICCAI 2022. Neither code nor formulas were available: this is built from the paper's title and
from descriptions by others.
"""

import copy
from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from lmd.methods.method import Method, NonNegative, Positive
from lmd.methods.stage import Batch, Stage, Stages, Task, Terms
from lmd.methods.supervised import Retraining, Supervised, image_weights
from lmd.model import Model


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``T² · KL(softmax(teacher/T) ‖ softmax(student/T))``, mean over the batch: 2 × ``(B, K)``.

    Hinton et al., Distilling the Knowledge in a Neural Network, 2015. The teacher has no gradient.
    """
    kl = F.kl_div(
        (student / temperature).log_softmax(1),
        (teacher.detach() / temperature).log_softmax(1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * kl


class Distilled(Stage):
    """The classifier alone on class-balanced images, with the stage-1 classifier as teacher."""

    def __init__(
        self, model: Model, task: Task, distill: float, temperature: float, budget: Retraining
    ) -> None:
        weights = image_weights(task.class_counts)
        super().__init__(model.classifier, **budget.options(weights=weights))
        self.model = model
        # The encoder is frozen, so teacher and student share it.
        self.teacher = copy.deepcopy(model.classifier)
        self.distill, self.temperature = distill, temperature

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Cross-entropy plus ``distill`` times the distillation loss."""
        features = self.model.features(batch.views["label"])
        logits = self.model.classifier(features)
        ce = F.cross_entropy(logits, batch.labels)
        kl = distillation_loss(logits, self.teacher(features), self.temperature)
        return {"loss": ce + self.distill * kl, "ce": ce, "distillation": kl}


def fcd(
    model: Model,
    task: Task,
    *,
    rho: Annotated[NonNegative, "Radius of the sharpness-aware step of stage 1."] = 0.05,
    distill: Annotated[NonNegative, "Weight of the distillation loss in stage 2."] = 0.5,
    temperature: Annotated[Positive, "Temperature of the distillation."] = 2.0,
    budget: Retraining,
) -> Stages:
    """A flat stage 1, then the classifier fine-tuned, class-balanced and distilled.

    ``rho`` is Foret et al.'s, ICLR 2021; ``distill`` and ``temperature`` are ours, and so
    is the budget of stage 2, which equals cRT's (Kang et al., ICLR 2020). Stage 2 keeps the
    classifier of stage 1, to stay in the basin that stage 1 has found.
    """
    yield Supervised(model, rho=rho)
    yield Distilled(model, task, distill, temperature, budget)


METHODS = (
    Method(
        "fcd",
        "FCD-style (reconstruction)",
        fcd,
        "Li et al., MICCAI 2022",
        ("sharpness-aware cross-entropy", "distilled class-balanced classifier"),
        note="FCD-style (reconstruction): no code and no formulas were available, so this follows "
        "the paper's title and others' description of it, with hyper-parameters of our own.",
    ),
)
