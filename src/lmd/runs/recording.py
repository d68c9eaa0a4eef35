"""What a run's record says: at its start, and with its numbers at the end."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lmd.base.distributed import world
from lmd.contract.method import Method
from lmd.data.imbalance import imbalance_factor
from lmd.data.prepare import Prepared
from lmd.data.splits import groups_in_two_parts
from lmd.data.table import PARTS
from lmd.model import Model
from lmd.protocol import Protocol
from lmd.runfolder.folder import FORMAT, Request, RunFolder
from lmd.runs.provenance import command, commit, machine, now, versions
from lmd.runs.rescore import score_parts
from lmd.training import Trainer


def first_record(
    run: RunFolder,
    method: Method,
    request: Request,
    protocol: Protocol,
    data: Prepared,
    model: Model,
    device: torch.device,
) -> dict[str, Any]:
    """All that is known before training; ``status`` is ``running``."""
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
            "file_sha256": _digest(Path(request.data)),
            "classes": list(table.classes),
            "counts": {part: data.counts(part).tolist() for part in PARTS},
            "imbalance_factor": imbalance_factor(data.counts("train")),
            "grouped": table.groups is not None,
            "skipped": list(data.skipped),
            "notes": _data_notes(data),
        },
        "groups": {"rule": data.tiers.rule, "assignment": list(data.tiers.assignment)},
        "model": {
            "backbone": protocol.backbone,
            "weights": protocol.weights,
            "head": method.head,
            "feature_dim": model.classifier.in_features,
            "parameters": sum(p.numel() for p in model.parameters()),
            "selected": _selected(protocol),
        },
        "machine": machine(device) | {"processes": world()},
    }


def _digest(source: Path) -> str | None:
    """SHA-256 of a manifest or an array file; ``None`` for a folder or generated images."""
    if not source.is_file():
        return None
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _selected(protocol: Protocol) -> str:
    if protocol.select == "last":
        return "the last epoch of each stage"
    return "the epoch of each stage with the best validation balanced accuracy"


def finish(
    run: RunFolder,
    record: dict[str, Any],
    data: Prepared,
    trainer: Trainer,
    predictions: dict[str, dict[str, Any]],
) -> None:
    """Score the predictions and complete the record."""
    run.write_predictions(data.table.classes, predictions)
    record |= score_parts(predictions, data.table.classes, data.tiers, data.counts("train"))
    record["notes"] = record["data"]["notes"] + record["notes"]
    record["stages"] = _stages(trainer.history)
    record["stage_1_from"] = trainer.taken_from
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
