"""Class-balanced resampling (RS): every class is drawn equally often."""

from typing import Annotated

from lmd.methods.method import Method, Share
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised, Views, image_weights
from lmd.model import Model


def rs(
    model: Model,
    task: Task,
    *,
    q: Annotated[Share, "0 draws images as they come, 1 balances the classes."] = 1.0,
    views: Views,
) -> Stages:
    """Cross-entropy; an image of class k is drawn with weight ``n_k^-q``, with replacement.

    Kang et al., Decoupling representation and classifier for long-tailed recognition, ICLR 2020.
    The images of a tiny class come many times an epoch and differ only by augmentation.
    """
    weights = image_weights(task.class_counts, q)
    yield Supervised(model, weights=weights, balanced=q > 0.5, **views.model_dump())


KANG = "Kang et al., Decoupling representation and classifier, ICLR 2020"


METHODS = (
    Method("rs", "RS", rs, KANG, ("resampling",)),
    Method(
        "rs_strong",
        "RS (strong views)",
        rs,
        KANG,
        ("resampling on strong views",),
        note="A control: RS that sees strong views, whatever the other rows see.",
        preset={"view": "strong"},
    ),
)
