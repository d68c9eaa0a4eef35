"""Train the missing runs of a plan side by side, and show how far they are; no torch.

A failed run does not stop the others.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmd.base.files import clear_leftovers
from lmd.benchmark.backends import DIVERGED, STARTED, Backend, first_stages, log_path
from lmd.benchmark.plan import Plan, PlannedRun, inspect, write_plan
from lmd.benchmark.trials import RULE, make_choices, read_choices, settled, trial_runs, undecided
from lmd.runs.folder import Run

PAUSE = 0.2  # seconds between two looks at the runs
EVERY = 30.0  # seconds between two lines without a terminal


@dataclass
class Outcome:
    """How a benchmark ended: names of the finished runs, and the reason for each failed one.

    ``diverged`` are trial runs that could not be trained: their values cannot be chosen.
    """

    finished: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)


def run_plan(
    plan: Plan,
    folder: Path,
    backend: Callable[[], Backend],
    board: AbstractContextManager["Board"],
    *,
    deadline: float = math.inf,
) -> Outcome:
    """Train the missing runs of a plan; the caller holds the folder's lock.

    Trials come first; then every row is trained with its chosen value. A row whose trials failed
    waits for the next call. If this function is interrupted, or ``time.monotonic()`` passes the
    ``deadline``, it stops its runs; they continue from their last epoch next time.
    """
    clear_leftovers(folder)
    seconds = inspect(plan, folder)
    write_plan(plan, folder)
    done = {name for name, took in seconds.items() if took is not None}
    choices = make_choices(plan, folder)
    pending = [trial for trial in plan.trials if trial.method not in choices]
    trials = [run for trial in pending for run in trial_runs(plan, trial)]
    final = settled(plan, choices).runs
    names = dict.fromkeys(run.name for run in (*trials, *final))
    outcome = Outcome(earlier=[name for name in names if name in done])
    if done >= names.keys():
        return outcome
    clock = Clock(plan, seconds)
    workers = backend()
    try:
        with board as shown:
            scheduler = _Scheduler(folder, workers, shown, outcome, clock, deadline)
            if trials:
                first = {run.name for run in trials}
                later = [run for run in final if run.name not in done | first]
                todo = [run for run in trials if run.name not in done]
                scheduler.work(todo, later, trials=True)
                choices = make_choices(plan, folder, outcome.diverged)
            waiting = undecided(plan, choices)
            final = [run for run in settled(plan, choices).runs if run.method not in waiting]
            done |= {*outcome.finished}
            scheduler.work([run for run in final if run.name not in done])
    finally:
        workers.stop()
    for run in (run for trial in waiting.values() for run in trial_runs(plan, trial)):
        # Without a choice, a diverged trial is a failure, not a value that lost.
        if run.name in outcome.diverged:
            outcome.failed[run.name] = outcome.diverged.pop(run.name)
    if not waiting and {run.name for run in final} <= {*done, *outcome.finished}:
        shutil.rmtree(first_stages(folder), ignore_errors=True)
    return outcome


@dataclass
class _Scheduler:
    """Hands runs to a backend in their order, one for each free slot, and records how they end."""

    folder: Path
    backend: Backend
    board: "Board"
    outcome: Outcome
    clock: "Clock"
    deadline: float
    running: dict[str, PlannedRun] = field(default_factory=dict)
    waiting: list[PlannedRun] = field(default_factory=list)
    retried: set[str] = field(default_factory=set)
    decoded: set[str] = field(default_factory=set)

    def work(
        self, runs: Sequence[PlannedRun], later: Sequence[PlannedRun] = (), *, trials: bool = False
    ) -> None:
        """Start runs and wait until all have ended; ``later`` are those that follow trials."""
        self.waiting = list(runs)
        while (self.waiting or self.running) and time.monotonic() < self.deadline:
            self._start()
            self._show(later)
            time.sleep(PAUSE)
            for name, code in self.backend.ended().items():
                self._end(self.running.pop(name), code, trials)
        self._show(later)

    def _start(self) -> None:
        for run in list(self.waiting):
            if len(self.running) >= self.backend.slots():
                return
            if self._is_decoded_elsewhere(run):
                continue
            self.waiting.remove(run)
            try:
                self.backend.start(run)
            except OSError as error:
                self._fail(run, f"it could not be started: {error}")
                continue
            self.clock.start(run.name)
            self.running[run.name] = run
            self.board.say(f"started   {run.name}")

    def _is_decoded_elsewhere(self, run: PlannedRun) -> bool:
        """Whether another run is filling the image cache that this one needs."""
        data, key = run.request["data"], run.pixels
        if data == "synthetic" or data.endswith(".npz") or key in self.decoded:
            return False
        others = [other for other in self.running.values() if other.pixels == key]
        if any((self.folder / other.name / "record.json").exists() for other in others):
            self.decoded.add(key)
            return False
        return bool(others)

    def _end(self, run: PlannedRun, code: int, trials: bool) -> None:
        """Record the end of a run; one that was killed is started again once."""
        seconds = self.clock.end(run.name, finished=code == 0)
        log = log_path(self.folder, run.name)
        if code == 0:
            self.outcome.finished.append(run.name)
            self.board.say(f"finished  {run.name} ({seconds:.0f} s)")
        elif code < 0 and run.name not in self.retried:
            self.retried.add(run.name)
            self.waiting.append(run)
            self.board.say(f"killed    {run.name} (signal {-code}): it will be started again")
        elif code == DIVERGED and trials:
            self.outcome.diverged[run.name] = f"{last_message(log)} (log: {log})"
            self.board.say(f"diverged  {run.name}: this value cannot be chosen")
        else:
            why = f"killed by signal {-code}" if code < 0 else last_message(log)
            self._fail(run, f"{why} (log: {log})")

    def _fail(self, run: PlannedRun, why: str) -> None:
        self.outcome.failed[run.name] = why
        self.board.say(f"FAILED    {run.name}: {why}")

    def _show(self, later: Sequence[PlannedRun]) -> None:
        running = {name: progress(run, self.folder) for name, run in self.running.items()}
        finished = len(self.outcome.finished) + len(self.outcome.earlier)
        failed = len(self.outcome.failed) + len(self.outcome.diverged)
        waiting = [*self.waiting, *later]
        total = finished + failed + len(running) + len(waiting)
        left = self.clock.remaining(waiting, running, self.backend.slots())
        self.board.show(Snapshot(total, finished, failed, running, len(waiting), left))


def last_message(log: Path) -> str:
    """Return the last error in a log since the run was last started, or else its last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "no log was written"
    starts = [i for i, line in enumerate(lines) if line.startswith(STARTED)]
    last = [line.strip() for line in lines[starts[-1] + 1 if starts else 0 :] if line.strip()]
    errors = [line for line in last if line.startswith("error: ")]
    return (errors or last or ["the log is empty"])[-1].removeprefix("error: ")


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``done`` of ``total`` epochs, and stage and epoch as text."""

    done: int
    total: int
    where: str


def progress(run: PlannedRun, folder: Path) -> Progress:
    """Read stage and epoch from a run's ``history.csv``, again only if it has changed."""
    path = Run(folder / run.name).history_path
    return _progress(path.parent, path.stat().st_mtime_ns if path.exists() else 0, *run.epochs)


