"""Cross-validation of one method: its folds are trained side by side, and one report is made."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from lmd.base.distributed import world
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_outside, whole
from lmd.base.lock import locked
from lmd.base.rules import complaints
from lmd.benchmark.local import Local
from lmd.benchmark.plan import Plan, PlannedRun, Point, Row
from lmd.benchmark.progress import open_board
from lmd.benchmark.run import run_plan
from lmd.crossval.pooling import Final, write_pooled
from lmd.data.sources import open_table
from lmd.data.splits import fold_notes, make_folds, without_parts
from lmd.fit.request import resolve, train_command
from lmd.fit.tracking import Tracking, checked_trackers
from lmd.methods import DEFAULT, find_method
from lmd.runs.folder import FINAL, RUN_FILES, Run
from lmd.runs.protocol import Protocol
from lmd.runs.record import Request

NAME = "folds.json"


class Asked(BaseModel):
    """What was asked for, complete enough to continue; ``folds.json`` in the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    data: str
    folds: int = Field(ge=2)
    final: Final
    method: str
    protocol: str | None
    settings: dict[str, Any]
    profile: str
    columns: dict[str, Any]
    skip_bad: bool
    images: bool = True


def cross_validate(
    data: str | Path | None = None,
    *,
    folds: int | None = None,
    final: Final | None = None,
    method: str = DEFAULT,
    protocol: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    profile: str = "default",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    skip_bad: bool = False,
    images: bool = True,
    columns: Mapping[str, Any] | None = None,
    workers: int | None = None,
    device: str = "auto",
    quiet: bool = False,
    log: str | Sequence[str] | None = None,
) -> Run:
    """Train one model for each fold, side by side, and score all images by the one that is blind.

    Every image is in the test part of one of the ``folds``, by default 5. The folder gets record,
    predictions and report of all test parts together, one run folder for each fold, and the model
    that ``final`` names: the mean answer of the folds' models (``average``, the default), one more
    model trained on all images (``refit``), or ``none``. ``workers`` is the number of trainings at
    once. ``log`` reports the numbers at the end. All other arguments are those of ``lmd.train``.
    """
    trackers = checked_trackers(log)
    if world() > 1:
        raise LmdError("--folds cannot be used under torchrun: its trainings are processes already")
    folder = Path(out) if out is not None else None
    before = _read(folder) if resume and folder is not None else None
    values: dict[str, Any] = {
        "folds": folds or (before.folds if before else 5),
        "final": final or (before.final if before else "average"),
    }
    if data is not None:
        values |= {"profile": profile, "skip_bad": skip_bad, "method": method}
        values |= {"images": images}
        values |= _located(data, protocol, dict(settings or {}), dict(columns or {}))
    elif before is not None:
        values = before.model_dump() | values
        given: dict[str, Any] = {"method": method} if method != DEFAULT else {}
        given |= {"profile": profile} if profile != "default" else {}
        given |= {"skip_bad": True} if skip_bad else {}
        given |= {"images": False} if not images else {}
        values |= given | _located(
            before.data,
            protocol if protocol is not None else before.protocol,
            before.settings | dict(settings or {}),
            before.columns | dict(columns or {}),
        )
    else:
        raise LmdError("there is no cross-validation to resume: give DATA, or its folder as --out")
    asked = _asked(values)
    if folder is None:
        folder = default_folder(asked)
        before = _read(folder) if resume else None
        if before is not None and final is None:
            asked = asked.model_copy(update={"final": before.final})
    if before is None:
        _check_free(folder, overwrite=overwrite)
        check_outside(folder, asked.data)
    else:
        _check_same(folder, before, asked)
    plan, notes = plan_folds(asked), _checked(asked)
    with locked(folder, "training") as lock:
        if before is None:
            _clear(folder)
        atomic_write(folder / NAME, (asked.model_dump_json(indent=1) + "\n").encode())
        board = open_board(Console(stderr=True, quiet=quiet))
        outcome = run_plan(plan, folder, lambda: _local(folder, workers, lock, device), board)
        if outcome.failed:
            name, why = next(iter(outcome.failed.items()))
            raise LmdError(
                f"{len(outcome.failed)} of {len(plan.runs)} trainings failed, {name}: {why}\n"
                f"Run `lmd train --resume --out {folder}` to train what is missing."
            )
        names = [run.name for run in plan.runs if run.name != FINAL]
        command = _command(asked, folder)
        run = write_pooled(folder, names, asked.final, notes, command)
    say = partial(Console(stderr=True, quiet=quiet).print, markup=False, highlight=False)
    with Tracking(trackers, folder, run.record, say) as tracking:
        tracking.finish(run.record)
    return run


