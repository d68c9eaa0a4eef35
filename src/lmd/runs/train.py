"""From a data set to a run folder: the whole way through the house, in one function."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmd.base.device import choose_device
from lmd.base.distributed import NotShareable, in_turn, joined, own_device, rank
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.seeds import derive_seed
from lmd.contract.method import Method
from lmd.contract.stage import Task
from lmd.data.doctor import quick_check
from lmd.data.loaders import Normalise
from lmd.data.prepare import Prepared, prepare_data
from lmd.data.table import PARTS
from lmd.methods import DEFAULT, find_method
from lmd.model import Model, ModelSpec, Preprocessing, build_model, save_model
from lmd.protocol import Protocol
from lmd.report import write_report
from lmd.runfolder.folder import RunFolder
from lmd.runfolder.predictions import PARTS as SCORED
from lmd.runfolder.predictions import PartPredictions, Predictions
from lmd.runfolder.record import Record, Request
from lmd.runs.provenance import source_digest
from lmd.runs.recording import finish, first_record
from lmd.runs.request import resolve
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
    columns: Mapping[str, Any] | None = None,
    device: str = "auto",
    quiet: bool = False,
    first_stages: str | Path | None = None,
) -> RunFolder:
    """Train one method on one data set and write a complete run folder.

    ``data`` is what ``lmd.data.sources.open_table`` accepts; ``settings`` may hold keys of the
    protocol and of the method. With ``resume`` an interrupted run in ``out`` goes on, and ends
    with the very weights that it would have had without the interruption. Runs that are given one
    folder as ``first_stages`` train a first stage that they have in common only once.
    """
    row = find_method(method)
    asked = resolve(row, protocol, settings or {}, profile)
    request = Request(
        data=str(data) if data is not None else "",
        method=method,
        profile=profile,
        protocol=asked.protocol.model_dump(mode="json"),
        settings=asked.settings,
        columns=dict(columns or {}),
        skip_bad=skip_bad,
    )
    folder = Path(out) if out is not None else default_folder(request, asked.protocol)
    here = own_device(choose_device(device))
    with joined(here):
        run, request = in_turn(partial(_open, folder, request, resume, overwrite))
        if run.record_path.exists() and run.read_record().status == "finished":
            return run
        with Display(quiet=quiet or rank() > 0) as display:
            _train(run, request, asked.notes, here, display, resume, first_stages)
    return run


def default_folder(request: Request, protocol: Protocol) -> Path:
    """``runs/DATA-METHOD-seedN``, with the profile where it is not the default."""
    data = Path(request.data).stem or "run"
    profile = "" if request.profile == "default" else f"-{request.profile}"
    return Path("runs") / f"{data}-{request.method}{profile}-seed{protocol.seed}"


def _open(
    folder: Path, request: Request, resume: bool, overwrite: bool
) -> tuple[RunFolder, Request]:
    """The run to go on with, or a new one, which the first process makes for all."""
    if resume and (folder / "record.json").exists():
        return _reopen(folder, request, asked=bool(request.data))
    if not request.data:
        raise LmdError(f"there is no run to resume in {folder}: give DATA to start one")
    if rank() > 0:
        return RunFolder(folder), request
    return RunFolder.create(folder, overwrite=overwrite), request


def _reopen(folder: Path, request: Request, *, asked: bool) -> tuple[RunFolder, Request]:
    run = RunFolder.open(folder)
    before = run.read_record().request
    old, new = before.model_dump(mode="json"), request.model_dump(mode="json")
    if asked and old != new:
        changed = [f"{k}: {old[k]} → {new[k]}" for k in old if old[k] != new[k]]
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + "\nResume it with `lmd train --resume --out` alone, or start another run."
        )
    return run, before


def _train(
    run: RunFolder,
    request: Request,
    notes: list[str],
    device: torch.device,
    display: Display,
    resume: bool,
    first_stages: str | Path | None,
) -> None:
    method, protocol = find_method(request.method), Protocol.model_validate(request.protocol)
    display.start("decoding images", 1)
    started = time.perf_counter()
    data = in_turn(
        lambda: prepare_data(
            request.data,
            protocol,
            columns=request.columns,
            skip_bad=request.skip_bad,
            tick=display.advance,
        )
    )
    display.stop()
    decoding = time.perf_counter() - started
    model, preprocessing = in_turn(lambda: _build(method, protocol, len(data.table.classes)))
    task = Task(torch.from_numpy(data.counts("train")).to(device), model.classifier.in_features)
    record = first_record(run, method, request, protocol, notes, data, model, device)
    if resume and run.record_path.exists():
        before = run.read_record()
        if before.data.fingerprint != record.data.fingerprint:
            raise LmdError(f"the data have changed since {run.path} was started: start a new run")
        kept = record.method.model_copy(update={"notes": before.method.notes})
        record = record.replaced(created=before.created, command=before.command, method=kept)
    if rank() == 0:
        run.write_record(record)
    _announce(display, method, data, model)
    for note in record.method.notes:
        display.say(f"  settings: {note}")
    trainer = Trainer(
        model=model,
        stages=lambda: method.stages_for(model, task, request.settings),
        train=data.part("train"),
        validation=data.part("validation"),
        protocol=protocol,
        normalise=Normalise.of(preprocessing.mean, preprocessing.std, device),
        folder=run.path,
        device=device,
        display=display,
        first_stages=_first_stages(first_stages, record),
    )
    trainer.timings.seconds["decode"] = decoding
    try:
        trainer.fit(resume=resume)
    except NotShareable as error:
        raise LmdError(f"method {method.key!r} with these settings: {error}") from error
    display.start("scoring", 3)
    predictions = _predictions(data, trainer)
    display.step(1)

    def write() -> None:
        if rank() == 0:
            save_model(model, run.path, _spec(method, protocol, data, model, preprocessing))
            finished = finish(run, record, trainer, predictions)
            display.step(2)
            write_report(finished)

    in_turn(write)
    display.stop()


def _first_stages(folder: str | Path | None, record: Record) -> FirstStages | None:
    """The folder of first stages, for runs of the same code, data, protocol and kind of machine."""
    if folder is None:
        return None
    later = {"stage2_epochs", "stage2_lr", "methods", "workers"}
    context = {
        "code": source_digest(),
        "machine": record.machine.model_dump(),
        "model": record.model.model_dump(),
        "data": record.data.fingerprint,
        "protocol": {k: v for k, v in record.protocol.items() if k not in later},
    }
    return FirstStages(Path(folder), context)


def _build(method: Method, protocol: Protocol, classes: int) -> tuple[Model, Preprocessing]:
    torch.manual_seed(derive_seed(protocol.seed, "model"))
    return build_model(
        protocol.backbone,
        protocol.weights,
        classes,
        head=method.head,
        image_size=protocol.image_size,
    )


def _spec(
    method: Method, protocol: Protocol, data: Prepared, model: Model, preprocessing: Preprocessing
) -> ModelSpec:
    return ModelSpec(
        classes=data.table.classes,
        backbone=protocol.backbone,
        head=method.head,
        preprocessing=preprocessing,
        method=method.title,
        feature_dim=model.classifier.in_features,
        class_counts=tuple(int(n) for n in data.counts("train")),
    )


def _announce(display: Display, method: Method, data: Prepared, model: Model) -> None:
    parts = ", ".join(f"{int(data.counts(p).sum())} {p}" for p in PARTS)
    size = sum(p.numel() for p in model.parameters())
    display.say(
        f"{method.title} on {data.table.source}: {parts} images; "
        f"{size / 1e6:.1f} million parameters; head, medium, tail: {data.tiers.rule}"
    )
    for line in quick_check(data.table):
        display.say(f"  data: {line}")
    if data.skipped:
        display.say(f"  data: {len(data.skipped)} images were skipped; the record names them.")


def _predictions(data: Prepared, trainer: Trainer) -> Predictions:
    """Validation and test, each predicted once; several processes share the images."""
    parts = {}
    for part in SCORED:
        images = data.part(part)
        if len(images) == 0:
            continue
        table, groups = data.table.part(part), None
        if table.groups is not None:
            # Numbers, not names: who the patients are is nobody's business here.
            groups = np.unique(table.groups, return_inverse=True)[1]
        probabilities = trainer.predict(images).softmax(1).numpy()
        parts[part] = PartPredictions(table.ids, images.labels, probabilities, groups)
    return Predictions(data.table.classes, parts)
