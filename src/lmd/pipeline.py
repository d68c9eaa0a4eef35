"""From a data set to a run folder: the whole way through the house, in one function."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lmd.data.imbalance import imbalance_factor
from lmd.data.loaders import Normalise, derive_seed
from lmd.data.prepare import Prepared, prepare_data
from lmd.data.splits import groups_in_two_parts
from lmd.data.table import PARTS
from lmd.errors import LmdError
from lmd.method import Method
from lmd.methods import METHODS
from lmd.model import Model, ModelSpec, build_model, save_model
from lmd.protocol import Protocol, load_protocol
from lmd.records import FORMAT, RunFolder, command, commit, machine, now, versions
from lmd.report import write_report
from lmd.rescore import score_parts
from lmd.stage import Task
from lmd.training import Display, Trainer


@dataclass(frozen=True)
class Request:
    """All that was asked for: what ``--resume`` needs to go on."""

    data: str
    method: str
    profile: str = "default"
    protocol: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    skip_bad: bool = False


def find_method(key: str) -> Method:
    """The row of ``METHODS`` with this key."""
    if key not in METHODS:
        raise LmdError(f"unknown method {key!r}; the methods are: {', '.join(METHODS)}")
    return METHODS[key]


def resolve(
    method: Method, protocol: str | Path | None, given: Mapping[str, Any], profile: str = "default"
) -> tuple[Protocol, dict[str, Any]]:
    """Sort settings into the protocol's and the method's, and complete both.

    A key of the protocol overrides its file; every other key must be a setting of the method.
    """
    shared = {k: v for k, v in given.items() if k in Protocol.model_fields}
    own = {k: v for k, v in given.items() if k not in Protocol.model_fields}
    known = method.defaults()
    for key in own:
        if key not in known:
            raise LmdError(
                f"unknown setting {key!r}. Settings of method {method.key!r}: "
                f"{', '.join(sorted(known)) or 'none'}. Settings of the protocol: "
                f"{', '.join(sorted(Protocol.model_fields))}."
            )
    complete = load_protocol(protocol, shared)
    in_file = complete.methods.get(method.family or method.key, {})
    in_file = in_file | complete.methods.get(method.key, {})
    return complete, method.settings({**in_file, **own}, profile)


def train(
    data: str | Path | None = None,
    *,
    method: str = "lmd",
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
) -> RunFolder:
    """Train one method on one data set and write a complete run folder.

    ``data`` is what ``lmd.data.sources.open_table`` accepts; ``settings`` may hold keys of the
    protocol and of the method. With ``resume`` an interrupted run in ``out`` goes on, and ends
    with the very weights that it would have had without the interruption.
    """
    row = find_method(method)
    complete, own = resolve(row, protocol, settings or {}, profile)
    request = Request(
        str(data) if data is not None else "",
        method,
        profile,
        complete.model_dump(mode="json"),
        own,
        dict(columns or {}),
        skip_bad,
    )
    folder = Path(out) if out is not None else default_folder(request, complete)
    if resume and (folder / "record.json").exists():
        run, request = _reopen(folder, request, asked=data is not None)
        row, complete = find_method(request.method), Protocol.model_validate(request.protocol)
        if run.read_record()["status"] == "finished":
            return run
    elif data is None:
        raise LmdError(f"there is no run to resume in {folder}: give DATA to start one")
    else:
        run = RunFolder.create(folder, overwrite=overwrite)
    with Display(quiet=quiet) as display:
        _train(run, row, request, complete, choose_device(device), display, resume)
    return run


def default_folder(request: Request, protocol: Protocol) -> Path:
    """``runs/DATA-METHOD-seedN``, with the profile where it is not the default."""
    data = Path(request.data).stem or "run"
    profile = "" if request.profile == "default" else f"-{request.profile}"
    return Path("runs") / f"{data}-{request.method}{profile}-seed{protocol.seed}"


def choose_device(name: str) -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LmdError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LmdError("no GPU is available here: use --device cpu")
    return device


def _reopen(folder: Path, request: Request, *, asked: bool) -> tuple[RunFolder, Request]:
    run = RunFolder.open(folder)
    before = Request(**run.read_record()["request"])
    if asked and asdict(before) != asdict(request):
        old, new = asdict(before), asdict(request)
        changed = [f"{k}: {old[k]} → {new[k]}" for k in old if old[k] != new[k]]
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + "\nResume it with `lmd train --resume --out` alone, or start another run."
        )
    return run, before


def _train(
    run: RunFolder,
    method: Method,
    request: Request,
    protocol: Protocol,
    device: torch.device,
    display: Display,
    resume: bool,
) -> None:
    display.start("decoding images", 1)
    data = prepare_data(
        request.data,
        protocol,
        columns=request.columns,
        skip_bad=request.skip_bad,
        tick=display.advance,
    )
    display.stop()
    torch.manual_seed(derive_seed(protocol.seed, "model"))
    model, preprocessing = build_model(
        protocol.backbone,
        protocol.weights,
        len(data.table.classes),
        head=method.head,
        image_size=protocol.image_size,
    )
    task = Task(torch.from_numpy(data.counts("train")).to(device), model.classifier.in_features)
    record = _first_record(run, method, request, protocol, data, model, device)
    if resume and run.record_path.exists():
        before = run.read_record()
        if before["data"]["fingerprint"] != record["data"]["fingerprint"]:
            raise LmdError(f"the data have changed since {run.path} was started: start a new run")
        record["created"], record["command"] = before["created"], before["command"]
    run.write_record(record)
    _announce(display, method, data, model)
    trainer = Trainer(
        model=model,
        stages=lambda: method.make(model, task, **request.settings),
        train=data.part("train"),
        validation=data.part("validation"),
        protocol=protocol,
        normalise=Normalise.of(preprocessing.mean, preprocessing.std, device),
        folder=run.path,
        device=device,
        display=display,
    )
    trainer.fit(resume=resume)
    display.start("scoring", 3)
    spec = ModelSpec(
        classes=data.table.classes,
        backbone=protocol.backbone,
        head=method.head,
        preprocessing=preprocessing,
        method=method.title,
        feature_dim=model.classifier.in_features,
        class_counts=tuple(int(n) for n in data.counts("train")),
    )
    save_model(model, run.path, spec)
    display.step(1)
    _finish(run, record, data, trainer)
    display.step(2)
    write_report(run.path)
    display.stop()


def _announce(display: Display, method: Method, data: Prepared, model: Model) -> None:
    counts = data.counts("train")
    parts = ", ".join(f"{int(data.counts(p).sum())} {p}" for p in PARTS)
    display.say(
        f"{method.title} on {data.table.source}: {parts} images, {len(counts)} classes, "
        f"imbalance factor {imbalance_factor(counts):.0f}"
    )
    if data.skipped:
        display.say(f"{len(data.skipped)} images were skipped; the record names them")
    size = sum(p.numel() for p in model.parameters())
    display.say(f"{size / 1e6:.1f} million parameters; head, medium, tail: {data.groups.rule}")


def _first_record(
    run: RunFolder,
    method: Method,
    request: Request,
    protocol: Protocol,
    data: Prepared,
    model: Model,
    device: torch.device,
) -> dict[str, Any]:
    table = data.table
    return {
        "format": FORMAT,
        "status": "running",
        "name": run.path.name,
        "created": now(),
        "finished": None,
        **versions(),
        "commit": commit(),
        "command": command(),
        "request": asdict(request),
        "method": {
            "key": method.key,
            "title": method.title,
            "paper": method.paper,
            "note": method.note,
            "profile": request.profile,
            "settings": request.settings,
        },
        "protocol": request.protocol,
        "data": {
            "source": table.source,
            "kind": table.kind,
            "synthetic": table.synthetic,
            "fingerprint": data.fingerprint(),
            "classes": list(table.classes),
            "counts": {part: data.counts(part).tolist() for part in PARTS},
            "imbalance_factor": imbalance_factor(data.counts("train")),
            "grouped": table.groups is not None,
            "skipped": list(data.skipped),
            "notes": _data_notes(data),
        },
        "groups": {"rule": data.groups.rule, "assignment": list(data.groups.assignment)},
        "model": {
            "backbone": protocol.backbone,
            "weights": protocol.weights,
            "head": method.head,
            "feature_dim": model.classifier.in_features,
            "parameters": sum(p.numel() for p in model.parameters()),
            "selected": _selected(protocol),
        },
        "machine": machine(device),
    }


def _selected(protocol: Protocol) -> str:
    if protocol.select == "last":
        return "the last epoch of each stage"
    return "the epoch of each stage with the best validation balanced accuracy"


def _finish(run: RunFolder, record: dict[str, Any], data: Prepared, trainer: Trainer) -> None:
    """Score validation and test, each once, and complete the record."""
    predictions = {}
    for part in ("validation", "test"):
        images = data.part(part)
        if len(images) == 0:
            continue
        predictions[part] = {
            "ids": data.table.part(part).ids,
            "labels": images.labels,
            "probabilities": trainer.predict(images).softmax(1).numpy(),
        }
    run.write_predictions(data.table.classes, predictions)
    record |= score_parts(predictions, data.table.classes, data.groups, data.counts("train"))
    record["notes"] = record["data"]["notes"] + record["notes"]
    record["stages"] = _stages(trainer.history)
    record["timings"] = {k: round(v, 3) for k, v in trainer.timings.seconds.items()}
    record |= {"finished": now(), "status": "finished"}
    run.write_record(record)


def _data_notes(data: Prepared) -> list[str]:
    notes = []
    if data.table.synthetic:
        notes.append("The images are synthetic: these numbers say nothing about patients.")
    if data.skipped:
        notes.append(f"{len(data.skipped)} images could not be used and were left out.")
    leaks = len(groups_in_two_parts(data.table))
    if leaks:
        notes.append(
            f"{leaks} groups (patients or lesions) are in more than one part: the numbers are "
            "better than they would be on new patients."
        )
    if data.counts("validation").sum() == 0:
        notes.append("There is no validation part: nothing was chosen on held-out images.")
    return notes


def _stages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stages: dict[int, dict[str, Any]] = {}
    for row in history:
        stage = stages.setdefault(
            row["stage"], {"name": row["stage_name"], "epochs": 0, "seconds": 0.0}
        )
        stage["epochs"] += 1
        stage["seconds"] = round(stage["seconds"] + row["seconds"], 3)
    return list(stages.values())
