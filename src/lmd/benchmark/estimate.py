"""When a benchmark will be done: from finished runs, and from how far the others are."""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean

from lmd.benchmark.plan import Plan, PlannedRun
from lmd.benchmark.state import Progress


class Clock:
    """Seconds of every run that was timed, by name."""

    def __init__(self, plan: Plan, seconds: Mapping[str, float]) -> None:
        self._method = {run.name: run.method for run in plan.runs}
        self._seconds = dict(seconds)
        self._begun: dict[str, tuple[float, int | None]] = {}

    def start(self, name: str) -> None:
        """A run begins now."""
        self._begun[name] = (time.monotonic(), None)

    def end(self, name: str, *, finished: bool) -> float:
        """A run ended now; how many seconds it took.

        It counts for the estimate if it is finished and had begun from nothing.
        """
        since, first = self._begun.pop(name)
        took = time.monotonic() - since
        if finished and not first:
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
        """Seconds until all is done; ``None`` while nothing is known yet."""
        left, lengths = [], []
        for name, at in running.items():
            since, first = self._begun[name]
            if first is None:
                # Epochs of an earlier session took none of this session's time.
                first = at.done
                self._begun[name] = (since, first)
            elapsed, done = time.monotonic() - since, at.done - first
            if done > 0:
                left.append(elapsed / done * (at.total - at.done))
                lengths.append(elapsed / done * at.total)
            else:
                whole = self.expected(self._method[name])
                if whole is None:
                    return None
                left.append(max(0.0, whole * (1 - at.done / max(at.total, 1)) - elapsed))
        for run in waiting:
            whole = self.expected(run.method)
            if whole is None and not lengths:
                return None
            left.append(fmean(lengths) if whole is None else whole)
        return max([sum(left) / max(slots, 1), *left], default=0.0)
