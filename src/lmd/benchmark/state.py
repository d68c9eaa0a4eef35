"""The state of a plan's runs on disk: finished, begun or missing, and how far; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.base.files import MISSING, what_is
from lmd.benchmark.plan import Plan, PlannedRun
from lmd.runs.folder import Run
from lmd.runs.record import Record


@dataclass(frozen=True)
class OnDisk:
    """A run's status and, if it is finished, the seconds of its training."""

    status: Literal["finished", "begun", "missing"]
    seconds: float = 0.0


def identify(plan: Plan, folder: Path | None = None) -> Plan:
    """Return the plan with the fingerprint of each run's data, where it can be read here.

    Reads lists of images, not their pixels. With ``folder``, raise an ``LmdError`` if the data of a
    run that is not finished there cannot be read, or has no validation part for trials.
    """
    opened: dict[str, str | LmdError] = {}
    runs = []
    for run in plan.runs:
        protocol = run.request["protocol"]
        key = f"{run.pixels} {protocol.get('fold')} {protocol['allow_leak']}"
        if key not in opened:
            opened[key] = _fingerprint(plan, run.request)
        found = opened[key]
        if isinstance(found, LmdError):
            if folder is not None and not is_finished(folder / run.name):
                raise found
            found = ""
        runs.append(replace(run, fingerprint=found))
    return replace(plan, runs=runs)


def _fingerprint(plan: Plan, request: Mapping[str, Any]) -> str | LmdError:
    """The fingerprint of the data of a run, or why it cannot be trained on."""
    from lmd.data.dataset import plan_data
    from lmd.data.source import Columns, Source
    from lmd.runs.protocol import Protocol

    for key, place in (("data", request["data"]), ("root", request["columns"].get("root"))):
        if place not in (None, "synthetic") and what_is(Path(place)) == MISSING:
            return LmdError(
                f"grid {plan.name}: {key} {place} does not exist; paths are relative to the grid "
                "file, or to the current folder for a grid of lmd"
            )
    protocol = Protocol.model_validate(request["protocol"])
    columns = Columns.of(request["columns"])
    try:
        data = plan_data(Source(request["data"], columns, request["skip_bad"]), protocol)
    except LmdError as error:
        return error
    if plan.trials and len(data.table.part("validation")) == 0:
        return LmdError(
            f"grid {plan.name}: [trials] choose on the validation part, which is empty in "
            f"{request['data']}: give the data one, or remove [trials] from the grid"
        )
    return data.fingerprint()


def is_finished(run: Path) -> bool:
    """Whether a run folder has the record of a finished run."""
    folder = Run(run)
    return folder.record_path.exists() and folder.record.status == "finished"


def inspect(plan: Plan, folder: Path) -> dict[str, OnDisk]:
    """The status of every run; an error names those that differ from the plan."""
    found, others = {}, []
    for run in plan.runs:
        on_disk = Run(folder / run.name)
        if not on_disk.record_path.exists():
            found[run.name] = OnDisk("missing")
            continue
        record = on_disk.record
        done = record.status == "finished"
        if changes := changes_since(record, run):
            others.append(f"  {folder / run.name}: " + "; ".join(changes))
        seconds = sum(stage.seconds for stage in record.stages)
        found[run.name] = OnDisk("finished", seconds) if done else OnDisk("begun")
    if others:
        raise LmdError(
            "these runs do not belong to this grid (run → grid):\n"
            + "\n".join(others)
            + "\nChoose another folder with --out, undo the change, or delete these runs to train "
            "them again."
        )
    return found


def changes_since(record: Record, run: PlannedRun) -> list[str]:
    """What differs between a run on disk and its plan, as ``key: before → now``.

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


def _without_places(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request without the places of its data."""
    columns = {key: value for key, value in request["columns"].items() if key != "root"}
    return {**request, "data": "", "columns": columns}


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
    rows = Run(folder / run.name).read_history()
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
            flat |= {(key, inner): v for inner, v in value.items()}
        else:
            flat[(key,)] = value
    return flat
