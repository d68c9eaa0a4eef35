"""Cross-validation of one method: its folds are trained side by side, and one report is made."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from lmd.base.distributed import world
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_outside, locked, whole
from lmd.base.text import complaints
from lmd.benchmark.backends import Local
from lmd.benchmark.plan import Plan, Point, Row
from lmd.benchmark.planning import plan_run
from lmd.benchmark.run import open_board, run_plan
from lmd.crossval.record import Final, FoldRun, Folds
from lmd.data.dataset import fingerprint
from lmd.data.source import Columns, Source
from lmd.data.sources import open_table
from lmd.data.splits import fold_notes, imbalance_factor, make_folds, without_parts
from lmd.fit.recording import now, scored
from lmd.fit.spec import Spec, resolve
from lmd.fit.tracking import Tracking, check_trackers
from lmd.methods import DEFAULT, find_method
from lmd.model.files import AVERAGE
from lmd.predict.average import save_average
from lmd.report.card import write_pages
from lmd.runs.folder import FINAL, RUN_FILES, PartPredictions, Predictions, Run
from lmd.runs.record import Record, TablePart
from lmd.scoring.tiers import assign_tiers

NAME = "folds.json"
MODEL = ("model.safetensors", "model.json", "novelty.safetensors")
SHARED = (
    "Intervals take the images to be drawn at random, and the {n} models as given. Any two folds "
    "share training images, so their models are not independent; how much the numbers would differ "
    "with other training images, or with another seed, is not in the intervals, and cannot be "
    "estimated without bias from folds (Bengio and Grandvalet 2004)."
)
SHIPPED: dict[Final, str] = {
    "average": "The shipped model is the mean answer of the {n} models. It was not scored itself: "
    "every image is in the training part of most of them.",
    "refit": "The shipped model was trained on the images of all folds. It was not scored itself: "
    "no image is left for that.",
    "none": "No model is shipped; each fold has its own.",
}


class FoldsRequest(BaseModel):
    """The arguments of a cross-validation, complete enough to continue it; ``folds.json``."""

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

    def spec(self, **fold: Any) -> Spec:
        """Check the settings of one training."""
        source = Source(self.data, Columns.of(self.columns), self.skip_bad)
        settings, method = {**self.settings, **fold}, find_method(self.method)
        return resolve(method, self.protocol, settings, self.profile, source, images=self.images)


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
    once. ``log`` reports the numbers at the end. Other arguments are as in ``lmd.train``.
    """
    trackers = check_trackers(log)
    if world() > 1:
        raise LmdError("--folds cannot be used under torchrun: its trainings are processes already")
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
    request, folder, begun = _open(arguments, out, resume, overwrite)
    plan, spec = plan_folds(request), request.spec()
    table = open_table(request.data, skip_bad=request.skip_bad, **request.columns)
    table = without_parts(table, request.columns.get("split_column"))
    make_folds(table, request.folds, spec.protocol.split_seed)  # refuses what cannot be divided
    more = ["--folds", str(request.folds), "--final", request.final, "--out", str(folder)]
    with locked(folder, "training") as lock:
        if not begun:
            _clear(folder)
        atomic_write(folder / NAME, (request.model_dump_json(indent=1) + "\n").encode())

        def backend() -> Local:
            local = Local(folder, workers, keep=(lock,), share=False)
            if device != "auto":
                local.devices = [device] * local.workers
            return local

        outcome = run_plan(plan, folder, backend, open_board(Console(stderr=True, quiet=quiet)))
        if outcome.failed:
            name, why = next(iter(outcome.failed.items()))
            raise LmdError(
                f"{len(outcome.failed)} of {len(plan.runs)} trainings failed, {name}: {why}\n"
                f"Run `lmd train --resume --out {folder}` to train what is missing."
            )
        names = [run.name for run in plan.runs if run.name != FINAL]
        notes = fold_notes(table, request.folds)
        run = write_pooled(folder, names, request.final, notes, [*spec.command(), *more])
    say = partial(Console(stderr=True, quiet=quiet).print, markup=False, highlight=False)
    with Tracking(trackers, folder, run.record, say) as tracking:
        tracking.finish(run.record)
    return run


