"""Flexible sampling: draw more images of the classes that the model still gets wrong.

Ju et al., Flexible Sampling for Long-tailed Skin Lesion Classification, MICCAI 2022. Their
published code has no training loop; what is here is the sampler that the first author published
later in the MONICA benchmark: after each epoch the weight of an image is one over the validation
recall of its class.
"""

from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from lmd.contract.method import Method
from lmd.contract.settings import Positive
from lmd.contract.stage import Batch, Run, Stage, Stages, Task, Terms
from lmd.contract.weighting import image_weights
from lmd.model import Model


def difficulty_weights(recall: Tensor, epsilon: float) -> Tensor:
    """``(1/(recall_k + ε)) / Σ_j 1/(recall_j + ε)``: ``(K,) → (K,)``.

    ε keeps a class of recall 0 finite. A class without validation images (NaN) counts as one of
    average difficulty.
    """
    known = recall[~recall.isnan()]
    middle = float(known.mean()) if len(known) else 1.0
    weights = 1 / (recall.nan_to_num(nan=middle) + epsilon)
    return weights / weights.sum()


class FlexibleSampling(Stage):
    """Cross-entropy on the weak view of images drawn by the difficulty of their class."""

    inverse_counts: Tensor

    def __init__(
        self, model: Model, task: Task, *, epsilon: float, combine_with_inverse_count: bool
    ) -> None:
        super().__init__()
        self.model, self.epsilon = model, epsilon
        self.combine_with_inverse_count = combine_with_inverse_count
        self.register_buffer("inverse_counts", image_weights(task.class_counts), persistent=False)

    def class_weights(self, run: Run) -> list[Tensor | None]:
        """By validation recall; as the images come while there is none."""
        if run.val_recall is None:
            return [None]
        weights = difficulty_weights(run.val_recall, self.epsilon)
        if self.combine_with_inverse_count:
            weights = weights * self.inverse_counts.to(weights)
        return [weights]

    def loss(self, *batches: Batch) -> Terms:
        """Cross-entropy."""
        (batch,) = batches
        return {"loss": F.cross_entropy(self.model(batch.views["weak"]), batch.labels)}


def fs(
    model: Model,
    task: Task,
    *,
    epsilon: Annotated[
        Positive, "Added to each recall; the smaller, the more the sampler swings."
    ] = 0.05,
    combine_with_inverse_count: Annotated[
        bool, "Draw classes by their difficulty alone, not by their size."
    ] = False,
) -> Stages:
    """Cross-entropy with a sampler that follows the validation recall of each class.

    The weights belong to images, so large classes still dominate by their number, as in MONICA;
    ``combine_with_inverse_count`` divides by it, so that a class is drawn by its difficulty alone.
    ``epsilon`` is ours: MONICA divides by a recall that may be 0. The smaller it is, the more the
    sampler swings from epoch to epoch, towards whatever class was missed last.
    """
    yield FlexibleSampling(
        model, task, epsilon=epsilon, combine_with_inverse_count=combine_with_inverse_count
    )


METHODS = (
    Method(
        "fs",
        "FS",
        fs,
        "Ju et al., MICCAI 2022",
        ("flexible sampling",),
        note="The difficulty-aware sampler alone, as the first author published it later (MONICA): "
        "the anchors and the curriculum of the paper are unverified and absent. It learns from "
        "validation labels, so validation scores are optimistic.",
    ),
)
