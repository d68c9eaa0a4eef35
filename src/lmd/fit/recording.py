"""The record of a run: at its start, and with its numbers at the end."""

import hashlib
import math
from pathlib import Path
from typing import get_args

from lmd import __version__
from lmd.base.distributed import world
from lmd.data.dataset import Dataset
from lmd.data.imbalance import imbalance_factor
from lmd.data.splits import groups_in_two_parts
from lmd.fit.prepare import Ready
from lmd.fit.provenance import commit, machine, now
from lmd.fit.score import scored
from lmd.runs.folder import Run
from lmd.runs.predictions import Predictions
from lmd.runs.record import (
    DataInfo,
    Machine,
    MethodInfo,
    ModelInfo,
    Record,
    Request,
    StageInfo,
    TablePart,
)
from lmd.training import Trainer


def first_record(run: Run, ready: Ready, command: str, notes: list[str]) -> Record:
    """The record before training, with the status ``running``."""
    request, method, protocol, model = ready.request, ready.method, ready.protocol, ready.model
    return Record(
        status="running",
        name=run.path.name,
        created=now(),
        lmd_version=__version__,
        commit=commit(),
        command=command,
        request=request,
        method=MethodInfo(
            key=method.key,
            title=method.title,
            paper=method.paper,
            note=method.note,
            profile=request.profile,
            settings=request.settings,
            notes=notes,
        ),
        protocol=request.protocol,
        data=data_info(request, ready.data),
        tiers=ready.data.tiers,
        model=ModelInfo(
            backbone=protocol.backbone,
            weights=protocol.weights,
            head=method.head,
            feature_dim=model.classifier.in_features,
            parameters=sum(p.numel() for p in model.parameters()),
            selected="the last epoch of each stage"
            if protocol.select == "last" or not ready.data.counts("validation").any()
            else "the epoch of each stage with the best validation balanced accuracy",
            prior=method.mix(request.settings),
        ),
        machine=Machine(**machine(ready.device), processes=world()),
    )


def data_info(request: Request, data: Dataset) -> DataInfo:
    """What the record says about the images."""
    table, factor = data.table, imbalance_factor(data.counts("train"))
    return DataInfo(
        source=table.source,
        kind=table.kind,
        synthetic=table.synthetic,
        fingerprint=data.fingerprint(),
        file_sha256=file_digest(Path(request.data)),
        pixels=data.pixel_digest(),
        classes=list(table.classes),
        counts={part: data.counts(part).tolist() for part in get_args(TablePart)},
        imbalance_factor=factor if math.isfinite(factor) else None,
        grouped=table.groups is not None,
        skipped=list(data.skipped),
        notes=_data_notes(data),
    )


def file_digest(source: Path) -> str | None:
    """SHA-256 of a manifest or an array file; ``None`` for a folder or generated images."""
    if not source.is_file():
        return None
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finished_record(
    record: Record, trainer: Trainer, predictions: Predictions, temperature: float
) -> Record:
    """The record of a finished run, with all numbers."""
    stages = [StageInfo.model_validate(stage) for stage in trainer.summaries]
    chosen = {key: value for stage in stages for key, value in stage.chosen.items()}
    model = record.model.model_copy(
        update={
            "temperature": temperature,
            "feature_dim": trainer.model.classifier.in_features,
            "levels": list(trainer.model.levels),
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
        }
    )
    return scored(record.replaced(model=model), predictions).replaced(
        method=record.method.model_copy(update={"chosen": chosen}),
        stages=stages,
        stage_1_from=trainer.taken_from,
        history=trainer.history,
        timings={k: round(v, 3) for k, v in trainer.timings.seconds.items()},
        finished=now(),
        status="finished",
    )


# Not true of what chooses by cross-validation.
NO_VALIDATION = "There is no validation part: nothing was chosen on held-out images."


def _data_notes(data: Dataset) -> list[str]:
    notes = []
    if data.table.synthetic:
        notes.append("The images are synthetic: these numbers say nothing about patients.")
    if data.skipped:
        notes.append(f"{len(data.skipped)} images could not be used and were left out.")
    notes += [found.text for found in data.warnings if found.severity == "warning"]
    leaks = len(groups_in_two_parts(data.table))
    if leaks:
        notes.append(
            f"{leaks} groups (patients or lesions) are in more than one part: the numbers are "
            "better than they would be for new patients."
        )
    if data.counts("validation").sum() == 0:
        notes.append(NO_VALIDATION)
    return notes
