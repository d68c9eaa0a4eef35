"""The state of a plan's runs on disk: finished, begun or missing, and how far; no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.base.files import MISSING, what_is
from lmd.benchmark.plan import Plan, PlannedRun
from lmd.protocol import current_names
from lmd.runs.folder import RunFolder


@dataclass(frozen=True)
class OnDisk:
    """A run's status and, if it is finished, the seconds of its training."""

    status: Literal["finished", "begun", "missing"]
    seconds: float = 0.0


def inspect(plan: Plan, folder: Path) -> dict[str, OnDisk]:
    """The status of every run; an error names those that were made with other settings."""
    found, others = {}, []
    for run in plan.runs:
        on_disk = RunFolder(folder / run.name)
        if not on_disk.record_path.exists():
            found[run.name] = OnDisk("missing")
            continue
        record = on_disk.read_record()
        done = record.status == "finished"
        # A finished run may come from another machine, where the data had another place, and from
        # an older version, which lacked a setting. One that has begun must go on as it began.
        view = without_places if done else dict[str, Any]
        before = view(record.request.model_dump(mode="json"))
        changes = differences(before, view(run.request), common=done)
        if changes:
            others.append(f"  {folder / run.name}: " + "; ".join(changes))
        seconds = sum(stage.seconds for stage in record.stages)
        found[run.name] = OnDisk("finished", seconds) if done else OnDisk("begun")
    if others:
        raise LmdError(
            "the settings of these runs differ from the grid's (run → grid):\n"
            + "\n".join(others)
            + "\nChoose another folder with --out, undo the change, or delete these runs to train "
            "them again."
        )
    return found


def require_data(plan: Plan, disk: Mapping[str, OnDisk]) -> None:
    """An ``LmdError`` if the data of a run that is not finished does not exist."""
    wanted = [run.request for run in plan.runs if disk[run.name].status != "finished"]
    places = {str(request["data"]): "data" for request in wanted}
    places |= {str(r["columns"]["root"]): "root" for r in wanted if r["columns"].get("root")}
    for place, key in places.items():
        if place != "synthetic" and what_is(Path(place)) == MISSING:
            raise LmdError(
                f"grid {plan.name}: {key} {place} does not exist; paths are relative to the grid "
                "file, or to the current folder for a grid of lmd"
            )


def require_validation(plan: Plan, disk: Mapping[str, OnDisk]) -> None:
    """An ``LmdError`` if trials that are not finished have no validation part to choose on."""
    if not plan.trials:
        return
    from lmd.data.dataset import plan_data
    from lmd.protocol import Protocol

    wanted = [run.request for run in plan.runs if disk[run.name].status != "finished"]
    # All rows have the same data, unless a trial is about how it is split.
    keys = ("split", "split_seed", "imbalance", "shape", "head_size", "allow_leak", "tiers")
    seen: dict[str, dict[str, Any]] = {}
    for request in wanted:
        of = [request["data"], request["columns"], *(request["protocol"][key] for key in keys)]
        seen.setdefault(json.dumps(of), request)
    for request in seen.values():
        protocol = Protocol.model_validate(request["protocol"])
        columns, skip = request["columns"], request["skip_bad"]
        table = plan_data(request["data"], protocol, columns=columns, skip_bad=skip).table
        if len(table.part("validation")) == 0:
            raise LmdError(
                f"grid {plan.name}: [trials] choose on the validation part, which is empty in "
                f"{request['data']}: give the data one, or remove [trials] from the grid"
            )


def differences(before: dict[str, Any], now: dict[str, Any], *, common: bool = False) -> list[str]:
    """What differs between two requests, as ``key: before → now``, except loader workers.

    With ``common``, only keys that both have, and columns: an older run lacks settings that came
    later. A protocol's values for methods are then compared as the settings that they became.

    >>> differences({"protocol": {"lr": 1, "workers": 0}}, {"protocol": {"lr": 2, "workers": 1}})
    ['lr: 1 → 2']
    """
    old, new = _flat(before), _flat(now)
    keys = [key for key in {**old, **new} if key != ("protocol", "workers")]
    if common:
        own = ("protocol", "methods")
        both = [key for key in keys if key in old and key in new and key != own]
        # Columns are kept only where they were given: a missing one is another request.
        keys = [*both, *(key for key in keys if key[0] == "columns" and key not in both)]
    changed = [key for key in keys if old.get(key) != new.get(key)]
    return [f"{key[-1]}: {old.get(key)} → {new.get(key)}" for key in changed]


def without_places(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request with the data's name instead of its path, and without the root of the images."""
    columns = {key: value for key, value in request["columns"].items() if key != "root"}
    return {**request, "data": Path(request["data"]).name, "columns": columns}


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``done`` of ``total`` epochs, and stage and epoch as text."""

    done: int
    total: int
    where: str


def progress(run: PlannedRun, folder: Path) -> Progress:
    """Stage and epoch from a run's ``history.csv``."""
    protocol = run.request["protocol"]
    later = run.last_epochs or protocol["stage2_epochs"]
    # A stage between the first and the last is a single pass.
    epochs = [protocol["epochs"], *[1] * (run.stages - 2), later][: run.stages]
    rows = RunFolder(folder / run.name).read_history()
    if not rows:
        return Progress(0, sum(epochs), "starting")
    stage, epoch = (int(rows[-1][key] or 0) for key in ("stage", "epoch"))
    of = epochs[stage - 1] if stage <= len(epochs) else epoch
    where = f"stage {stage}, epoch {epoch}/{max(of, epoch)}"
    return Progress(min(len(rows), sum(epochs)), sum(epochs), where)


def _flat(request: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in request.items():
        if key in ("protocol", "settings", "columns") and isinstance(value, dict):
            # A run from before the protocol could choose the views had weak ones.
            views = {"views": "weak"} if key == "protocol" else {}
            flat |= {(key, inner): v for inner, v in (views | current_names(value)).items()}
        else:
            flat[(key,)] = value
    return flat
