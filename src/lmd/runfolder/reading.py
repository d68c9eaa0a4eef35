"""Reads the files of a finished run: the record, the predictions and the history."""

import csv
import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError

FORMAT = 1
FIXED_COLUMNS = ("stage", "stage_name", "epoch", "lr", "seconds", "val_bacc")


@dataclass(frozen=True)
class RunFiles:
    """What a run folder says; predictions and history are empty where the file is absent."""

    folder: Path
    record: dict[str, Any]
    predictions: dict[str, NDArray[Any]]
    history: list[dict[str, str]]

    @property
    def part(self) -> str | None:
        """The part that is reported: test where it was scored, else validation, else none."""
        for part in ("test", "validation"):
            if self.section("metrics", part):
                return part
        return None

    @property
    def classes(self) -> list[str]:
        """Names of the K classes."""
        return [str(name) for name in self.section("data").get("classes", [])]

    @property
    def title(self) -> str:
        """The method's title, or the run's name where the record has none."""
        return str(self.section("method").get("title") or self.record.get("name") or "Run")

    def section(self, *keys: str) -> Any:
        """A nested part of the record; an empty dictionary where it is absent or null."""
        value: Any = self.record
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return {} if value is None else value


def read_run(folder: Path) -> RunFiles:
    """Read a run folder; only ``record.json`` must be there."""
    path = folder / "record.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LmdError(f"folder {folder} is not a run: it has no record.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise LmdError(f"{path} is not valid JSON: {error}; restore it or run again") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise LmdError(
            f"{path}: format must be {FORMAT}, it is {found!r}; "
            "make the report with the version of lmd that made the run"
        )
    return RunFiles(folder, record, _read_predictions(folder), _read_history(folder))


def number(value: Any) -> float | None:
    """A finite number, or ``None`` for everything else.

    >>> number("0.5"), number(""), number(float("nan")), number(None)
    (0.5, None, None, None)
    """
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def terms(history: Sequence[dict[str, str]]) -> list[str]:
    """Names of the columns that hold loss terms, in the file's order."""
    return [key for key in (history[0] if history else {}) if key not in FIXED_COLUMNS]


def _read_predictions(folder: Path) -> dict[str, NDArray[Any]]:
    path = folder / "predictions.npz"
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise LmdError(f"{path} cannot be read: {error}; score the run again") from None


def _read_history(folder: Path) -> list[dict[str, str]]:
    path = folder / "history.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
