"""Flexible sampling: draw more images of the classes that the model still gets wrong.

Ju et al., Flexible Sampling for Long-tailed Skin Lesion Classification, MICCAI 2022. Their
published code has no training loop; what is here is the sampler that the first author published
later in the MONICA benchmark: after each epoch the weight of an image is one over the validation
recall of its class.
"""

from functools import partial
from typing import Annotated

from torch import Tensor

from lmd.contract.method import Method
from lmd.contract.settings import Positive
from lmd.contract.stage import Run, Stages, Task
from lmd.contract.supervised import Supervised
from lmd.contract.weighting import image_weights
from lmd.model import Model


def difficulty_weights(recall: Tensor, epsilon: float) -> Tensor:
    """``(1/(recall_k + ε)) / Σ_j 1/(recall_j + ε)``: ``(K,) → (K,)``.

    ε keeps the weight finite at recall 0. A class without validation images (NaN) counts as one of
    average difficulty.
    """
    known = recall[~recall.isnan()]
    middle = float(known.mean()) if len(known) else 1.0
    weights = 1 / (recall.nan_to_num(nan=middle) + epsilon)
    return weights / weights.sum()


def recall_weights(run: Run, epsilon: float, counts: Tensor | None) -> Tensor | None:
    """Weights ``(K,)`` from the validation recall, if there is one yet, over ``counts (K,)``."""
    if run.val_recall is None:
        return None
    weights = difficulty_weights(run.val_recall, epsilon)
    return weights if counts is None else weights * image_weights(counts).to(weights)


def fs(
    model: Model,
    task: Task,
    *,
    epsilon: Annotated[Positive, "Added to each recall; small values make draws swing."] = 0.05,
    combine_with_inverse_count: Annotated[bool, "Draw classes by difficulty, not size."] = False,
) -> Stages:
    """Cross-entropy with a sampler that follows the validation recall of each class.

    The weights belong to images, so large classes still dominate by their number, as in MONICA.
    ``epsilon`` is ours: MONICA divides by a recall that may be 0.
    """
    counts = task.class_counts if combine_with_inverse_count else None
    yield Supervised(model, draw=partial(recall_weights, epsilon=epsilon, counts=counts))


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
