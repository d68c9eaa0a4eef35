"""Plain cross-entropy: the baseline that every long-tailed method must beat."""

from lmd.method import Method
from lmd.model import Model
from lmd.stage import Stages, Task
from lmd.supervised import Supervised


def ce(model: Model, task: Task) -> Stages:
    """Mean ``-log p_y`` on the images as they come."""
    yield Supervised(model)


METHODS = (Method("ce", "CE", ce, "cross-entropy", ("cross-entropy",)),)
