"""Trains the missing runs of a plan side by side; a failed run does not stop the others."""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from lmd.base.files import clear_leftovers
from lmd.benchmark.local import DIVERGED, STARTED, Backend, first_stages, log_path
from lmd.benchmark.plan import Plan, PlannedRun, Trial, inspect, write_plan
from lmd.benchmark.progress import Board, Clock, Snapshot, Watch
from lmd.benchmark.trials import first_phase, make_choices, settled, trial_runs, undecided

PAUSE = 0.2  # seconds between two looks at the runs


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
    board: AbstractContextManager[Board],
    *,
    deadline: float = math.inf,
) -> Outcome:
    """Train the missing runs of a plan; the caller holds the folder's lock.

    Trials come first; then every row is trained with its chosen value. A row whose trials failed
    waits for the next call. If this function is interrupted, or ``time.monotonic()`` passes the
    ``deadline``, it stops its runs; they continue from their last epoch next time.
    """
    clear_leftovers(folder)
    disk = inspect(plan, folder)
    write_plan(plan, folder)
    done = {name for name, state in disk.items() if state.status == "finished"}
    choices = make_choices(plan, folder)
    tried, final = first_phase(plan, choices), settled(plan, choices).runs
    names = dict.fromkeys(run.name for run in (*tried, *final))
    outcome = Outcome(earlier=[name for name in names if name in done])
    if done >= names.keys():
        return outcome
    clock = Clock(plan, {name: state.seconds for name, state in disk.items() if state.seconds})
    workers = backend()
    try:
        with board as shown:
            scheduler = _Scheduler(folder, workers, shown, outcome, clock, deadline)
            if tried:
                first = {run.name for run in tried}
                later = [run for run in final if run.name not in done | first]
                todo = [run for run in tried if run.name not in done]
                scheduler.work(todo, later, trials=True)
                choices = make_choices(plan, folder, outcome.diverged)
            waiting = undecided(plan, choices)
            final = [run for run in settled(plan, choices).runs if run.method not in waiting]
            done |= {*outcome.finished}
            scheduler.work([run for run in final if run.name not in done])
    finally:
        workers.stop()
    _fail_undecided(outcome, plan, waiting)
    if not waiting and {run.name for run in final} <= {*done, *outcome.finished}:
        shutil.rmtree(first_stages(folder), ignore_errors=True)
    return outcome


def _fail_undecided(outcome: Outcome, plan: Plan, waiting: Mapping[str, Trial]) -> None:
    """A diverged trial of a row without a choice is a failure, not a value that lost."""
    for trial in waiting.values():
        for run in trial_runs(plan, trial):
            if run.name in outcome.diverged:
                outcome.failed[run.name] = outcome.diverged.pop(run.name)


class _Scheduler:
    """Hands runs to a backend in their order, one for each free slot, and records how they end."""

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        board: Board,
        outcome: Outcome,
        clock: Clock,
        deadline: float,
    ) -> None:
        self.folder, self.backend, self.board = folder, backend, board
        self.outcome, self.clock, self.deadline = outcome, clock, deadline
        self.watch = Watch(folder)
        self.running: dict[str, PlannedRun] = {}
        self.waiting: list[PlannedRun] = []
        self.later: Sequence[PlannedRun] = ()
        self.trials = False
        self.retried: set[str] = set()
        self.decoded: set[str] = set()

    def work(
        self, runs: Sequence[PlannedRun], later: Sequence[PlannedRun] = (), *, trials: bool = False
    ) -> None:
        """Start runs and wait until all have ended; ``later`` are those that follow trials."""
        self.waiting, self.later, self.trials = list(runs), later, trials
        while (self.waiting or self.running) and time.monotonic() < self.deadline:
            self._start()
            self._show()
            time.sleep(PAUSE)
            for name, code in self.backend.ended().items():
                self._end(self.running.pop(name), code)
        self._show()

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

    def _end(self, run: PlannedRun, code: int) -> None:
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
        elif code == DIVERGED and self.trials:
            self.outcome.diverged[run.name] = f"{last_message(log)} (log: {log})"
            self.board.say(f"diverged  {run.name}: this value cannot be chosen")
        else:
            why = f"killed by signal {-code}" if code < 0 else last_message(log)
            self._fail(run, f"{why} (log: {log})")

    def _fail(self, run: PlannedRun, why: str) -> None:
        self.outcome.failed[run.name] = why
        self.board.say(f"FAILED    {run.name}: {why}")

    def _show(self) -> None:
        running = {name: self.watch.progress(run) for name, run in self.running.items()}
        finished = len(self.outcome.finished) + len(self.outcome.earlier)
        failed = len(self.outcome.failed) + len(self.outcome.diverged)
        waiting = [*self.waiting, *self.later]
        self.board.show(
            Snapshot(
                total=finished + failed + len(running) + len(waiting),
                finished=finished,
                failed=failed,
                running=running,
                waiting=len(waiting),
                remaining=self.clock.remaining(waiting, running, self.backend.slots()),
            )
        )


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
