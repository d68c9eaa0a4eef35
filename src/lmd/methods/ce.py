"""Plain cross-entropy: the baseline that every long-tailed method must beat."""

from lmd.methods.method import Method
from lmd.methods.stage import Stages, Task
from lmd.methods.supervised import Supervised, Views
from lmd.model import Model


def ce(model: Model, task: Task, *, views: Views) -> Stages:
    """Mean ``-log p_y`` on the images as they come."""
    yield Supervised(model, **views.model_dump())


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
