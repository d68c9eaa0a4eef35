"""How long a benchmark still takes, from finished runs and from the progress of the others."""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean

from lmd.benchmark.plan import Plan, PlannedRun
from lmd.benchmark.state import Progress


class Clock:
    """Times runs by name; ``seconds`` holds those of earlier sessions."""

    def __init__(self, plan: Plan, seconds: Mapping[str, float]) -> None:
        self._method = {run.name: run.method for run in plan.runs}
        self._seconds = dict(seconds)
        self._begun: dict[str, float] = {}
        self._first: dict[str, int] = {}  # epochs that an earlier session had already trained

    def start(self, name: str) -> None:
        """Note that a run starts now."""
        self._begun[name] = time.monotonic()

    def end(self, name: str, *, finished: bool) -> float:
        """Note that a run ends now, and return its seconds.

        Only a finished run that this session started from scratch counts for the estimate.
        """
        took = time.monotonic() - self._begun.pop(name)
        if not self._first.pop(name, 0) and finished:
            self._seconds[name] = took
        return took

    def expected(self, method: str) -> float | None:
        """The mean of this method's finished runs, or of all; ``None`` before the first."""
        own = [s for name, s in self._seconds.items() if self._method[name] == method]
        every = list(self._seconds.values())
        return fmean(own or every) if every else None

    def remaining(
        self, waiting: Sequence[PlannedRun], running: Mapping[str, Progress], slots: int
    ) -> float | None:
        """Seconds until all runs are done; ``None`` without any run to estimate from."""
        left, lengths = [], []
        for name, at in running.items():
            first = self._first.setdefault(name, at.done)
            elapsed, whole = time.monotonic() - self._begun[name], self.expected(self._method[name])
            if at.done > first:
                epoch = elapsed / (at.done - first)
                left.append(epoch * (at.total - at.done))
                lengths.append(epoch * at.total)
            elif whole is None:
                return None
            else:
                left.append(max(0.0, whole * (1 - at.done / max(at.total, 1)) - elapsed))
        for run in waiting:
            whole = self.expected(run.method)
            if whole is None and not lengths:
                return None
            left.append(fmean(lengths) if whole is None else whole)
        return max([sum(left) / max(slots, 1), *left], default=0.0)
