"""A run on disk: its folder, its record and its predictions."""

import json
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write

FORMAT = 1


@dataclass(frozen=True)
class Request:
    """All that was asked for: what ``--resume`` needs to go on."""

    data: str
    method: str
    profile: str = "default"
    protocol: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    skip_bad: bool = False


class RunFolder:
    """``runs/NAME``: where everything of a run lies, and what may not be overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record_path(self) -> Path:
        """``record.json``."""
        return self.path / "record.json"

    @property
    def predictions_path(self) -> Path:
        """``predictions.npz``."""
        return self.path / "predictions.npz"

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunFolder":
        """A new folder; one that has a run in it is refused unless asked for."""
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
            raise LmdError(f"run folder {path} cannot be made: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        if not path.exists():
            raise LmdError(f"run folder {path} does not exist")
        if not (path / "record.json").exists():
            raise LmdError(f"{path} is not a run folder: it has no record.json")
        return cls(path)

    def write_record(self, record: dict[str, Any]) -> None:
        """Replace ``record.json`` atomically."""
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        atomic_write(self.record_path, (text + "\n").encode())

    def read_record(self) -> dict[str, Any]:
        """The record; an error says what is wrong with it."""
        try:
            record = json.loads(self.record_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise LmdError(f"{self.record_path} cannot be read: {error}") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise LmdError(f"{self.record_path} is not a record of this version of lmd")
        return record

    def write_predictions(
        self, classes: tuple[str, ...], parts: dict[str, dict[str, NDArray[Any]]]
    ) -> None:
        """``parts[part]`` has ids ``(N,)``, labels ``(N,)`` and probabilities ``(N, K)``.

        And groups ``(N,)`` where it is known which images are of one patient or lesion.
        """
        arrays = {f"{part}_{key}": v for part, of in parts.items() for key, v in of.items()}
        buffer = BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, classes=np.array(classes), **arrays)
        atomic_write(self.predictions_path, buffer.getvalue())

    def read_predictions(self) -> dict[str, NDArray[Any]]:
        """All arrays of ``predictions.npz``."""
        try:
            with np.load(self.predictions_path, allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError) as error:
            raise LmdError(f"{self.predictions_path} cannot be read: {error}") from error


def _unborn(path: Path) -> bool:
    """Nothing there, or what a run leaves that ended before it had a record."""
    inside = list(path.iterdir())
    return not inside or (inside == [path / "checkpoint"] and not any(inside[0].iterdir()))


RUN_FILES = (
    "checkpoint/state.safetensors",
    "record.json",
    "predictions.npz",
    "history.csv",
    "model.safetensors",
    "model.json",
    "report.html",
)
