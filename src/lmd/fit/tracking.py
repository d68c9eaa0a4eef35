"""Report a run to TensorBoard, MLflow or Weights & Biases."""

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from lmd.base.errors import LmdError, need_extra
from lmd.runs.record import HistoryRow, Record

PROJECT = __name__.partition(".")[0]
_NO_CURVES = ("stage", "stage_name", "epoch", "seconds")  # columns of a history
PATIENCE = 120.0  # seconds at the end of a run for what a tracker has not written yet
HURRY = 5.0  # the same after an error or an interruption


class TensorBoard:
    """Event files in ``RUN/tensorboard``."""

    def __init__(self, run: Path, record: Record, reported: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides what an earlier run in this folder has written from here on; the numbers of the
        # test part are at step 0.
        purge = reported + 1 if reported else 0
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=purge)
        rows = "\n".join(f"| {k} | {v} |" for k, v in parameters(record).items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def epoch(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """Add one point for each number of the test part."""
        self.epoch(0, numbers or {})
        self._writer.close()


class Mlflow:
    """A run in MLflow: in ``mlflow.db`` beside the run, or where ``MLFLOW_TRACKING_URI`` says."""

    def __init__(self, run: Path, record: Record, reported: int = 0) -> None:
        # No messages about new tables, and no report of the use to the makers of MLflow.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        from mlflow import MlflowClient

        beside = run.resolve().parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside / 'mlflow.db'}"
        self._client: Any = MlflowClient(uri)
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        existing = self._client.get_experiment_by_name(title)
        artifacts = (beside / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        experiment = (
            existing.experiment_id if existing else self._client.create_experiment(title, artifacts)
        )
        tags = {"lmd.id": identity(run, record), "lmd.folder": str(run)}
        before = self._client.search_runs([experiment], f"tags.`lmd.id` = '{tags['lmd.id']}'")
        if before:  # a resumed run goes on
            self._id = before[0].info.run_id
            self._client.update_run(self._id, "RUNNING")
            return
        created = self._client.create_run(experiment, tags=tags, run_name=record.name)
        self._id = created.info.run_id
        for name, value in parameters(record).items():
            self._client.log_param(self._id, name, value)

    def epoch(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in numbers.items():
            self._client.log_metric(self._id, name, value, step=step)

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """Log the numbers of the test part, and the status."""
        self.epoch(0, numbers or {})
        self._client.set_terminated(self._id, "KILLED" if numbers is None else "FINISHED")


class Wandb:
    """A run of Weights & Biases in ``RUN/wandb``, offline unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, run: Path, record: Record, reported: int = 0) -> None:
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
        """Add one point to each curve."""
        self._run.log(dict(numbers), step=step)

    def end(self, numbers: Mapping[str, float] | None) -> None:
        """Set the numbers of the test part as the summary."""
        self._run.summary.update(dict(numbers or {}))
        self._run.finish(exit_code=1 if numbers is None else 0)


# Each call may fail; then training goes on without it. Steps count the epochs of all stages from 1.
Tracker = TensorBoard | Mlflow | Wandb
# By the name that ``--log`` takes, which is also the name of the extra and its package.
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


def parameters(record: Record) -> dict[str, str]:
    """Return what was asked for, as flat text."""
    request = record.request
    about = {"data": request.data, "method": request.method, "profile": request.profile}
    about |= {"lmd_version": record.lmd_version, "commit": record.commit or "unknown"}
    about |= {f"protocol.{k}": str(v) for k, v in record.protocol.items()}
    return about | {f"{request.method}.{k}": str(v) for k, v in request.settings.items()}


def identity(run: Path, record: Record) -> str:
    """Return what a run and its continuation have in common."""
    return hashlib.sha256(f"{run.resolve()} {record.created}".encode()).hexdigest()[:16]


def check_trackers(log: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of trackers, known and installed; an ``LmdError`` before the training."""
    names = (log,) if isinstance(log, str) else tuple(dict.fromkeys(log or ()))
    for name in names:
        if name not in TRACKERS:
            raise LmdError(f"--log: there is no {name!r}; choose from {', '.join(TRACKERS)}")
        need_extra(f"--log {name}", name, name)
    return names


class Tracking:
    """The trackers of one run; ``say`` is called once with the failure of each that fails.

    ``reported`` is the number of epochs that a resumed run has reported before.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: Path,
        record: Record,
        say: Callable[[str], None],
        reported: int = 0,
    ) -> None:
        self._threads = [_Thread(name, run, record, reported, say) for name in names]
        self._reported = reported
        self._numbers: dict[str, float] | None = None

    def __enter__(self) -> "Tracking":
        for thread in self._threads:
            thread.start()
        return self

    def report(self, history: Sequence[HistoryRow]) -> None:
        """Report the rows that are new; other runs may have trained the first ones."""
        for step, row in enumerate(history[self._reported :], start=self._reported + 1):
            numbers = {
                key: float(value)
                for key, value in row.items()
                if key not in _NO_CURVES and isinstance(value, int | float)
            }
            for thread in self._threads:
                thread.work.put((step, numbers))
        self._reported = max(self._reported, len(history))

    def finish(self, record: Record) -> None:
        """Report the numbers of the finished run when this context ends."""
        part = record.part
        metrics = record.metrics[part] if part else {}
        values = {f"{part}/{key}": metric.value for key, metric in metrics.items()}
        self._numbers = {key: value for key, value in values.items() if value is not None}

    def __exit__(self, kind: object, *_: object) -> None:
        limit = time.monotonic() + (PATIENCE if kind is None else HURRY)
        for thread in self._threads:
            thread.work.put((None, self._numbers))
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
            if thread.is_alive():
                thread.fail("it takes too long to write")


class _Thread(threading.Thread):
    """Starts a tracker and hands over steps and numbers, after a failure no more.

    The step is ``None`` at the end.
    """

    def __init__(
        self, name: str, run: Path, record: Record, reported: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(daemon=True)
        self._tracker, self._arguments, self._say = name, (run, record, reported), say
        self._failed = False
        self.work: queue.SimpleQueue[tuple[int | None, Any]] = queue.SimpleQueue()

    def run(self) -> None:
        """Work until the end or a failure."""
        try:
            tracker = TRACKERS[self._tracker](*self._arguments)
            while True:
                step, numbers = self.work.get()
                if step is None:
                    tracker.end(numbers)
                    return
                tracker.epoch(step, numbers)
        except Exception as error:  # the packages raise many kinds
            self.fail(f"{type(error).__name__}: {error}")

    def fail(self, why: str) -> None:
        """Say once that the tracker has failed."""
        if not self._failed:
            self._failed = True
            text = escape(" ".join(why.split())[:300])
            self._say(f"  --log {self._tracker} failed ({text}): the run goes on without it")
