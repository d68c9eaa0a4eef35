"""The runs of a grid in their order, and whether those on disk belong to them; no torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.benchmark.grid import read_grid
from lmd.runs.folder import Run
from lmd.runs.record import Record

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


@dataclass(frozen=True)
class OnDisk:
    """A run's status and, if it is finished, the seconds of its training."""

    status: Literal["finished", "begun", "missing"]
    seconds: float = 0.0


def inspect(plan: Plan, folder: Path) -> dict[str, OnDisk]:
    """Return the status of every run; an error names those that differ from the plan."""
    states, others = {}, []
    for planned in plan.runs:
        run = Run(folder / planned.name)
        if not run.record_path.exists():
            states[planned.name] = OnDisk("missing")
            continue
        if changes := changes_since(run.record, planned):
            others.append(f"  {run.path}: " + "; ".join(changes))
        seconds = sum(stage.seconds for stage in run.record.stages)
        finished = run.is_finished()
        states[planned.name] = OnDisk("finished", seconds) if finished else OnDisk("begun")
    if others:
        raise LmdError(
            "these runs do not belong to this grid (run → grid):\n"
            + "\n".join(others)
            + "\nChoose another folder with --out, undo the change, or delete these runs to train "
            "them again."
        )
    return states


def changes_since(record: Record, run: PlannedRun) -> list[str]:
    """Return what differs between a run on disk and its plan, as ``key: before → now``.

    A finished run may come from another machine, where the data had another place, and from an
    older version, which lacked a setting. One that has begun must go on as it began.
    """
    before, now = record.request.model_dump(mode="json"), run.request
    if record.status != "finished":
        return differences(before, now)
    changes = differences(_without_places(before), _without_places(now), common=True)
    # Which images cannot be read, and are left out, is known only after they were decoded.
    if run.fingerprint and not record.data.skipped:
        if record.data.fingerprint != run.fingerprint:
            places = f"{before['data']} → {now['data']}"
            changes.append(f"data: {places} (other images, labels or parts)")
    elif (old := Path(before["data"]).name) != (new := Path(now["data"]).name):
        changes.append(f"data: {old} → {new}")
    return changes


def differences(before: dict[str, Any], now: dict[str, Any], *, common: bool = False) -> list[str]:
    """Return what differs between two requests, as ``key: before → now``, except loader workers.

    With ``common``, only keys that both have, and columns: an older run lacks settings that came
    later. A protocol's values for methods are then compared as the settings that they became.

    >>> differences({"protocol": {"lr": 1, "workers": 0}}, {"protocol": {"lr": 2, "workers": 1}})
    ['lr: 1 → 2']
    """
    old, new = _flat(before), _flat(now)
    changes = []
    for key in {**old, **new}:
        # Only user-set columns are stored, so a missing column means a different request.
        both = (key in old and key in new and key != ("protocol", "methods")) or key[0] == "columns"
        if key == ("protocol", "workers") or (common and not both):
            continue
        if old.get(key) != new.get(key):
            changes.append(f"{key[-1]}: {old.get(key)} → {new.get(key)}")
    return changes


def _without_places(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request without the places of its data."""
    columns = {key: value for key, value in request["columns"].items() if key != "root"}
    return {**request, "data": "", "columns": columns}


def _flat(request: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in request.items():
        if key in ("protocol", "settings", "columns"):
            flat |= {(key, inner): v for inner, v in value.items()}
        else:
            flat[(key,)] = value
    return flat
