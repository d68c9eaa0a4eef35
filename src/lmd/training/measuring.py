"""Timings of the loop, and a context in which a model is in evaluation mode."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn


@dataclass
class Timings:
    """Seconds spent, by activity."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Add the time inside the context to ``what``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(what, time.perf_counter() - start)

    def add(self, what: str, seconds: float) -> None:
        """Add seconds to ``what``."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended, in seconds."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context; the mode of every sub-module is restored afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode
