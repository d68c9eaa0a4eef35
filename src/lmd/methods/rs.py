"""Class-balanced resampling (RS): every class is drawn equally often."""

from typing import Annotated

from lmd.methods.method import Method
from lmd.methods.settings import Share
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised, View
from lmd.methods.weighting import image_weights
from lmd.model import Model


def rs(
    model: Model,
    task: Task,
    *,
    q: Annotated[Share, "0 draws images as they come, 1 balances the classes."] = 1.0,
    view: Annotated[View, "Augmentation for the loss; label: that of the protocol."] = "label",
    average: Annotated[Share | None, "Average the weights over this share of the steps."] = None,
) -> Stages:
    """Cross-entropy; an image of class k is drawn with weight ``n_k^-q``, with replacement.

    Kang et al., Decoupling representation and classifier for long-tailed recognition, ICLR 2020.
    The images of a tiny class come many times an epoch and differ only by augmentation.
    """
    weights = image_weights(task.class_counts, q)
    yield Supervised(model, weights=weights, balanced=q > 0.5, view=view, average=average)


PAPER = "Kang et al., Decoupling representation and classifier, ICLR 2020"
METHODS = (
    Method("rs", "RS", rs, PAPER, ("resampling",)),
    Method(
        "rs_strong",
        "RS (strong views)",
        rs,
        PAPER,
        ("resampling on strong views",),
        note="A control: RS that sees strong views, whatever the other rows see.",
        preset={"view": "strong"},
    ),
)
