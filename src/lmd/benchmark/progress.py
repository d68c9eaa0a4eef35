"""What a person sees while a benchmark runs: a live board on a terminal, lines elsewhere."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmd.benchmark.state import Progress

EVERY = 30.0  # seconds between two lines where there is no terminal


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
        """One sentence."""
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
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [(days, "d"), (hours, "h"), (rest, "min")]
    words = " ".join(f"{n} {unit}" for n, unit in parts if n)
    end = datetime.now() + timedelta(seconds=seconds)
    shown = f"{end:%H:%M}" if minutes < 720 else f"{end:%a %d %b %H:%M}"
    return f"{words} left, until {shown}"


class Board:
    """Shows snapshots and keeps sentences."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._live: Live | None = None
        self._last = 0.0
        self._shown = ""

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays, with the time."""
        clock = datetime.now().strftime("%H:%M:%S")
        self.console.print(f"{clock}  {text}", highlight=False, markup=False, soft_wrap=True)
        self._last = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Repaint the board twice a second, or say a line now and then if it has changed."""
        now = time.monotonic()
        if now - self._last < (0.5 if self._live is not None else EVERY):
            return
        if self._live is not None:
            self._last = now
            self._live.update(_drawn(snapshot), refresh=True)
            return
        at = "".join(f"\n          {name}: {p.where}" for name, p in snapshot.running.items())
        words = snapshot.summary + at
        if words != self._shown:
            self.say(words)
            self._shown = words
        self._last = now


def _drawn(snapshot: Snapshot) -> Group:
    table = Table.grid(padding=(0, 2))
    for name, at in snapshot.running.items():
        bar = ProgressBar(total=max(at.total, 1), completed=at.done, width=24)
        table.add_row(Text(name), bar, Text(f"{at.done}/{at.total}"), Text(at.where))
    whole = Table.grid()
    whole.add_row(ProgressBar(max(snapshot.total, 1), snapshot.finished, width=40))
    return Group(table, whole, Text(snapshot.summary))
