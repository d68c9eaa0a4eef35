"""Class-balanced resampling (RS): every class is drawn equally often."""

from typing import Annotated

from lmd.contract.method import Method
from lmd.contract.settings import Share
from lmd.contract.stage import Stages, Task
from lmd.contract.supervised import Supervised
from lmd.contract.weighting import image_weights
from lmd.model import Model


def rs(
    model: Model,
    task: Task,
    *,
    q: Annotated[Share, "0 draws images as they come, 1 balances the classes."] = 1.0,
) -> Stages:
    """Cross-entropy; an image of class k is drawn with weight ``n_k^-q``, with replacement.

    Kang et al., Decoupling representation and classifier for long-tailed recognition, ICLR 2020.
    The images of a tiny class come many times an epoch and differ only by augmentation.
    """
    yield Supervised(model, weights=image_weights(task.class_counts, q))


METHODS = (
    Method(
        "rs",
        "RS",
        rs,
        "Kang et al., Decoupling representation and classifier, ICLR 2020",
        ("resampling",),
    ),
)
