"""Reports a run to experiment trackers, each in a thread of its own: training never waits."""

import importlib.util
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from lmd.base.errors import LmdError
from lmd.runfolder.record import HistoryRow, Record
from lmd.runs.trackers import TRACKERS, Tracker, final_numbers, numbers_of

PATIENCE = 120.0  # seconds at the end of a run for what a tracker has not written yet
HURRY = 5.0  # the same after an error or an interruption


def checked_trackers(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of trackers, known and installed; an ``LmdError`` before anything is trained."""
    names = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))
    for name in names:
        if name not in TRACKERS:
            raise LmdError(f"--log: there is no {name!r}; choose from {', '.join(TRACKERS)}")
        if importlib.util.find_spec(TRACKERS[name][1]) is None:
            raise LmdError(
                f"--log {name} needs a package that is not installed: run pip install 'lmd[{name}]'"
            )
    return names


@dataclass
class Tracking:
    """The trackers of one run; ``say`` is told once about each that fails.

    ``known`` is the number of epochs that a run has when it is resumed: they were reported before.
    """

    names: Sequence[str]
    run: Path
    record: Record
    say: Callable[[str], None]
    known: int = 0
    _threads: list["_Thread"] = field(default_factory=list)
    _numbers: dict[str, float] | None = None

    def __enter__(self) -> "Tracking":
        for name in self.names:
            self._threads.append(_Thread(name, self.run, self.record, self.known, self.say))
        return self

    def epochs(self, history: Sequence[HistoryRow]) -> None:
        """Report the rows that are new; other runs may have trained the first ones."""
        for step, row in enumerate(history[self.known :], start=self.known + 1):
            report = partial(_report, step=step, numbers=numbers_of(row))
            for thread in self._threads:
                thread.put(report)
        self.known = max(self.known, len(history))

    def finish(self, record: Record) -> None:
        """The run is finished: its numbers are reported when this context ends."""
        self._numbers = final_numbers(record)

    def __exit__(self, kind: object, *_: object) -> None:
        limit = time.monotonic() + (PATIENCE if kind is None else HURRY)
        for thread in self._threads:
            thread.put(lambda tracker: tracker.end(self._numbers))
            thread.put(None)
        for thread in self._threads:
            thread.end(limit)


Work = Callable[[Tracker], Any]


def _report(tracker: Tracker, step: int, numbers: dict[str, float]) -> None:
    tracker.epoch(step, numbers)


class _Thread:
    """Starts a tracker and hands it what comes in; after a failure nothing more is handed over."""

    def __init__(
        self, name: str, run: Path, record: Record, known: int, say: Callable[[str], None]
    ) -> None:
        self._name, self._say = name, say
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._go, args=(run, record, known), daemon=True)
        self._thread.start()

    def put(self, work: Work | None) -> None:
        """Hand over without waiting; ``None`` is the end."""
        self._work.put(work)

    def end(self, limit: float) -> None:
        """Wait for the end, until ``limit``."""
        self._thread.join(max(0.0, limit - time.monotonic()))
        if self._thread.is_alive():
            self._fail("it takes too long to write")

    def _go(self, run: Path, record: Record, known: int) -> None:
        try:
            tracker = TRACKERS[self._name][0](run, record, known)
            while (work := self._work.get()) is not None:
                work(tracker)
        except Exception as error:  # the packages raise many kinds
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            said = escape(" ".join(why.split())[:300])
            self._say(f"  --log {self._name} failed ({said}): the run goes on without it")