def plan_folds(request: FoldsRequest) -> Plan:
    """Plan one run for each fold, and one on all images for ``refit``; settings are checked."""
    method = find_method(request.method)
    names = {number: f"fold-{number}" for number in range(1, request.folds + 1)}
    names |= {0: FINAL} if request.final == "refit" else {}
    runs = [
        plan_run(name, request.spec(fold=[number, request.folds]), place)
        for place, (number, name) in enumerate(names.items())
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


def _open(
    arguments: dict[str, Any], out: str | Path | None, resume: bool, overwrite: bool
) -> tuple[FoldsRequest, Path, bool]:
    """Return the complete request, its folder, and whether it has begun there and is resumed."""
    if out is None:
        new = _complete(arguments, None)
        profile = "" if new.profile == "default" else f"-{new.profile}"
        name = f"{Path(new.data).stem}-{new.method}{profile}"
        out = Path("runs") / f"{name}-folds{new.folds}-seed{new.spec().protocol.seed}"
    folder = Path(out)
    before = _read(folder) if resume else None
    request = _complete(arguments, before)
    if before is not None:
        _check_same(folder, before, request)
        return request, folder, True
    if not (folder / NAME).exists():
        Run.check_free(folder, overwrite=overwrite)
    elif not overwrite:
        raise LmdError(
            f"{folder} already holds a cross-validation: continue it with --resume, choose another "
            "folder with --out, or replace it with --overwrite"
        )
    check_outside(folder, request.data)
    return request, folder, False


def _complete(arguments: dict[str, Any], before: FoldsRequest | None) -> FoldsRequest:
    """Complete the arguments with those ``before``, or the defaults.

    Without data, all arguments that are left out are as before. Paths become absolute, so that the
    cross-validation can be resumed from another folder; links stay, because images lie beside the
    link of a manifest.
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
        settings["weights"] = str(whole(settings["weights"]))
    if "root" in columns:
        columns["root"] = str(whole(columns["root"]))
    if values["data"] != "synthetic":
        values["data"] = str(whole(values["data"]))
    if (values.get("protocol") or "").endswith(".toml"):
        values["protocol"] = str(whole(values["protocol"]))
    try:
        return FoldsRequest.model_validate(values)
    except ValidationError as error:
        message = "; ".join(complaints(error, FoldsRequest, values, what="option"))
        raise LmdError(message) from None


def _read(folder: Path) -> FoldsRequest | None:
    """Read the request in a folder, or ``None`` if it has no cross-validation."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        return FoldsRequest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = str(error).splitlines()[0]
        raise LmdError(f"{path} cannot be read: {why}; restore it, or start again") from None


def _check_same(folder: Path, before: FoldsRequest, request: FoldsRequest) -> None:
    """Check that only the model at the end is another one: it needs no other folds."""
    pairs = zip(before, request, strict=True)
    changed = [f"{k}: {old} → {new}" for (k, old), (_, new) in pairs if k != "final" and old != new]
    if changed:
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + f"\nRun `lmd train --resume --out {folder}` to resume it, or choose another --out."
        )


def _clear(folder: Path) -> None:
    """Remove an earlier cross-validation or run, and nothing else."""
    runs = [*folder.glob("fold-*"), folder / FINAL]
    if not (folder / NAME).exists():  # a training may have replaced a cross-validation
        runs = [run for run in runs if (run / "record.json").exists()]
    logs = [folder / "logs"] if runs else []
    for path in filter(Path.is_dir, (folder / "checkpoint", *runs, *logs)):
        shutil.rmtree(path)
    # The files that mark the folder come last, so that this can be done again after a kill.
    for name in sorted((*RUN_FILES, "plan.json"), key=lambda name: name in (NAME, "record.json")):
        (folder / name).unlink(missing_ok=True)


