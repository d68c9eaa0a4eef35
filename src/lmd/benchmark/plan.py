"""The runs of a grid, by name, in the order in which they are done; no torch."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.benchmark.grid import read_grid

FORMAT = 1


@dataclass(frozen=True)
class Row:
    """A method as a table shows it; ``own`` is the reference and its ablations."""

    key: str
    title: str
    note: str
    own: bool = False


@dataclass(frozen=True)
class Point:
    """One combination of swept values, and whether it is the one that holds without a sweep."""

    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    usual: bool = False

    @property
    def title(self) -> str:
        """``lambda_1 = 0.1, r = 100``: a label that is a sentence of its own stays as it is.

        >>> Point({"lambda_1": "0.1", "data": "r = 100"}).title
        'lambda_1 = 0.1, r = 100'
        """
        parts = self.labels.items()
        return ", ".join(v if k == "data" or "=" in v else f"{k} = {v}" for k, v in parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run: its folder's name, what is trained, and the complete request of its record."""

    name: str
    method: str
    point: int
    seed: int
    stages: int
    request: dict[str, Any]
    command: list[str]
    first: str = ""  # the first stage by name and settings


@dataclass(frozen=True)
class Plan:
    """All runs of a grid; ``points`` has one empty point where nothing is swept.

    A method without any of the swept settings is run once, and its runs stand at point 0.
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

    def find(self, method: str, point: int) -> list[PlannedRun]:
        """The runs of one method at one point, by seed."""
        return [run for run in self.runs if (run.method, run.point) == (method, point)]


def grid_hash(name: str | Path) -> str:
    """Changes with the text of a grid and the folder that its paths start from."""
    text, base = read_grid(name)
    return hashlib.sha256(f"{base}\n{text}".encode()).hexdigest()


def write_plan(plan: Plan, folder: Path) -> None:
    """``plan.json``: tables are made from it without planning anew."""
    text = json.dumps({"format": FORMAT, **asdict(plan)}, indent=1, ensure_ascii=False)
    atomic_write(folder / "plan.json", (text + "\n").encode())


def read_plan(folder: Path) -> Plan | None:
    """The plan that a benchmark left in its folder, or ``None``."""
    path = folder / "plan.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            return None
        return Plan(
            **values
            | {
                "rows": [Row(**row) for row in values["rows"]],
                "points": [Point(**point) for point in values["points"]],
                "runs": [PlannedRun(**run) for run in values["runs"]],
            }
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LmdError(f"{path} cannot be read: {error}; remove it, it is made anew") from None
