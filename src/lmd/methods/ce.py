"""Plain cross-entropy: the baseline that every long-tailed method must beat."""

from typing import Annotated

from lmd.methods.method import Method
from lmd.methods.settings import Share
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised, View
from lmd.model import Model


def ce(
    model: Model,
    task: Task,
    *,
    view: Annotated[View, "Augmentation for the loss; label: that of the protocol."] = "label",
    average: Annotated[Share | None, "Average the weights over this share of the steps."] = None,
) -> Stages:
    """Mean ``-log p_y`` on the images as they come."""
    yield Supervised(model, view=view, average=average)


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
)
