"""A run folder: its record, predictions and history."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, clear_leftovers, is_leftover
from lmd.base.lock import NAME as LOCK
from lmd.runfolder.predictions import PARTS, Predictions, read_predictions
from lmd.runfolder.reading import read_record
from lmd.runfolder.record import HistoryRow, Record
from lmd.scoring.estimates import Estimate

RUN_FILES = (
    "checkpoint/state.safetensors",
    "record.json",
    "predictions.npz",
    "history.csv",
    "model.safetensors",
    "model.json",
    "average.json",
    "folds.json",
    "novelty.safetensors",
    "neighbours.npz",
    "examples.npz",
    "classifier.npz",
    "report.html",
    "model-card.md",
    "model-card.html",
)
# What every finished training has; the others depend on what was asked for.
REQUIRED = (
    "record.json",
    "predictions.npz",
    "history.csv",
    "model.safetensors",
    "model.json",
    "report.html",
    "model-card.md",
    "model-card.html",
)
# Of these, what follows from the record and the predictions.
WRITTEN_AGAIN = frozenset({"history.csv", "report.html", "model-card.md", "model-card.html"})
HEADLINES = ("balanced_accuracy", "auc")
_REMOVE = "remove the file: the record has the history of a finished run"


class RunFolder:
    """The folder of a run, by default below ``runs/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_path = path / "record.json"
        self.predictions_path = path / "predictions.npz"
        self.history_path = path / "history.csv"

    def __fspath__(self) -> str:
        """The path, so that a run can be given wherever a folder is expected."""
        return str(self.path)

    def __repr__(self) -> str:
        """Method, data, state and the main numbers."""
        try:
            record = self.read_record()
        except LmdError:
            return f"<run {self.path}: it has no readable record>"
        head = f"<run {self.path}: {record.method.title} on {record.data.source}, {record.status}"
        found = record.metrics.get(record.part or "test", {})
        texts = [f"{key} {_shown(found[key])}" for key in HEADLINES if key in found]
        return f"{head}{''.join(f', {text}' for text in texts)}>"

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Value and 95 % interval of each metric in the test part; empty until it is finished.

        ``run.metrics["balanced_accuracy"].value``; ``lmd.scoring.metrics.METRICS`` has the keys.
        """
        record = self.read_record()
        return dict(record.metrics.get(record.part or "test", {}))

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False, resumable: bool = True) -> None:
        """An ``LmdError`` unless a run may be created here; nothing is changed."""
        if path.exists() and not path.is_dir():
            raise LmdError(f"{path} is a file: choose another folder with --out")
        if path.exists() and not unborn(path):
            if not (path / "record.json").exists():
                raise LmdError(
                    f"{path} exists and is not a run folder: choose another one with --out"
                )
            if not overwrite:
                remedy = "continue it with --resume, " if resumable else ""
                raise LmdError(
                    f"{path} already holds a run: {remedy}choose another folder with --out, or "
                    "replace it with --overwrite"
                )

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunFolder":
        """Create a new run folder; a folder with a run is refused unless ``overwrite``."""
        cls.check_free(path, overwrite=overwrite)
        try:
            # The record last: without it, this would not be known as the folder of a run.
            for file in sorted(RUN_FILES, key=lambda name: name == "record.json"):
                (path / file).unlink(missing_ok=True)
            clear_leftovers(path, path / "checkpoint")
            (path / "checkpoint").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LmdError(f"cannot create the run folder {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run folder."""
        if not path.exists():
            raise LmdError(f"run folder {path} does not exist")
        if not (path / "record.json").exists():
            raise LmdError(f"{path} is not a run folder: it has no record.json")
        return cls(path)

    def make_checkpoint_folder(self) -> None:
        """Make the folder of the checkpoint again if someone has removed it."""
        try:
            (self.path / "checkpoint").mkdir(exist_ok=True)
        except OSError as error:
            raise LmdError(f"cannot write to {self.path}: {error.strerror}") from error

    def lacks(self, record: Record) -> set[str]:
        """The files of this finished run that are not there; it needs no checkpoint."""
        wanted = {*REQUIRED}
        if record.novelty is not None:
            wanted.add("novelty.safetensors")
        if record.request.keep_features:
            wanted.add("neighbours.npz")
        return {name for name in wanted if not (self.path / name).exists()}

    def read(self) -> "RunFiles":
        """Read all files; only the record must exist."""
        record = self.read_record()
        found = self.read_predictions() if self.predictions_path.exists() else None
        if found is not None:
            self._check_same_run(record, found)
        # Records of format 1 have no history.
        return RunFiles(self.path, record, found, record.history or self.read_history())

    def _check_same_run(self, record: Record, found: Predictions) -> None:
        other = "other classes" if list(found.classes) != record.data.classes else ""
        for part in PARTS:
            images, of = sum(record.data.counts.get(part, [])), found.parts.get(part)
            calibrated = bool(record.candidates) or record.external is not None
            if part == "validation" and not images and calibrated:
                continue  # of training images, by cross-validation
            if not other and images != (0 if of is None else len(of.labels)):
                other = f"another number of {part} images ({images} in the record)"
        if other:
            raise LmdError(
                f"{self.predictions_path} has {other} than {self.record_path}: they belong "
                "to different runs; restore the files, or train the run again"
            )

    def write_record(self, record: Record) -> None:
        """Replace ``record.json`` atomically."""
        values = record.model_dump(mode="json")
        text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        atomic_write(self.record_path, (text + "\n").encode())

    def read_record(self) -> Record:
        """Read ``record.json``."""
        return read_record(self.record_path)

    def write_predictions(self, predictions: Predictions) -> None:
        """Replace ``predictions.npz`` atomically."""
        atomic_write(self.predictions_path, predictions.to_bytes())

    def read_predictions(self) -> Predictions:
        """Read ``predictions.npz``."""
        return read_predictions(self.predictions_path)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace ``history.csv``, one row per epoch; terms that a stage lacks are empty."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
        atomic_write(self.history_path, text.getvalue().encode())

    def read_history(self) -> list[HistoryRow]:
        """The rows of ``history.csv`` with their numbers; empty if there is no file."""
        if not self.history_path.exists():
            return []
        try:
            text = self.history_path.read_text(encoding="utf-8")
            rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
        except (OSError, ValueError, csv.Error) as error:
            raise LmdError(f"{self.history_path} cannot be read: {error}; {_REMOVE}") from None
        if rows and not {"stage", "epoch"} <= rows[0].keys():
            raise LmdError(
                f"{self.history_path} is not a history: it has no stage or no epoch; {_REMOVE}"
            )
        found = [{k: _cell(v) for k, v in row.items() if k is not None} for row in rows]
        for number, row in enumerate(found, start=1):
            for key in ("stage", "epoch"):
                value = row[key]
                if not isinstance(value, int) or value < 1:
                    raise LmdError(
                        f"{self.history_path}: {key} of row {number} must be a whole number from "
                        f"1 on, it is {value!r}; {_REMOVE}"
                    )
        return found