def plan_folds(asked: Asked) -> Plan:
    """One run for each fold, and one on all images for ``refit``; settings are checked here."""
    method = find_method(asked.method)
    numbers = [*range(1, asked.folds + 1), *([0] if asked.final == "refit" else [])]
    runs = []
    for place, number in enumerate(numbers):
        given = asked.settings | {"fold": [number, asked.folds]}
        found = resolve(method, asked.protocol, given, asked.profile)
        request = Request(
            data=asked.data,
            method=method.key,
            profile=asked.profile,
            protocol=found.protocol.model_dump(mode="json"),
            settings=found.settings,
            columns=asked.columns,
            skip_bad=asked.skip_bad,
            images=asked.images,
        )
        runs.append(
            PlannedRun(
                name=f"fold-{number}" if number else FINAL,
                method=method.key,
                point=place,
                seed=found.protocol.seed,
                stages=len(method.stages),
                request=request.model_dump(mode="json"),
                command=train_command(request, asked.protocol, given),
                first=str(number),
                last_epochs=method.last_epochs(found.settings),
            )
        )
    return Plan(
        name=NAME,
        title=f"{asked.folds} folds of {asked.data}",
        reference=method.key,
        form="metrics",
        seeds=[runs[0].seed],
        rows=[Row(method.key, method.title, method.note)],
        points=[
            Point({"fold": run.name}, {"fold": run.request["protocol"]["fold"]}) for run in runs
        ],
        runs=runs,
    )


def default_folder(asked: Asked) -> Path:
    """``runs/DATA-METHOD-foldsN-seedN``, with the profile unless it is the default."""
    profile = "" if asked.profile == "default" else f"-{asked.profile}"
    seed = plan_folds(asked).seeds[0]
    stem = Path(asked.data).stem
    return Path("runs") / f"{stem}-{asked.method}{profile}-folds{asked.folds}-seed{seed}"


def _located(
    data: str | Path,
    protocol: str | Path | None,
    settings: dict[str, Any],
    columns: dict[str, Any],
) -> dict[str, Any]:
    """What has paths, with absolute ones, so that it can be resumed from another folder."""
    if "fold" in settings:
        raise LmdError("--set fold is one fold of a cross-validation: leave it out with --folds")
    if isinstance(settings.get("weights"), str) and "." in settings["weights"]:
        settings["weights"] = _absolute(settings["weights"])
    if "root" in columns:
        columns["root"] = _absolute(columns["root"])
    name = None if protocol is None else str(protocol)
    return {
        "data": str(data) if str(data) == "synthetic" else _absolute(data),
        "protocol": _absolute(name) if name is not None and name.endswith(".toml") else name,
        "settings": settings,
        "columns": columns,
    }


def _asked(values: dict[str, Any]) -> Asked:
    try:
        return Asked.model_validate(values)
    except ValidationError as error:
        raise LmdError("; ".join(complaints(error, Asked, values, what="option"))) from None


def _absolute(path: str | Path) -> str:
    # Links stay: images lie beside the link of a manifest, not beside what it points to.
    return str(whole(path))


def _read(folder: Path) -> Asked | None:
    """What was asked for in a folder, or ``None`` if it has no cross-validation."""
    place = folder / NAME
    if not place.exists():
        return None
    try:
        return Asked.model_validate_json(place.read_bytes())
    except (OSError, ValidationError) as error:
        said = str(error).splitlines()[0]
        raise LmdError(f"{place} cannot be read: {said}; restore it, or start again") from None


def _check_same(folder: Path, before: Asked, asked: Asked) -> None:
    """Only the model at the end may be another one: it needs no other folds."""
    old, new = before.model_dump(exclude={"final"}), asked.model_dump(exclude={"final"})
    changed = [f"{k}: {old[k]} → {new[k]}" for k in old if old[k] != new[k]]
    if changed:
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + f"\nRun `lmd train --resume --out {folder}` to resume it, or choose another --out."
        )


def _check_free(folder: Path, *, overwrite: bool) -> None:
    if not (folder / NAME).exists():
        Run.check_free(folder, overwrite=overwrite)
    elif not overwrite:
        raise LmdError(
            f"{folder} already holds a cross-validation: continue it with --resume, choose another "
            "folder with --out, or replace it with --overwrite"
        )


def _clear(folder: Path) -> None:
    """Remove an earlier cross-validation or run, and nothing else."""
    places = [folder / "checkpoint"]
    runs = [*folder.glob("fold-*"), folder / FINAL]
    if not (folder / NAME).exists():  # a training may have replaced a cross-validation
        runs = [run for run in runs if (run / "record.json").exists()]
    places += [*runs, *([folder / "logs"] if runs else [])]
    for place in filter(Path.is_dir, places):
        shutil.rmtree(place)
    # What a folder is known by comes last, so that this can be done again after a kill.
    for name in sorted((*RUN_FILES, "plan.json"), key=lambda name: name in (NAME, "record.json")):
        (folder / name).unlink(missing_ok=True)


def _checked(asked: Asked) -> list[str]:
    """Notes about small classes; data that cannot be divided into folds is refused here."""
    protocol = Protocol.model_validate(plan_folds(asked).runs[0].request["protocol"])
    found = open_table(asked.data, skip_bad=asked.skip_bad, **asked.columns)
    table = without_parts(found, asked.columns.get("split_column"))
    make_folds(table, asked.folds, protocol.split_seed)
    return fold_notes(table, asked.folds)


def _local(folder: Path, workers: int | None, lock: int, device: str) -> Local:
    made = Local(folder, workers, keep=(lock,))
    if device != "auto":
        made.devices = [device] * made.workers
    return made


def _command(asked: Asked, folder: Path) -> Sequence[str]:
    """The words of the command that repeats the cross-validation."""
    request = Request(
        **asked.model_dump(include={"data", "method", "profile", "columns", "skip_bad", "images"})
    )
    words = train_command(request, asked.protocol, asked.settings)
    return [*words, "--folds", str(asked.folds), "--final", asked.final, "--out", str(folder)]
