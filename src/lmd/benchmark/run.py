"""Trains the missing runs of a plan side by side; a failed run does not stop the others."""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from lmd.base.files import clear_leftovers
from lmd.benchmark.estimate import Clock
from lmd.benchmark.local import DIVERGED, STARTED, Backend, first_stages, log_path
from lmd.benchmark.plan import Plan, PlannedRun, Trial, write_plan
from lmd.benchmark.progress import Board, Snapshot
from lmd.benchmark.state import inspect, progress
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
    share: bool = True,
    deadline: float = math.inf,
) -> Outcome:
    """Train the missing runs of a plan; the caller holds the folder's lock.

    Trials come first; then every row is trained with its chosen value. A row whose trials failed
    waits for the next call.

    With ``share``, a first stage that several runs have in common is trained once: the others wait
    for the run that trains it. If this function is interrupted, or ``time.monotonic()`` passes the
    ``deadline``, it stops its runs; they continue from their last epoch next time.
    """
    clear_leftovers(folder)
    disk = inspect(plan, folder)
    write_plan(plan, folder)
    done = {name for name, found in disk.items() if found.status == "finished"}
    choices = make_choices(plan, folder)
    tried, final = first_phase(plan, choices), settled(plan, choices).runs
    wanted = {run.name: run for run in (*tried, *final)}
    outcome = Outcome(earlier=[name for name in wanted if name in done])
    if done >= wanted.keys():
        return outcome
    at_work = backend()
    try:
        with board as shown:
            seconds = {name: found.seconds for name, found in disk.items() if found.seconds}
            clock = Clock(plan, seconds)
            scheduler = _Scheduler(folder, at_work, shown, outcome, clock, share, deadline)
            if tried:
                names = {run.name for run in tried} | done
                later = [run for run in final if run.name not in names]
                todo = [run for run in tried if run.name not in done]
                scheduler.work(todo, later=later, trials=True)
                choices = make_choices(plan, folder, outcome.diverged)
            waiting = undecided(plan, choices)
            final = [run for run in settled(plan, choices).runs if run.method not in waiting]
            done |= {*outcome.finished}
            scheduler.work([run for run in final if run.name not in done])
    finally:
        at_work.stop()
    _undecided_failures(outcome, plan, waiting)
    if not waiting and {run.name for run in final} <= {*done, *outcome.finished}:
        shutil.rmtree(first_stages(folder), ignore_errors=True)
    return outcome


def _undecided_failures(outcome: Outcome, plan: Plan, waiting: Mapping[str, Trial]) -> None:
    """A diverged trial of a row without a choice is a failure, not a value that lost."""
    for trial in waiting.values():
        for run in trial_runs(plan, trial):
            if run.name in outcome.diverged:
                outcome.failed[run.name] = outcome.diverged.pop(run.name)


@dataclass
class _Scheduler:
    """Hands runs to a backend, one for each free slot, and records how they end."""

    folder: Path
    backend: Backend
    board: Board
    outcome: Outcome
    clock: Clock
    share: bool
    deadline: float = math.inf
    running: dict[str, PlannedRun] = field(default_factory=dict)
    waiting: list[PlannedRun] = field(default_factory=list)
    later: Sequence[PlannedRun] = ()  # the runs that follow the trials, as far as they are known
    trials: bool = False
    retried: set[str] = field(default_factory=set)
    decoded: set[str] = field(default_factory=set)

    def work(
        self, todo: list[PlannedRun], *, later: Sequence[PlannedRun] = (), trials: bool = False
    ) -> None:
        """Start runs and wait for them until all have ended."""
        self.later, self.trials = later, trials
        # In each block, one run of every kind of first stage goes first, so that the others need
        # not wait for it. The blocks keep their order: a benchmark that is stopped has complete
        # ones.
        blocks = list(dict.fromkeys((run.seed, run.point) for run in todo))
        firsts = {(run.seed, run.point, run.first): run.name for run in reversed(todo)}
        self.waiting = sorted(
            todo,
            key=lambda run: (
                blocks.index((run.seed, run.point)),
                self.share and run.name not in firsts.values(),
            ),
        )
        while (self.waiting or self.running) and time.monotonic() < self.deadline:
            self._start()
            self._show()
            time.sleep(PAUSE)
            for name, code in self.backend.ended().items():
                self._ended(self.running.pop(name), code)
        self._show()

    def _start(self) -> None:
        for run in list(self.waiting):
            if len(self.running) >= self.backend.slots():
                return
            if self._decoding(run):
                continue
            self.waiting.remove(run)
            self.clock.start(run.name)
            self.running[run.name] = run
            try:
                self.backend.start(run, shared=self.share)
            except OSError as error:
                del self.running[run.name]
                self.clock.end(run.name, finished=False)
                why = f"it could not be started: {error}"
                self.outcome.failed[run.name] = why
                self.board.say(f"FAILED    {run.name}: {why}")
                continue
            self.board.say(f"started   {run.name}")

    def _decoding(self, run: PlannedRun) -> bool:
        """Whether another run is filling the image cache that this one needs."""
        data, key = run.request["data"], run.pixels
        if data == "synthetic" or data.endswith(".npz") or key in self.decoded:
            return False
        others = [other for other in self.running.values() if other.pixels == key]
        if any((self.folder / other.name / "record.json").exists() for other in others):
            self.decoded.add(key)
            return False
        return bool(others)

    def _ended(self, run: PlannedRun, code: int) -> None:
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
            self.outcome.diverged[run.name] = f"{last_words(log)} (log: {log})"
            self.board.say(f"diverged  {run.name}: this value cannot be chosen")
        else:
            why = f"killed by signal {-code}" if code < 0 else last_words(log)
            self.outcome.failed[run.name] = f"{why} (log: {log})"
            self.board.say(f"FAILED    {run.name}: {why}\n          log: {log}")

    def _show(self) -> None:
        at = {name: progress(run, self.folder) for name, run in self.running.items()}
        finished = len(self.outcome.finished) + len(self.outcome.earlier)
        failed = len(self.outcome.failed) + len(self.outcome.diverged)
        waiting = [*self.waiting, *self.later]
        self.board.show(
            Snapshot(
                total=finished + failed + len(at) + len(waiting),
                finished=finished,
                failed=failed,
                running=at,
                waiting=len(waiting),
                remaining=self.clock.remaining(waiting, at, self.backend.slots()),
            )
        )


def last_words(log: Path) -> str:
    """The last error in a log since the run was last started, or else its last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "no log was written"
    starts = [i for i, line in enumerate(lines) if line.startswith(STARTED)]
    said = [line.strip() for line in lines[starts[-1] + 1 if starts else 0 :] if line.strip()]
    errors = [line for line in said if line.startswith("error: ")]
    return (errors or said or ["the log is empty"])[-1].removeprefix("error: ")