def write_pooled(
    folder: Path, names: Sequence[str], final: Final, notes: Sequence[str], command: Sequence[str]
) -> Run:
    """Write one run folder from the finished folds ``names`` in it; the record comes last but one.

    ``notes`` are about the data; ``command`` are the words that repeat the cross-validation.
    """
    runs = [Run.open(folder / name) for name in names]
    for run in runs[1:]:
        if run.record.data.pixels != runs[0].record.data.pixels:
            raise LmdError(
                f"the images have changed between {runs[0].path.name} and {run.path.name} of "
                f"{folder}, so that their answers are not of one data set: start again with "
                "--overwrite"
            )
    predictions = _pooled(runs)
    record = _record(folder, runs, predictions, final, notes, shlex.join(command))
    # Nothing else that an earlier call may have shipped stays.
    for name in (*MODEL, AVERAGE):
        (folder / name).unlink(missing_ok=True)
    if final == "average":
        save_average(folder, list(names))
    elif final == "refit":
        # The weights come before their description: a folder with model.json is complete.
        for name in (name for name in MODEL if (folder / FINAL / name).exists()):
            atomic_write(folder / name, (folder / FINAL / name).read_bytes())
    run = Run(folder)
    run.write_predictions(predictions)
    run.write_record(record)
    write_pages(run)
    return run


def _pooled(runs: Sequence[Run]) -> Predictions:
    """Join the test predictions of all folds; groups, which stay whole, get new numbers."""
    parts: list[PartPredictions] = []
    groups: list[Any] = []
    for run in runs:
        if run.predictions is None or "test" not in run.predictions.parts:
            raise LmdError(f"{run.path} has no test predictions: train this fold again")
        parts.append(part := run.predictions.parts["test"])
        if part.groups is not None:
            groups.append(part.groups + (int(groups[-1].max()) + 1 if groups else 0))
    test = PartPredictions(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate(groups) if len(groups) == len(parts) else None,
    )
    if len(np.unique(test.ids)) < len(test.ids):
        raise LmdError("some images are in the test part of two folds: train all folds again")
    return Predictions(tuple(runs[0].record.data.classes), {"test": test})


def _record(
    folder: Path,
    runs: Sequence[Run],
    predictions: Predictions,
    final: Final,
    notes: Sequence[str],
    command: str,
) -> Record:
    records = [run.record for run in runs]
    first, test = records[0], predictions.parts["test"]
    classes = first.data.classes
    tested = np.bincount(test.labels, minlength=len(classes))
    trained = np.mean([r.data.counts["train"] for r in records], axis=0).round().astype(int)
    protocol = {key: value for key, value in first.protocol.items() if key != "fold"}
    labels = np.array(classes, dtype=np.str_)[test.labels]
    factor = imbalance_factor(tested)
    counts = {"train": trained, "validation": np.zeros_like(tested), "test": tested}
    data = first.data.model_copy(
        update={
            "fingerprint": fingerprint(test.ids, labels, np.full(len(labels), "test")),
            "counts": {part: numbers.tolist() for part, numbers in counts.items()},
            "imbalance_factor": factor if np.isfinite(factor) else None,
            "notes": _notes(records, final, notes),
        }
    )
    record = first.replaced(
        name=folder.name,
        created=min(r.created for r in records),
        command=command,
        request=first.request.model_copy(update={"protocol": protocol}),
        method=first.method.model_copy(update={"chosen": {}}),
        protocol=protocol,
        data=data,
        tiers=assign_tiers(trained, classes, str(protocol["tiers"])),
        # Each fold has a temperature of its own, which its probabilities contain.
        model=first.model.model_copy(update={"temperature": 1.0}),
        stages=[],
        stage_1_from=None,
        history=[],
        novelty=None,
        folds=Folds(runs=[_fold(run) for run in runs], final=final),
        timings={f"training {r.name}": sum(s.seconds for s in r.stages) for r in records},
        finished=now(),
        status="finished",
    )
    return scored(record, predictions)


def _notes(records: Sequence[Record], final: Final, notes: Sequence[str]) -> list[str]:
    """Return what is true of all folds, and what to know about a cross-validation."""
    n = len(records)
    return [
        *(note for note in records[0].data.notes if all(note in r.data.notes for r in records)),
        f"Cross-validation with {n} folds: every image was tested once, by the model of the fold "
        "that was not trained on it. The numbers of training images are means over the folds.",
        SHARED.format(n=n),
        "AUC compares probabilities across all images, which are of different models here.",
        SHIPPED[final].format(n=n),
        *notes,
    ]


def _fold(run: Run) -> FoldRun:
    record = run.record
    parts: tuple[TablePart, ...] = ("train", "validation", "test")
    return FoldRun(
        name=run.path.name,
        images={part: sum(record.data.counts.get(part, [])) for part in parts},
        temperature=record.model.temperature,
        balanced_accuracy=record.metrics["test"]["balanced_accuracy"].value,
    )
