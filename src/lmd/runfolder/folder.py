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
from lmd.base.files import atomic_write
from lmd.runfolder.predictions import Predictions, read_predictions
from lmd.runfolder.record import HistoryRow, Record, read_record

RUN_FILES = (
    "checkpoint/state.safetensors",
    "record.json",
    "predictions.npz",
    "history.csv",
    "model.safetensors",
    "model.json",
    "novelty.safetensors",
    "neighbours.npz",
    "classifier.npz",
    "report.html",
)


class RunFolder:
    """The folder of a run, by default below ``runs/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_path = path / "record.json"
        self.predictions_path = path / "predictions.npz"
        self.history_path = path / "history.csv"

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunFolder":
        """Create a new run folder; a folder with a run is refused unless ``overwrite``."""
        if path.exists() and not path.is_dir():
            raise LmdError(f"{path} is a file: choose another folder with --out")
        if path.exists() and not _unborn(path):
            if not (path / "record.json").exists():
                raise LmdError(
                    f"{path} exists and is not a run folder: choose another one with --out"
                )
            if not overwrite:
                raise LmdError(
                    f"{path} already holds a run: continue it with --resume, choose another "
                    "folder with --out, or replace it with --overwrite"
                )
            for file in RUN_FILES:
                (path / file).unlink(missing_ok=True)
        try:
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

    def read(self) -> "RunFiles":
        """Read all files; only the record must exist."""
        record = self.read_record()
        found = self.read_predictions() if self.predictions_path.exists() else None
        if found is not None and list(found.classes) != record.data.classes:
            raise LmdError(
                f"{self.predictions_path} has other classes than {self.record_path}: they belong "
                "to different runs; restore the files, or train the run again"
            )
        # Records of format 1 have no history.
        return RunFiles(self.path, record, found, record.history or self.read_history())

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
            raise LmdError(f"{self.history_path} cannot be read: {error}") from None
        if rows and not {"stage", "epoch"} <= rows[0].keys():
            raise LmdError(f"{self.history_path} is not a history: it has no stage or no epoch")
        return [{k: _cell(v) for k, v in row.items() if k is not None} for row in rows]


@dataclass(frozen=True)
class RunFiles:
    """The content of a run folder; ``predictions`` is ``None`` until the run is finished."""

    folder: Path
    record: Record
    predictions: Predictions | None
    history: Sequence[HistoryRow]


def _unborn(path: Path) -> bool:
    """Whether a folder is empty, or left by a run that ended before it had a record."""
    inside = list(path.iterdir())
    return not inside or (inside == [path / "checkpoint"] and not any(inside[0].iterdir()))


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
