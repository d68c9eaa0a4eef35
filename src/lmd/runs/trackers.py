"""Experiment trackers that a run can report to; their packages are imported in their own thread."""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lmd.runfolder.record import HistoryRow, Record

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
