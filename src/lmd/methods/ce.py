"""Cross-entropy: the baseline that every long-tailed method must beat, and with resampling (RS)."""

from typing import Annotated

from lmd.methods.method import Method, Share
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Average, LossView, Supervised, image_weights
from lmd.model import Model


def ce(model: Model, task: Task, *, view: LossView = "label", average: Average = None) -> Stages:
    """Mean ``-log p_y`` on the images as they come."""
    yield Supervised(model, view=view, average=average)


def rs(
    model: Model,
    task: Task,
    *,
    q: Annotated[Share, "0 draws images as they come, 1 balances the classes."] = 1.0,
    view: LossView = "label",
    average: Average = None,
) -> Stages:
    """Cross-entropy; an image of class k is drawn with weight ``n_k^-q``, with replacement.

    Kang et al., Decoupling representation and classifier for long-tailed recognition, ICLR 2020.
    The images of a tiny class come many times an epoch and differ only by augmentation.
    """
    weights = image_weights(task.class_counts, q)
    yield Supervised(model, weights=weights, balanced=q > 0.5, view=view, average=average)


KANG = "Kang et al., Decoupling representation and classifier, ICLR 2020"
METHODS = (
    Method("ce", "CE", ce, "cross-entropy", ("cross-entropy",)),
    Method(
        "ce_strong",
        "CE (strong views)",
        ce,
        "cross-entropy",
        ("cross-entropy on strong views",),
        note="A control: cross-entropy that sees strong views, whatever the other rows see.",
        preset={"view": "strong"},
    ),
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
