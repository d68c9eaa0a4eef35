"""One complete run: prepare, fit, score, write."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from lmd.base.device import choose_device
from lmd.base.distributed import NotShareable, in_turn, joined, own_device, rank
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.progress import Display
from lmd.data.loaders import Normalise
from lmd.data.source import Columns
from lmd.decisions.shipped import answers_of
from lmd.explain.examples import FILE, Examples, make_examples
from lmd.explain.features import Kept, keep, size_line
from lmd.fit.prepare import Ready, announce, plan, prepare
from lmd.fit.provenance import source_digest
from lmd.fit.recording import finished_record, first_record
from lmd.fit.request import (
    WEIGHTS,
    given_names,
    is_complete,
    open_run,
    resolve,
    train_command,
    with_weights,
)
from lmd.fit.score import predict_parts
from lmd.fit.tracking import Tracking, checked_trackers
from lmd.methods import DEFAULT, find_method
from lmd.model import save_model
from lmd.predict.engines import TorchEngine
from lmd.report.card import write_card
from lmd.report.page import write_report
from lmd.runs.folder import Run
from lmd.runs.predictions import Predictions
from lmd.runs.record import Record, Request
from lmd.training import FirstStages, Trainer


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
    images: bool = True,
    columns: Mapping[str, Any] | None = None,
    device: str = "auto",
    quiet: bool = False,
    first_stages: str | Path | None = None,
    command: str | None = None,
    log: str | Sequence[str] | None = None,
) -> Run:
    """Train one method on one data set and write a complete run folder.

    ``data`` is anything that ``lmd.data.sources.open_table`` accepts; ``settings`` may have keys of
    the protocol and of the method. ``resume`` continues an interrupted run in ``out``, which ends
    with the same weights as without the interruption, and completes the files of a finished one.
    Only one training at a time works in a folder. Runs with the same folder ``first_stages`` train
    a first stage that they share only once. With ``keep_features`` the run folder gets
    ``neighbours.npz``; with ``images``, ``examples.npz`` and the report have pictures of a few test
    images. ``command`` is for the record; by default it is derived from the arguments. ``log``
    names experiment trackers: tensorboard, mlflow or wandb.
    """
    trackers = checked_trackers(log)
    given = dict(settings or {})
    resolved = resolve(find_method(method), protocol, given, profile)
    Columns.of(columns)
    request = Request(
        data=str(data) if data is not None else "",
        method=method,
        profile=profile,
        protocol=resolved.protocol.model_dump(mode="json"),
        settings=resolved.settings,
        columns=dict(columns or {}),
        skip_bad=skip_bad,
        keep_features=keep_features,
        images=images,
    )
    folder = Path(out) if out is not None else default_folder(request)
    here = own_device(choose_device(device))
    told = given_names(request, given, named=protocol is not None)
    opened = partial(open_run, resume=resume, overwrite=overwrite, given=told)
    with joined(here), ExitStack() as held:
        run, request, begun = in_turn(partial(opened, held, folder, request))
        if begun and in_turn(partial(is_complete, run)):
            return run
        with Display(quiet=quiet or rank() > 0) as display:
            planned = plan(request)
            if not begun and not told & {*WEIGHTS, "protocol"}:
                resolved, chosen = in_turn(partial(with_weights, resolved))
                request = request.model_copy(update={"protocol": request.protocol | chosen})
                given |= chosen
            words = train_command(request, protocol, given)
            words += ["--out", str(out)] if out is not None else []
            ready = prepare(request, planned, here, display)
            typed = command or shlex.join(words)
            start = partial(_start, run, ready, typed, resolved.notes, begun=begun)
            record = in_turn(start)
            announce(ready, record.method.notes, display)
            if ready.request.keep_features:
                count = int(ready.data.counts("train").sum())
                display.say(f"  {size_line(count, ready.model.classifier.in_features)}")
            known = len(run.read_history()) if resume else 0
            names = trackers if rank() == 0 else ()
            tracking = held.enter_context(Tracking(names, run.path, record, display.say, known))
            trainer = fit(
                run, ready, record, display, resume=resume, first_stages=first_stages,
                watch=tracking.epochs,
            )  # fmt: skip
            display.start("scoring", 4)
            predictions, temperature = predict_parts(ready, trainer)
            display.step(1)
            kept, examples = Kept(), None
            if rank() == 0:
                engine = TorchEngine(ready.model, ready.spec(temperature), ready.device)
                with trainer.timings.of("features"):
                    kept = _keep(engine, ready, predictions)
                if ready.request.images:
                    examples = make_examples(engine, ready.data, predictions)
                display.step(2)
                record = finished_record(record, trainer, predictions, temperature)
                record = record.replaced(novelty=kept.info)
                display.step(3)
            in_turn(partial(_write, run, ready, record, predictions, kept, examples))
            tracking.finish(record)
            display.stop()
    return run


def default_folder(request: Request) -> Path:
    """``runs/DATA-METHOD-seedN``, with the profile unless it is the default."""
    data = Path(request.data).stem or "run"
    profile = "" if request.profile == "default" else f"-{request.profile}"
    return Path("runs") / f"{data}-{request.method}{profile}-seed{request.protocol['seed']}"


def fit(
    run: Run,
    ready: Ready,
    record: Record,
    display: Display,
    *,
    resume: bool = False,
    first_stages: str | Path | None = None,
    watch: Callable[[list[dict[str, Any]]], None] | None = None,
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
        watch=watch,
    )
    trainer.timings.seconds["decode"] = ready.seconds
    try:
        trainer.fit(resume=resume)
    except NotShareable as error:
        raise LmdError(f"method {ready.method.key!r} with these settings: {error}") from error
    return trainer


def _start(run: Run, ready: Ready, command: str, notes: list[str], *, begun: bool) -> Record:
    """Write the first record, in place of a run that is overwritten.

    The data of a run that has begun must not have changed.
    """
    record = first_record(run, ready, command, notes)
    if begun:
        before = run.record
        if not before.data.same_as(record.data):
            raise LmdError(f"the data has changed since {run.path} was started: start a new run")
        kept = {"created": before.created, "command": before.command, "method": before.method}
        record = record.replaced(**kept)
    if rank() == 0:
        if not begun:
            Run.create(run.path, overwrite=True)
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
        "data": [record.data.fingerprint, record.data.pixels],
        "protocol": {k: v for k, v in record.protocol.items() if k not in later},
    }
    return FirstStages(Path(folder), context)


def _keep(engine: TorchEngine, ready: Ready, predictions: Predictions) -> Kept:
    """What is kept of the features, computed with the model as it is shipped."""
    test = predictions.parts.get("test")
    groups = test.groups if test is not None else None
    return keep(engine, ready.data, groups, neighbours=ready.request.keep_features)


def _write(
    run: Run,
    ready: Ready,
    record: Record,
    predictions: Predictions,
    kept: Kept,
    examples: Examples | None,
) -> None:
    """Write the files of a finished run, the record, the report and the card last."""
    if rank() > 0:
        return
    spec = ready.spec(record.model.temperature, *answers_of(record, predictions))
    save_model(ready.model, run.path, spec)
    kept.write(run.path)
    if examples is not None:
        atomic_write(run.path / FILE, examples.to_bytes())
    run.write_predictions(predictions)
    run.write_record(record)
    write_report(run)
    write_card(record, run.path)