@dataclass(frozen=True)
class RunFiles:
    """The content of a run folder; ``predictions`` is ``None`` until the run is finished."""

    folder: Path
    record: Record
    predictions: Predictions | None
    history: Sequence[HistoryRow]


def _shown(found: Estimate) -> str:
    """A value with its interval.

    >>> _shown(Estimate(value=0.5, low=0.41, high=0.62)), _shown(Estimate(value=None))
    ('0.500 (0.410 to 0.620)', 'not computable')
    """
    if found.value is None:
        return "not computable"
    known = found.low is not None and found.high is not None
    return f"{found.value:.3f}" + (f" ({found.low:.3f} to {found.high:.3f})" if known else "")


def unborn(path: Path) -> bool:
    """Whether a folder is empty, or left by a run that ended before it had a record."""
    inside = {p.name for p in path.iterdir() if p.name != LOCK and not is_leftover(p)}
    if "checkpoint" in inside and not all(map(is_leftover, (path / "checkpoint").iterdir())):
        return False
    # An evaluation writes its predictions just before its record.
    return inside <= {"checkpoint", "predictions.npz"}


def _cell(text: str | None) -> int | float | str | None:
    """A cell of the history as a number, as text, or as ``None``.

    >>> [_cell(text) for text in ("3", "0.5", "RRL", "", "nan")]
    [3, 0.5, 'RRL', None, None]
    """
    if not text:
        return None
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else None
    return text
