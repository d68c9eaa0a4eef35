"""How far a benchmark is and how long it will take, as a live board or as lines; no torch."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmd.benchmark.plan import Plan, PlannedRun
from lmd.runs.folder import Run

EVERY = 30.0  # seconds between two lines without a terminal


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``done`` of ``total`` epochs, and stage and epoch as text."""

    done: int
    total: int
    where: str


def progress(run: PlannedRun, folder: Path) -> Progress:
    """Read stage and epoch from a run's ``history.csv``."""
    total = sum(run.epochs)
    rows = Run(folder / run.name).read_history()
    if not rows:
        return Progress(0, total, "starting")
    stage, epoch = (int(rows[-1][key] or 0) for key in ("stage", "epoch"))
    most = run.epochs[stage - 1] if stage <= len(run.epochs) else epoch
    where = f"stage {stage}, epoch {epoch}/{max(most, epoch)}"
    return Progress(min(len(rows), total), total, where)


class Watch:
    """Follows runs, and reads a history only when it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[int, Progress]] = {}

    def progress(self, run: PlannedRun) -> Progress:
        """Return how far a run is."""
        path = Run(self._folder / run.name).history_path
        changed = path.stat().st_mtime_ns if path.exists() else 0
        if run.name not in self._read or self._read[run.name][0] != changed:
            self._read[run.name] = changed, progress(run, self._folder)
        return self._read[run.name][1]


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
        """Return the mean of this method's finished runs, or of all; ``None`` without any."""
        same = [s for name, s in self._seconds.items() if self._method[name] == method]
        every = list(self._seconds.values())
        return fmean(same or every) if every else None

    def remaining(
        self, waiting: Sequence[PlannedRun], running: Mapping[str, Progress], slots: int
    ) -> float | None:
        """Return seconds until all runs are done; ``None`` without any run to estimate from."""
        left, lengths = [], []
        for name, at in running.items():
            first = self._first.setdefault(name, at.done)
            elapsed, total = time.monotonic() - self._begun[name], self.expected(self._method[name])
            if at.done > first:
                epoch = elapsed / (at.done - first)
                left.append(epoch * (at.total - at.done))
                lengths.append(epoch * at.total)
            elif total is None:
                return None
            else:
                left.append(max(0.0, total * (1 - at.done / max(at.total, 1)) - elapsed))
        for run in waiting:
            total = self.expected(run.method)
            if total is None and not lengths:
                return None
            left.append(fmean(lengths) if total is None else total)
        return max([sum(left) / max(slots, 1), *left], default=0.0)


@dataclass(frozen=True)
class Snapshot:
    """The state of a benchmark at one moment."""

    total: int
    finished: int
    failed: int
    running: Mapping[str, Progress]
    waiting: int
    remaining: float | None

    @property
    def summary(self) -> str:
        """The state in one line."""
        failed = f", {self.failed} failed" if self.failed else ""
        done = f"{self.finished} of {self.total} runs done{failed}"
        if not self.running and not self.waiting:
            return done
        left = f"{len(self.running)} running, {self.waiting} waiting"
        return f"{done}, {left}; {when(self.remaining)}"


def when(seconds: float | None) -> str:
    """``3 h 20 min left, until 17:45``.

    >>> when(None), when(59).split(" left")[0], when(12_000).split(" left")[0]
    ('no estimate yet', '1 min', '3 h 20 min')
    """
    if seconds is None:
        return "no estimate yet"
    minutes = max(1, round(seconds / 60))
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    text = " ".join(f"{n} {unit}" for n, unit in parts if n)
    end = datetime.now() + timedelta(seconds=seconds)
    shown = f"{end:%H:%M}" if minutes < 720 else f"{end:%a %d %b %H:%M}"
    return f"{text} left, until {shown}"


class Board:
    """Live status display with a permanent log above it."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._last = 0.0
        self._shown = ""

    def say(self, text: str) -> None:
        """Print a line that stays, with the time."""
        clock = datetime.now().strftime("%H:%M:%S")
        self._console.print(f"{clock}  {text}", highlight=False, markup=False, soft_wrap=True)
        self._last = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Repaint twice a second; without a terminal, print a line when something changed."""
        now = time.monotonic()
        if now - self._last < (0.5 if self._live is not None else EVERY):
            return
        if self._live is not None:
            self._live.update(_draw(snapshot), refresh=True)
        else:
            at = "".join(f"\n          {name}: {p.where}" for name, p in snapshot.running.items())
            if snapshot.summary + at != self._shown:
                self._shown = snapshot.summary + at
                self.say(self._shown)
        self._last = now


@contextmanager
def open_board(console: Console | None = None) -> Iterator[Board]:
    """Open a board on a console (default: standard error)."""
    console = console or Console(stderr=True)
    live = Live(console=console, transient=True, auto_refresh=False)
    with live if console.is_terminal else nullcontext() as shown:
        yield Board(console, shown)


def _draw(snapshot: Snapshot) -> Group:
    table = Table.grid(padding=(0, 2))
    for name, at in snapshot.running.items():
        bar = ProgressBar(total=max(at.total, 1), completed=at.done, width=24)
        table.add_row(Text(name), bar, Text(f"{at.done}/{at.total}"), Text(at.where))
    whole = Table.grid()
    whole.add_row(ProgressBar(max(snapshot.total, 1), snapshot.finished, width=40))
    return Group(table, whole, Text(snapshot.summary))
