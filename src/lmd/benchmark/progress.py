"""What a benchmark shows while it runs: a live board on a terminal, lines elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmd.benchmark.state import Progress

EVERY = 30.0  # seconds between two lines without a terminal


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
    words = " ".join(f"{n} {unit}" for n, unit in parts if n)
    end = datetime.now() + timedelta(seconds=seconds)
    shown = f"{end:%H:%M}" if minutes < 720 else f"{end:%a %d %b %H:%M}"
    return f"{words} left, until {shown}"


class Board:
    """Shows snapshots, and lines that stay."""

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
            self._live.update(_drawn(snapshot), refresh=True)
        else:
            at = "".join(f"\n          {name}: {p.where}" for name, p in snapshot.running.items())
            if snapshot.summary + at != self._shown:
                self._shown = snapshot.summary + at
                self.say(self._shown)
        self._last = now


@contextmanager
def open_board(console: Console | None = None) -> Iterator[Board]:
    """A board on a console (default: standard error)."""
    console = console or Console(stderr=True)
    live = Live(console=console, transient=True, auto_refresh=False)
    with live if console.is_terminal else nullcontext() as shown:
        yield Board(console, shown)


def _drawn(snapshot: Snapshot) -> Group:
    table = Table.grid(padding=(0, 2))
    for name, at in snapshot.running.items():
        bar = ProgressBar(total=max(at.total, 1), completed=at.done, width=24)
        table.add_row(Text(name), bar, Text(f"{at.done}/{at.total}"), Text(at.where))
    whole = Table.grid()
    whole.add_row(ProgressBar(max(snapshot.total, 1), snapshot.finished, width=40))
    return Group(table, whole, Text(snapshot.summary))
