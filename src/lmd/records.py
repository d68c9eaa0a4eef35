"""A run on disk: its folder, its record and its predictions."""

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmd import __version__
from lmd.errors import LmdError
from lmd.files import atomic_write

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


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine(device: torch.device) -> dict[str, Any]:
    """What a result may depend on beside the code."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit of the code that runs, with ``+`` where it has been changed since."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def source_digest() -> str:
    """Changes with every line of this package's code, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def command() -> str:
    """How this process was called, as a person would type it."""
    name = Path(sys.argv[0]).name
    words = ["lmd" if name in {"lmd", "__main__.py"} else name, *sys.argv[1:]]
    return " ".join(f"'{w}'" if " " in w else w for w in words)


def versions() -> dict[str, str]:
    """This package's own version."""
    return {"lmd_version": __version__}


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
