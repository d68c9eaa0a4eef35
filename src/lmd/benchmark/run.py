"""The runs of a plan that are missing, done side by side; a failing one is left behind."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from lmd.benchmark.estimate import Clock
from lmd.benchmark.local import Backend, first_stages, log_path
from lmd.benchmark.plan import Plan, PlannedRun, write_plan
from lmd.benchmark.progress import Board, Snapshot
from lmd.benchmark.state import inspect, progress

PAUSE = 0.2  # seconds between two looks at the runs


@dataclass
class Outcome:
    """How a benchmark ended: names of the runs, and why each failed one did."""

    finished: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every run of the plan is finished."""
        return not self.failed


def run_plan(
    plan: Plan,
    folder: Path,
    backend: Callable[[], Backend],
    board: AbstractContextManager[Board],
    *,
    share: bool = True,
) -> Outcome:
    """Do what is missing of a plan; the folder must be locked.

    With ``share`` a first stage that several runs have in common is trained once.

    Whatever ends this function, an interrupt too, ends the runs that are under way; they go on
    from their last epoch next time.
    """
    disk = inspect(plan, folder)
    write_plan(plan, folder)
    todo = [run for run in plan.runs if disk[run.name].status != "finished"]
    seconds = {run.name: disk[run.name].seconds for run in plan.runs if disk[run.name].seconds}
    outcome = Outcome(earlier=[run.name for run in plan.runs if run not in todo])
    if not todo:
        return outcome
    at_work = backend()
    try:
        with board as shown:
            scheduler = _Scheduler(plan, folder, at_work, shown, outcome, Clock(plan, seconds))
            scheduler.share(todo if share else [])
            scheduler.work(todo)
    finally:
        at_work.stop()
    if outcome.complete:
        shutil.rmtree(first_stages(folder), ignore_errors=True)
    return outcome


class _Scheduler:
    """Hands runs to a backend, one for each free slot, and sorts how they end."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        backend: Backend,
        board: Board,
        outcome: Outcome,
        clock: Clock,
    ) -> None:
        self.plan, self.folder, self.backend = plan, folder, backend
        self.board, self.outcome, self.clock = board, outcome, clock
        self.running: dict[str, PlannedRun] = {}
        self.retried: set[str] = set()
        self.decoded: set[str] = set()
        self.beginnings: Counter[str] = Counter()

    def share(self, runs: Iterable[PlannedRun]) -> None:
        """Let these runs take over first stages from one another."""
        self.beginnings.update(_beginning(run) for run in runs)

    def work(self, todo: list[PlannedRun]) -> None:
        """Until nothing waits and nothing runs."""
        # Those whose first stage others will take over begin, so that nobody waits long for it.
        firsts = {_beginning(run): run for run in reversed(todo) if self._shared(run)}
        waiting = sorted(todo, key=lambda run: run is not firsts.get(_beginning(run)))
        while waiting or self.running:
            self._start(waiting)
            self._show(waiting)
            time.sleep(PAUSE)
            for name, code in self.backend.ended().items():
                again = self._ended(self.running.pop(name), code)
                waiting += [again] if again is not None else []
        self._show(waiting)

    def _start(self, waiting: list[PlannedRun]) -> None:
        for run in list(waiting):
            if len(self.running) >= self.backend.slots():
                return
            if self._decoding(run) or self._begun_elsewhere(run):
                continue
            waiting.remove(run)
            self.clock.start(run.name)
            self.running[run.name] = run
            self.backend.start(run, shared=self._shared(run))
            self.board.say(f"started   {run.name}")

    def _decoding(self, run: PlannedRun) -> bool:
        """Whether another run is just filling the image cache that this one needs as well."""
        key = _images(run)
        if key is None or key in self.decoded:
            return False
        others = [other for other in self.running.values() if _images(other) == key]
        if any((self.folder / other.name / "record.json").exists() for other in others):
            self.decoded.add(key)
            return False
        return bool(others)

    def _shared(self, run: PlannedRun) -> bool:
        return self.beginnings[_beginning(run)] > 1

    def _begun_elsewhere(self, run: PlannedRun) -> bool:
        """Whether another run is just training the first stage that this one will take over.

        Waiting for it is never slower than training it a second time from the start.
        """
        if not self._shared(run) or progress(run, self.folder).done > 0:
            return False
        mine, epochs = _beginning(run), run.request["protocol"]["epochs"]
        others = [other for other in self.running.values() if _beginning(other) == mine]
        return any(progress(other, self.folder).done < epochs for other in others)

    def _ended(self, run: PlannedRun, code: int) -> PlannedRun | None:
        """Note the end of a run; one that was killed is taken up once more."""
        seconds = self.clock.end(run.name, finished=code == 0)
        if code == 0:
            self.outcome.finished.append(run.name)
            self.board.say(f"finished  {run.name} ({seconds:.0f} s)")
            return None
        log = log_path(self.folder, run)
        if code < 0 and run.name not in self.retried:
            self.retried.add(run.name)
            self.board.say(f"killed    {run.name} (signal {-code}): it is taken up again")
            return run
        why = f"killed by signal {-code}" if code < 0 else last_words(log)
        self.outcome.failed[run.name] = f"{why} (log: {log})"
        self.board.say(f"FAILED    {run.name}: {why}\n          log: {log}")
        return None

    def _show(self, waiting: Iterable[PlannedRun]) -> None:
        left = list(waiting)
        at = {name: progress(run, self.folder) for name, run in self.running.items()}
        self.board.show(
            Snapshot(
                total=len(self.plan.runs),
                finished=len(self.outcome.finished) + len(self.outcome.earlier),
                failed=len(self.outcome.failed),
                running=at,
                waiting=len(left),
                remaining=self.clock.remaining(left, at, self.backend.slots()),
            )
        )


def _beginning(run: PlannedRun) -> str:
    """The same for runs that should have their first stage in common; the runs make sure of it."""
    request = run.request
    protocol = {k: v for k, v in request["protocol"].items() if not k.startswith("stage2_")}
    return json.dumps([request["data"], request["columns"], protocol, run.first])


def last_words(log: Path) -> str:
    """The last line of a log that says something: the error."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it left no log"
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if line.startswith("error: ")]
    return (errors or said or ["it said nothing"])[-1].removeprefix("error: ")


def _images(run: PlannedRun) -> str | None:
    """What decides which images are decoded, or ``None`` for data that need no cache."""
    data, protocol = run.request["data"], run.request["protocol"]
    if data == "synthetic" or data.endswith(".npz"):
        return None
    keys = ("image_size", "imbalance", "shape", "head_size", "split", "split_seed")
    return json.dumps([data, run.request["columns"], *(protocol[key] for key in keys)])
