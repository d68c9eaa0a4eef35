"""Flexible sampling: draw more images of the classes that the model still gets wrong.

Ju et al., Flexible Sampling for Long-tailed Skin Lesion Classification, MICCAI 2022. Their
published code has no training loop; what is here is the sampler that the first author published
later in the MONICA benchmark: after each epoch the weight of an image is one over the validation
recall of its class.
"""

from functools import partial
from typing import Annotated

from torch import Tensor

from lmd.methods.method import Method, Positive, Settings
from lmd.methods.stage import Epoch, Stages, Task
from lmd.methods.supervised import Retraining, Supervised, image_weights
from lmd.model import Model


class Sampler(Settings):
    """How flexible sampling draws images."""

    epsilon: Annotated[Positive, "Added to each recall; small values make draws swing."] = 0.05
    combine_with_inverse_count: Annotated[bool, "Draw classes by difficulty, not size."] = False


def difficulty_weights(recall: Tensor, epsilon: float) -> Tensor:
    """``(1/(recall_k + ε)) / Σ_j 1/(recall_j + ε)``: ``(K,) → (K,)``.

    ε keeps the weight finite at recall 0. A class without validation images (NaN) counts as one of
    average difficulty.
    """
    known = recall[~recall.isnan()]
    middle = float(known.mean()) if len(known) else 1.0
    weights = 1 / (recall.nan_to_num(nan=middle) + epsilon)
    return weights / weights.sum()


def recall_weights(
    epoch: Epoch, sampler: Sampler, counts: Tensor, balance_first: bool = False
) -> Tensor | None:
    """Return weights ``(K,)`` from the validation recall, if there is one yet.

    ``balance_first`` balances the classes with ``counts (K,)`` in the first epoch.
    """
    if balance_first and epoch.index == 0:
        return image_weights(counts)
    if epoch.val_recall is None:
        return None
    weights = difficulty_weights(epoch.val_recall, sampler.epsilon)
    combine = sampler.combine_with_inverse_count
    return weights * image_weights(counts).to(weights) if combine else weights


def fs(model: Model, task: Task, *, sampler: Sampler) -> Stages:
    """Cross-entropy with a sampler that follows the validation recall of each class.

    The weights belong to images, so large classes still dominate by their number, as in MONICA.
    ``epsilon`` is ours: MONICA divides by a recall that may be 0.
    """
    draw = partial(recall_weights, sampler=sampler, counts=task.class_counts)
    yield Supervised(model, draw=draw, balanced=sampler.combine_with_inverse_count)


def fs_crt(model: Model, task: Task, *, sampler: Sampler, budget: Retraining) -> Stages:
    """Cross-entropy, then a fresh classifier alone with the sampler that follows the recall.

    This is how MONICA's configurations use the sampler: on a frozen encoder, with a class-balanced
    first epoch. Stage 2 has the budget of cRT (Kang et al., ICLR 2020).
    """
    yield Supervised(model)
    model.classifier.reset_parameters()
    draw = partial(recall_weights, sampler=sampler, counts=task.class_counts, balance_first=True)
    options = budget.options(balanced=sampler.combine_with_inverse_count)
    yield Supervised(model, part=model.classifier, draw=draw, **options)


# Draws by recall leave large classes dominant, so the class mix is nearer to the training part's.
_NOTE = (
    "The difficulty-aware sampler alone, as the first author published it later (MONICA): the "
    "anchors and the curriculum of the paper are unverified and absent. It learns from validation "
    "labels, so validation scores are optimistic."
)


METHODS = (
    Method(
        "fs",
        "FS",
        fs,
        "Ju et al., MICCAI 2022",
        ("flexible sampling",),
        note=f"{_NOTE} Cross-entropy in one stage is our use of it.",
    ),
    Method(
        "fs_crt",
        "FS (cRT)",
        fs_crt,
        "Ju et al., MICCAI 2022",
        ("cross-entropy", "classifier re-training with flexible sampling"),
        note=f"{_NOTE} It draws for a classifier on a frozen encoder, as in MONICA.",
    ),
)
