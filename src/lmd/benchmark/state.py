"""The state of a plan's runs on disk, and whether they belong to it; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.benchmark.plan import Plan, PlannedRun
from lmd.runs.folder import Run
from lmd.runs.record import Record


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