@lru_cache
def _progress(folder: Path, _changed: int, *epochs: int) -> Progress:
    rows = Run(folder).read_history()
    if not rows:
        return Progress(0, sum(epochs), "starting")
    stage, epoch = (int(rows[-1][key] or 0) for key in ("stage", "epoch"))
    most = epochs[stage - 1] if stage <= len(epochs) else epoch
    where = f"stage {stage}, epoch {epoch}/{max(most, epoch)}"
    return Progress(min(len(rows), sum(epochs)), sum(epochs), where)


class Clock:
    """Times runs by name; ``seconds`` holds the runs of earlier sessions."""

    def __init__(self, plan: Plan, seconds: Mapping[str, float | None]) -> None:
        self._method = {run.name: run.method for run in plan.runs}
        self._seconds = {name: took for name, took in seconds.items() if took}
        self._begun: dict[str, float] = {}
        self._first: dict[str, int] = {}  # epochs that an earlier session had already trained

    def start(self, name: str) -> None:
        """Note that a run starts now."""
        self._begun[name] = time.monotonic()

    def end(self, name: str, *, finished: bool) -> float:
        """Return the seconds of a run; only one trained from scratch counts for the estimate."""
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


def preview(plan: Plan, folder: Path, slots: int) -> Iterator[str]:
    """Yield the runs of both phases with their state, and how long they will take."""
    seconds, choices = inspect(plan, folder), read_choices(plan, folder)
    waiting, final = undecided(plan, choices), settled(plan, choices).runs
    trials = [run for trial in plan.trials for run in trial_runs(plan, trial)]
    states = {name: "begun" if took is None else "finished" for name, took in seconds.items()}
    lines = {r.name: f"{states.get(r.name, 'missing'):<9} {r.name}" for r in (*trials, *final)}
    if trials:
        yield f"Phase 1: trials with seed {plan.trials[0].seed}. {RULE}"
        yield from (lines[run.name] for run in trials)
        yield "Phase 2: all seeds with the chosen values"
    for run in final:
        if trial := waiting.get(run.method):
            yield f"{'waiting':<9} {run.method}-{trial.setting}=?-seed{run.seed}"
        else:
            yield lines[run.name]
    needed = {run.name: run for run in trials if run.method in waiting}
    needed |= {run.name: run for run in final}
    missing = [run for name, run in needed.items() if seconds.get(name) is None]
    left = when(Clock(plan, seconds).remaining(missing, {}, slots)) if missing else "all done"
    yield f"{len(needed) - len(missing)} of {len(needed)} runs are finished; {left}"


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
    form = "%H:%M" if minutes < 720 else "%a %d %b %H:%M"
    return f"{text} left, until {end:{form}}"


class Board:
    """Live status display with a permanent log above it."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._last, self._shown = 0.0, ""

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
            table, whole = Table.grid(padding=(0, 2)), Table.grid()
            for name, at in snapshot.running.items():
                bar = ProgressBar(total=max(at.total, 1), completed=at.done, width=24)
                table.add_row(Text(name), bar, Text(f"{at.done}/{at.total}"), Text(at.where))
            whole.add_row(ProgressBar(max(snapshot.total, 1), snapshot.finished, width=40))
            self._live.update(Group(table, whole, Text(snapshot.summary)), refresh=True)
        else:
            runs = "".join(f"\n          {name}: {p.where}" for name, p in snapshot.running.items())
            if (text := snapshot.summary + runs) != self._shown:
                self._shown = text
                self.say(text)
        self._last = now


@contextmanager
def open_board(console: Console | None = None) -> Iterator[Board]:
    """Open a board on a console (default: standard error)."""
    console = console or Console(stderr=True)
    live = Live(console=console, transient=True, auto_refresh=False)
    with live if console.is_terminal else nullcontext() as shown:
        yield Board(console, shown)
