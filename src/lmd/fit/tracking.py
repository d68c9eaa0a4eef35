"""Report a run to TensorBoard, MLflow or Weights & Biases."""

import hashlib
import importlib.util
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.markup import escape

from lmd.base.errors import LmdError
from lmd.runs.record import HistoryRow, Record

PROJECT = __name__.partition(".")[0]
_PLACE = ("stage", "stage_name", "epoch", "seconds")  # columns of a history that are no curves


class Tracker(Protocol):
    """Keeps the numbers of one run; each call may fail, and training goes on."""

    def epoch(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of one epoch; ``step`` counts the epochs of all stages from 1."""

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """The end, with the numbers of the test part if the run is finished."""


class TensorBoard:
    """Event files in ``RUN/tensorboard``."""

    def __init__(self, run: Path, record: Record, known: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides what an earlier run in this folder has written from here on; the numbers of the
        # test part are at step 0.
        purge = known + 1 if known else 0
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=purge)
        rows = "\n".join(f"| {k} | {v} |" for k, v in parameters(record).items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def epoch(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point of each curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """One point for each number of the test part."""
        for name, value in (numbers or {}).items():
            self._writer.add_scalar(name, value, 0)
        self._writer.close()


class Mlflow:
    """A run in MLflow: in ``mlflow.db`` beside the run, or where ``MLFLOW_TRACKING_URI`` says."""

    def __init__(self, run: Path, record: Record, known: int = 0) -> None:
        # No messages about new tables, and no report of the use to the makers of MLflow.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        from mlflow import MlflowClient

        beside = run.resolve().parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside / 'mlflow.db'}"
        self._client: Any = MlflowClient(uri)
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(title)
        place = (beside / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        experiment = found.experiment_id if found else self._client.create_experiment(title, place)
        mark = {"lmd.id": identity(run, record), "lmd.folder": str(run)}
        before = self._client.search_runs([experiment], f"tags.`lmd.id` = '{mark['lmd.id']}'")
        if before:  # a resumed run goes on
            self._id = before[0].info.run_id
            self._client.update_run(self._id, "RUNNING")
            return
        made = self._client.create_run(experiment, tags=mark, run_name=record.name)
        self._id = made.info.run_id
        for name, value in parameters(record).items():
            self._client.log_param(self._id, name, value)

    def epoch(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point of each curve."""
        for name, value in numbers.items():
            self._client.log_metric(self._id, name, value, step=step)

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """The numbers of the test part, and the status."""
        for name, value in (numbers or {}).items():
            self._client.log_metric(self._id, name, value)
        self._client.set_terminated(self._id, "KILLED" if numbers is None else "FINISHED")


class Wandb:
    """A run of Weights & Biases in ``RUN/wandb``, offline unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, run: Path, record: Record, known: int = 0) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run: Any = wandb.init(
            mode=mode,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run),
            id=identity(run, record),
            resume="allow",
            name=record.name,
            config=parameters(record),
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )

    def epoch(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point of each curve."""
        self._run.log(dict(numbers), step=step)

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """The numbers of the test part as the summary."""
        self._run.summary.update(dict(numbers or {}))
        self._run.finish(exit_code=1 if numbers is None else 0)


# By the name that ``--log`` takes: how to start it for a run with so many epochs, and its package.
TRACKERS: dict[str, tuple[Callable[[Path, Record, int], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (Mlflow, "mlflow"),
    "wandb": (Wandb, "wandb"),
}


def parameters(record: Record) -> dict[str, str]:
    """What was asked for, as flat text."""
    request = record.request
    about = {"data": request.data, "method": request.method, "profile": request.profile}
    about |= {"lmd_version": record.lmd_version, "commit": record.commit or "unknown"}
    about |= {f"protocol.{k}": str(v) for k, v in record.protocol.items()}
    return about | {f"{request.method}.{k}": str(v) for k, v in request.settings.items()}


def numbers_of(row: HistoryRow) -> dict[str, float]:
    """The numbers of one row of the history.

    >>> numbers_of({"stage": 1, "stage_name": "RRL", "epoch": 2, "lr": 0.1, "val_bacc": None})
    {'lr': 0.1}
    """
    return {k: float(v) for k, v in row.items() if k not in _PLACE and isinstance(v, int | float)}


def final_numbers(record: Record) -> dict[str, float]:
    """The numbers of the reported part, such as ``test/balanced_accuracy``."""
    part = record.part
    found = record.metrics.get(part, {}) if part else {}
    return {f"{part}/{key}": one.value for key, one in found.items() if one.value is not None}


def identity(run: Path, record: Record) -> str:
    """The same for a run and its continuation."""
    return hashlib.sha256(f"{run.resolve()} {record.created}".encode()).hexdigest()[:16]


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
