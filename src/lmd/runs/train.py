"""One complete run: prepare, fit, score, write."""

import shlex
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from lmd.base.device import choose_device
from lmd.base.distributed import NotShareable, in_turn, joined, own_device, rank
from lmd.base.errors import LmdError
from lmd.base.files import clear_leftovers
from lmd.base.lock import locked
from lmd.base.progress import Display
from lmd.data.loaders import Normalise
from lmd.data.sources.scan import check_columns
from lmd.deploy.engines import TorchEngine
from lmd.methods import DEFAULT, find_method
from lmd.model import save_model
from lmd.protocol import load_protocol
from lmd.report import write_report
from lmd.runfolder.folder import RunFiles, RunFolder
from lmd.runfolder.predictions import Predictions
from lmd.runfolder.record import Record, Request
from lmd.runs.decide import answers_of
from lmd.runs.features import Kept, keep, size_line
from lmd.runs.prepare import Ready, announce, plan, prepare
from lmd.runs.provenance import source_digest
from lmd.runs.recording import finished_record, first_record
from lmd.runs.request import resolve, train_command, with_weights
from lmd.runs.score import predict_parts
from lmd.training import FirstStages, Trainer

_WEIGHTS = ("backbone", "weights")


def train(
    data: str | Path | None = None,
    *,
    method: str = DEFAULT,
    protocol: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    profile: str = "default",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    skip_bad: bool = False,
    keep_features: bool = False,
    columns: Mapping[str, Any] | None = None,
    device: str = "auto",
    quiet: bool = False,
    first_stages: str | Path | None = None,
    command: str | None = None,
) -> RunFolder:
    """Train one method on one data set and write a complete run folder.

    ``data`` is anything that ``lmd.data.sources.open_table`` accepts; ``settings`` may have keys of
    the protocol and of the method. ``resume`` continues an interrupted run in ``out``, which ends
    with the same weights as without the interruption, and completes the files of a finished one.
    Only one training at a time works in a folder. Runs with the same folder ``first_stages`` train
    a first stage that they share only once. With ``keep_features`` the run folder gets
    ``neighbours.npz``. ``command`` is for the record; by default it is derived from the arguments.
    """
    given = dict(settings or {})
    resolved = resolve(find_method(method), protocol, given, profile)
    check_columns(columns or {})
    request = Request(
        data=str(data) if data is not None else "",
        method=method,
        profile=profile,
        protocol=resolved.protocol.model_dump(mode="json"),
        settings=resolved.settings,
        columns=dict(columns or {}),
        skip_bad=skip_bad,
        keep_features=keep_features,
    )
    folder = Path(out) if out is not None else default_folder(request)
    here = own_device(choose_device(device))
    free = protocol is None and not given.keys() & {*_WEIGHTS}
    with joined(here), ExitStack() as held:
        run, request = in_turn(partial(_open, held, folder, request, resume, overwrite, free))
        if in_turn(partial(_complete, run)):
            return run
        with Display(quiet=quiet or rank() > 0) as display:
            planned = plan(request)
            if free and not run.record_path.exists():
                resolved, chosen = in_turn(partial(with_weights, resolved))
                request = request.model_copy(update={"protocol": request.protocol | chosen})
                given |= chosen
            words = train_command(request, protocol, given)
            words += ["--out", str(out)] if out is not None else []
            ready = prepare(request, planned, here, display)
            typed = command or shlex.join(words)
            record = _start(run, ready, typed, resolved.notes, resume=resume)
            announce(ready, record.method.notes, display)
            if ready.request.keep_features:
                images = int(ready.data.counts("train").sum())
                display.say(f"  {size_line(images, ready.model.classifier.in_features)}")
            trainer = fit(run, ready, record, display, resume=resume, first_stages=first_stages)
            display.start("scoring", 4)
            predictions, temperature = predict_parts(ready, trainer)
            display.step(1)
            kept = Kept()
            if rank() == 0:
                with trainer.timings.of("features"):
                    kept = _keep(ready, predictions, temperature)
                display.step(2)
                record = finished_record(record, trainer, predictions, temperature)
                record = record.replaced(novelty=kept.info)
                display.step(3)
            in_turn(partial(_write, run, ready, record, predictions, kept))
            display.stop()
    return run


def default_folder(request: Request) -> Path:
    """``runs/DATA-METHOD-seedN``, with the profile unless it is the default."""
    data = Path(request.data).stem or "run"
    profile = "" if request.profile == "default" else f"-{request.profile}"
    return Path("runs") / f"{data}-{request.method}{profile}-seed{request.protocol['seed']}"


def fit(
    run: RunFolder,
    ready: Ready,
    record: Record,
    display: Display,
    *,
    resume: bool = False,
    first_stages: str | Path | None = None,
) -> Trainer:
    """Train all stages of the method; the trainer has the model and its history."""
    data, pre = ready.data, ready.preprocessing
    trainer = Trainer(
        model=ready.model,
        stages=ready.stages,
        train=data.part("train"),
        validation=data.part("validation"),
        protocol=ready.protocol,
        normalise=Normalise.of(pre.mean, pre.std, ready.device),
        folder=run.path,
        device=ready.device,
        display=display,
        first_stages=_first_stages(first_stages, record),
    )
    trainer.timings.seconds["decode"] = ready.seconds
    try:
        trainer.fit(resume=resume)
    except NotShareable as error:
        raise LmdError(f"method {ready.method.key!r} with these settings: {error}") from error
    return trainer


