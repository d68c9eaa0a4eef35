"""Plain cross-entropy: the baseline that every long-tailed method must beat."""

from lmd.contract.method import Method
from lmd.contract.stage import Stages, Task
from lmd.contract.supervised import Supervised
from lmd.model import Model


def ce(model: Model, task: Task) -> Stages:
    """Mean ``-log p_y`` on the images as they come."""
    yield Supervised(model)


METHODS = (Method("ce", "CE", ce, "cross-entropy", ("cross-entropy",), prior="training"),)
