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
from lmd.base.files import atomic_write, check_outside, locked, whole
from lmd.base.text import complaints
from lmd.benchmark.local import Local
from lmd.benchmark.plan import Plan, Point, Row
from lmd.benchmark.planning import plan_run
from lmd.benchmark.run import open_board, run_plan
from lmd.crossval.pooling import Final, write_pooled
from lmd.data.source import Columns, Source
from lmd.data.sources import open_table
from lmd.data.splits import fold_notes, make_folds, without_parts
from lmd.fit.spec import Spec, resolve
from lmd.fit.tracking import Tracking, checked_trackers
from lmd.methods import DEFAULT, find_method
from lmd.runs.folder import FINAL, RUN_FILES, Run
from lmd.runs.protocol import Protocol

NAME = "folds.json"


class FoldsRequest(BaseModel):
    """What a cross-validation was asked for, complete enough to continue; ``folds.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    data: str
    folds: int = Field(default=5, ge=2)
    final: Final = "average"
    method: str = DEFAULT
    protocol: str | None = None
    settings: dict[str, Any] = {}
    profile: str = "default"
    columns: dict[str, Any] = {}
    skip_bad: bool = False
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
    arguments = {
        "data": None if data is None else str(data),
        "folds": folds,
        "final": final,
        "method": method,
        "protocol": None if protocol is None else str(protocol),
        "settings": dict(settings or {}),
        "profile": profile,
        "columns": dict(columns or {}),
        "skip_bad": skip_bad,
        "images": images,
    }
    request = _complete(arguments, before)
    if folder is None:
        folder = default_folder(request)
        before = _read(folder) if resume else None
        if before is not None and final is None:
            request = request.model_copy(update={"final": before.final})
    if before is not None:
        _check_same(folder, before, request)
    elif (folder / NAME).exists() and not overwrite:
        raise LmdError(
            f"{folder} already holds a cross-validation: continue it with --resume, choose another "
            "folder with --out, or replace it with --overwrite"
        )
    else:
        if not (folder / NAME).exists():
            Run.check_free(folder, overwrite=overwrite)
        check_outside(folder, request.data)
    plan, notes = plan_folds(request), _checked(request)
    with locked(folder, "training") as lock:
        if before is None:
            _clear(folder)
        atomic_write(folder / NAME, (request.model_dump_json(indent=1) + "\n").encode())
        board = open_board(Console(stderr=True, quiet=quiet))
        outcome = run_plan(plan, folder, lambda: _local(folder, workers, lock, device), board)
        if outcome.failed:
            name, why = next(iter(outcome.failed.items()))
            raise LmdError(
                f"{len(outcome.failed)} of {len(plan.runs)} trainings failed, {name}: {why}\n"
                f"Run `lmd train --resume --out {folder}` to train what is missing."
            )
        names = [run.name for run in plan.runs if run.name != FINAL]
        command = _command(request, folder)
        run = write_pooled(folder, names, request.final, notes, command)
    say = partial(Console(stderr=True, quiet=quiet).print, markup=False, highlight=False)
    with Tracking(trackers, folder, run.record, say) as tracking:
        tracking.finish(run.record)
    return run


def plan_folds(request: FoldsRequest) -> Plan:
    """Plan one run for each fold, and one on all images for ``refit``; settings are checked."""
    method = find_method(request.method)
    numbers = [*range(1, request.folds + 1), *([0] if request.final == "refit" else [])]
    runs = [
        plan_run(
            f"fold-{number}" if number else FINAL,
            _spec(request, {"fold": [number, request.folds]}),
            place,
        )
        for place, number in enumerate(numbers)
    ]
    return Plan(
        name=NAME,
        title=f"{request.folds} folds of {request.data}",
        reference=method.key,
        form="metrics",
        seeds=[runs[0].seed],
        rows=[Row(method.key, method.title, method.note)],
        points=[
            Point({"fold": run.name}, {"fold": run.request["protocol"]["fold"]}) for run in runs
        ],
        runs=runs,
    )


def _spec(request: FoldsRequest, fold: Mapping[str, Any]) -> Spec:
    """What one training is asked for."""
    method = find_method(request.method)
    source = Source(request.data, Columns.of(request.columns), request.skip_bad)
    settings = {**request.settings, **fold}
    return resolve(
        method, request.protocol, settings, request.profile, source, images=request.images
    )


def default_folder(request: FoldsRequest) -> Path:
    """``runs/DATA-METHOD-foldsN-seedN``, with the profile unless it is the default."""
    profile = "" if request.profile == "default" else f"-{request.profile}"
    seed = plan_folds(request).seeds[0]
    stem = Path(request.data).stem
    return Path("runs") / f"{stem}-{request.method}{profile}-folds{request.folds}-seed{seed}"


def _complete(arguments: dict[str, Any], before: FoldsRequest | None) -> FoldsRequest:
    """Complete the arguments with those ``before``, or the defaults.

    Without data, everything that is not given is as it was before. Paths become absolute, so that
    the cross-validation can be resumed from another folder.
    """
    unset = {name: field.default for name, field in FoldsRequest.model_fields.items()}
    unset |= {"folds": None, "final": None}
    values = {
        name: value
        for name, value in arguments.items()
        if value is not None and value != unset[name]
    }
    if before is not None and "data" in values:
        values = before.model_dump(include={"folds", "final"}) | values
    elif before is not None:
        for name in ("settings", "columns"):
            values[name] = getattr(before, name) | arguments[name]
        values = before.model_dump() | values
    elif "data" not in values:
        raise LmdError("there is no cross-validation to resume: give DATA, or its folder as --out")
    settings, columns = values.get("settings", {}), values.get("columns", {})
    if "fold" in settings:
        raise LmdError("--set fold is one fold of a cross-validation: leave it out with --folds")
    if isinstance(settings.get("weights"), str) and "." in settings["weights"]:
        settings["weights"] = _absolute(settings["weights"])
    if "root" in columns:
        columns["root"] = _absolute(columns["root"])
    if values["data"] != "synthetic":
        values["data"] = _absolute(values["data"])
    if (values.get("protocol") or "").endswith(".toml"):
        values["protocol"] = _absolute(values["protocol"])
    try:
        return FoldsRequest.model_validate(values)
    except ValidationError as error:
        message = "; ".join(complaints(error, FoldsRequest, values, what="option"))
        raise LmdError(message) from None


def _absolute(path: str | Path) -> str:
    # Links stay: images lie beside the link of a manifest, not beside what it points to.
    return str(whole(path))


def _read(folder: Path) -> FoldsRequest | None:
    """What was asked for in a folder, or ``None`` if it has no cross-validation."""
    place = folder / NAME
    if not place.exists():
        return None
    try:
        return FoldsRequest.model_validate_json(place.read_bytes())
    except (OSError, ValidationError) as error:
        said = str(error).splitlines()[0]
        raise LmdError(f"{place} cannot be read: {said}; restore it, or start again") from None


def _check_same(folder: Path, before: FoldsRequest, request: FoldsRequest) -> None:
    """Only the model at the end may be another one: it needs no other folds."""
    old, new = before.model_dump(exclude={"final"}), request.model_dump(exclude={"final"})
    changed = [f"{k}: {old[k]} → {new[k]}" for k in old if old[k] != new[k]]
    if changed:
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + f"\nRun `lmd train --resume --out {folder}` to resume it, or choose another --out."
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


def _checked(request: FoldsRequest) -> list[str]:
    """Notes about small classes; data that cannot be divided into folds is refused here."""
    protocol = Protocol.model_validate(plan_folds(request).runs[0].request["protocol"])
    found = open_table(request.data, skip_bad=request.skip_bad, **request.columns)
    table = without_parts(found, request.columns.get("split_column"))
    make_folds(table, request.folds, protocol.split_seed)
    return fold_notes(table, request.folds)


def _local(folder: Path, workers: int | None, lock: int, device: str) -> Local:
    made = Local(folder, workers, keep=(lock,), share=False)
    if device != "auto":
        made.devices = [device] * made.workers
    return made


def _command(request: FoldsRequest, folder: Path) -> Sequence[str]:
    """Return the words of the command that repeats the cross-validation."""
    words = _spec(request, {}).command()
    return [*words, "--folds", str(request.folds), "--final", request.final, "--out", str(folder)]