def _open(
    held: ExitStack, folder: Path, request: Request, resume: bool, overwrite: bool, free: bool
) -> tuple[RunFolder, Request]:
    """The run to resume, or a new run, whose folder the first process creates and locks.

    A resumed run keeps its backbone and weights if the user left the choice ``free``.
    """
    begun = resume and (folder / "record.json").exists()
    if not begun and not request.data:
        raise LmdError(f"there is no run to resume in {folder}: give DATA to start a new run")
    if rank() == 0:
        if not begun:
            RunFolder.check_free(folder, overwrite=overwrite)
        if not folder.exists():
            new = [folder, *takewhile(lambda above: not above.exists(), folder.parents)]
            held.callback(_forget_unborn, folder, new)
        held.enter_context(locked(folder, "training", remove=True))
        # Another training may have ended while this one waited for the lock.
        begun = resume and (folder / "record.json").exists()
        clear_leftovers(folder, folder / "checkpoint")
        if begun:
            RunFolder(folder).make_checkpoint_folder()
    if begun:
        return _reopen(folder, request, asked=bool(request.data), free=free)
    if rank() > 0:
        return RunFolder(folder), request
    return RunFolder.create(folder, overwrite=overwrite), request


def _forget_unborn(folder: Path, new: list[Path]) -> None:
    """Remove the ``new`` folders of a run that ended before it had a record."""
    if (folder / "record.json").exists():
        return
    with suppress(OSError):  # raised by the first one that is not empty
        for path in (folder / "checkpoint", *new):
            path.rmdir()


def _complete(run: RunFolder) -> bool:
    """Whether a run is finished and has all its files.

    What a finished run lacks and its other files contain is written again: a run may have been
    killed while its report was written.
    """
    if not run.record_path.exists():
        return False
    record = run.read_record()
    if record.status != "finished":
        return False
    lacks = run.lacks(record)
    if lacks - {"report.html", "history.csv"}:
        return False
    if lacks and rank() == 0:
        files = run.read()
        run.write_history(files.history)
        write_report(files)
    return True


def _reopen(
    folder: Path, request: Request, *, asked: bool, free: bool
) -> tuple[RunFolder, Request]:
    run = RunFolder.open(folder)
    before = run.read_record().request
    try:
        find_method(before.method).settings(before.settings)
        load_protocol(None, before.protocol)
    except LmdError as error:
        raise LmdError(
            f"{run.record_path}: field 'request': {error}; restore the file, or start a new run"
        ) from None
    old, new = before.model_dump(mode="json"), request.model_dump(mode="json")
    if free:
        new["protocol"] |= {key: old["protocol"].get(key) for key in _WEIGHTS}
    if asked and old != new:
        changed = [f"{k}: {old[k]} → {new[k]}" for k in old if old[k] != new[k]]
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + f"\nRun `lmd train --resume --out {folder}` to resume it, or start a new run."
        )
    return run, before


def _start(run: RunFolder, ready: Ready, command: str, notes: list[str], *, resume: bool) -> Record:
    """Write the first record; the data of a resumed run must not have changed."""
    record = first_record(run, ready, command, notes)
    if resume and run.record_path.exists():
        before = run.read_record()
        if before.data.fingerprint != record.data.fingerprint:
            raise LmdError(f"the data has changed since {run.path} was started: start a new run")
        kept = {"created": before.created, "command": before.command, "method": before.method}
        record = record.replaced(**kept)
    if rank() == 0:
        run.write_record(record)
    return record


def _first_stages(folder: str | Path | None, record: Record) -> FirstStages | None:
    """The first stages of runs with the same code, data, protocol and kind of machine."""
    if folder is None:
        return None
    later = {"stage2_epochs", "stage2_lr", "methods", "workers"}
    context = {
        "code": source_digest(),
        "machine": record.machine.model_dump(),
        "model": record.model.model_dump(exclude={"prior", "temperature"}),
        "data": record.data.fingerprint,
        "protocol": {k: v for k, v in record.protocol.items() if k not in later},
    }
    return FirstStages(Path(folder), context)


def _keep(ready: Ready, predictions: Predictions, temperature: float) -> Kept:
    """What is kept of the features, computed with the model as it is shipped."""
    engine = TorchEngine(ready.model, ready.spec(temperature), ready.device)
    test = predictions.parts.get("test")
    groups = test.groups if test is not None else None
    return keep(engine, ready.data, groups, neighbours=ready.request.keep_features)


def _write(
    run: RunFolder, ready: Ready, record: Record, predictions: Predictions, kept: Kept
) -> None:
    """Write the files of a finished run, the record and the report last."""
    if rank() > 0:
        return
    spec = ready.spec(record.model.temperature, *answers_of(record, predictions))
    save_model(ready.model, run.path, spec)
    kept.write(run.path)
    run.write_predictions(predictions)
    run.write_record(record)
    write_report(RunFiles(run.path, record, predictions, record.history))
