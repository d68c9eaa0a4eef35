"""The runs of a grid in the order in which they are trained; no torch."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.benchmark.grid import read_grid

FORMAT = 2


@dataclass(frozen=True)
class Row:
    """A method as a table shows it; ``own`` marks the reference and its ablations."""

    key: str
    title: str
    note: str
    own: bool = False


@dataclass(frozen=True)
class Point:
    """One combination of swept values; ``usual`` if it equals the values without a sweep."""

    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    usual: bool = False

    @property
    def title(self) -> str:
        """All labels, with the setting's name unless the label contains one.

        >>> Point({"lambda_1": "0.1", "data": "r = 100"}).title
        'lambda_1 = 0.1, r = 100'
        """
        parts = self.labels.items()
        return ", ".join(v if k == "data" or "=" in v else f"{k} = {v}" for k, v in parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run: its folder's name, what is trained, and the complete request of its record.

    ``fingerprint`` identifies images, labels and parts; empty if the data is not on this machine.
    """

    name: str
    method: str
    point: int
    seed: int
    epochs: list[int]  # of each stage
    request: dict[str, Any]
    command: list[str]
    tuned: str = ""  # the label of the tuned value; empty if the row is not tuned
    fingerprint: str = ""

    @property
    def pixels(self) -> str:
        """Everything that determines which images are decoded, as text."""
        keys = ("image_size", "imbalance", "shape", "head_size", "split", "split_seed")
        values = (self.request["protocol"][key] for key in keys)
        return json.dumps([self.request["data"], self.request["columns"], *values])


@dataclass(frozen=True)
class Trial:
    """The candidates of one setting of a row, by label; all ``rows`` use the chosen one."""

    method: str
    setting: str
    values: dict[str, Any]
    default: str
    seed: int
    rows: list[str]

    @property
    def candidates(self) -> str:
        """All labels in a line."""
        return ", ".join(self.values)


@dataclass(frozen=True)
class Plan:
    """All runs of a grid; ``points`` has one empty point if nothing is swept.

    A method without any of the swept settings is run once, at point 0. With ``trials``, ``runs``
    has every candidate of a tuned row, and a choice selects among them (``lmd.benchmark.trials``).
    """

    name: str
    title: str
    reference: str
    form: str
    seeds: list[int]
    rows: list[Row]
    points: list[Point]
    runs: list[PlannedRun]
    source: str = ""
    trials: list[Trial] = field(default_factory=list)


def grid_hash(name: str | Path) -> str:
    """Hash a grid's text and the folder that its paths are relative to."""
    text, base = read_grid(name)
    return hashlib.sha256(f"{base}\n{text}".encode()).hexdigest()


def write_plan(plan: Plan, folder: Path) -> None:
    """Write ``plan.json``, from which tables are made without planning again."""
    text = json.dumps({"format": FORMAT, **asdict(plan)}, indent=1, ensure_ascii=False)
    atomic_write(folder / "plan.json", (text + "\n").encode())


def read_plan(folder: Path) -> Plan | None:
    """Read the plan in a benchmark's folder; ``None`` without one of this format."""
    path = folder / "plan.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return TypeAdapter(Plan).validate_python(values) if values["format"] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LmdError(
            f"{path} cannot be read: {error}; delete it, and it will be written again"
        ) from None
