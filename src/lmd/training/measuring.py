"""Small tools of the loop: where the time goes, and a model in evaluation mode for a while."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn


@dataclass
class Timings:
    """Seconds spent by what was done."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Count the time inside for ``what``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(what, time.perf_counter() - start)

    def add(self, what: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every sub-module's own mode is put back afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode
