"""The record of a run: where it was made, its data, and its numbers."""

import hashlib
import math
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from lmd import __file__ as package
from lmd import __version__
from lmd.base.distributed import world
from lmd.data.dataset import Dataset
from lmd.data.splits import groups_in_two_parts, imbalance_factor
from lmd.decisions.decide import Decide
from lmd.decisions.numbers import decisions_of
from lmd.decisions.policy import Basis
from lmd.runs.folder import Predictions
from lmd.runs.record import (
    DataInfo,
    Machine,
    MethodInfo,
    ModelInfo,
    Part,
    Record,
    Request,
    StageInfo,
    TablePart,
)
from lmd.scoring.metrics import Sample
from lmd.scoring.scores import calibration, definitions, score

if TYPE_CHECKING:
    import torch

    from lmd.fit.spec import Spec
    from lmd.model import Model
    from lmd.training.loop import Trainer


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine(device: "torch.device") -> Machine:
    """Return what a result may depend on besides the code."""
    import torch

    return Machine(
        python=platform.python_version(),
        torch=torch.__version__,
        platform=f"{platform.system()} {platform.machine()}",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        processes=world(),
    )


def commit() -> str | None:
    """Return the commit of the running code, with ``+`` if there are uncommitted changes."""
    root = Path(package).resolve().parents[2]
    if not (root / "pyproject.toml").exists():
        return None
    answers = []
    for words in ("rev-parse --short=12 HEAD", "status --porcelain --untracked-files=no -- src"):
        command = ["git", "-C", str(root), *words.split()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    head, changed = answers
    return head + ("+" if changed else "")


def file_digest(source: Path) -> str | None:
    """Return SHA-256 of a manifest or an array file; ``None`` for a folder or generated images."""
    if not source.is_file():
        return None
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def new_record(name: str, command: str, device: "torch.device", **parts: Any) -> Record:
    """Return the record of a run that begins now; ``parts`` are its other fields."""
    return Record(
        status="running",
        name=name,
        created=now(),
        lmd_version=__version__,
        commit=commit(),
        command=command,
        machine=machine(device),
        **parts,
    )


def first_record(
    name: str, spec: "Spec", data: Dataset, model: "Model", device: "torch.device", command: str
) -> Record:
    """Return the record before training, with the status ``running``."""
    method, protocol = spec.method, spec.protocol
    return new_record(
        name,
        command,
        device,
        request=spec.request,
        method=MethodInfo(
            key=method.key,
            title=method.title,
            paper=method.paper,
            note=method.note,
            profile=spec.profile,
            settings=spec.values,
            notes=list(spec.notes),
        ),
        protocol=spec.request.protocol,
        data=data_info(spec.request, data),
        tiers=data.tiers,
        model=ModelInfo(
            backbone=protocol.backbone,
            weights=protocol.weights,
            head=method.head,
            feature_dim=model.classifier.in_features,
            parameters=sum(p.numel() for p in model.parameters()),
            selected="the last epoch of each stage"
            if protocol.select == "last" or not data.counts("validation").any()
            else "the epoch of each stage with the best validation balanced accuracy",
            prior=method.mix(spec.values),
        ),
    )


# Not true of what chooses by cross-validation.
NO_VALIDATION = "There is no validation part: nothing was chosen on held-out images."


def data_info(request: Request, data: Dataset) -> DataInfo:
    """Return what the record says about the images."""
    table, sha256 = data.table, file_digest(Path(request.data).expanduser())
    factor = imbalance_factor(data.counts("train"))
    notes = []
    if table.synthetic:
        notes.append("The images are synthetic: these numbers say nothing about patients.")
    if data.skipped:
        notes.append(f"{len(data.skipped)} images could not be used and were left out.")
    notes += [finding.text for finding in data.warnings if finding.severity == "warning"]
    leaks = len(groups_in_two_parts(table))
    if leaks:
        notes.append(
            f"{leaks} groups (patients or lesions) are in more than one part: the numbers are "
            "better than they would be for new patients."
        )
    if data.counts("validation").sum() == 0:
        notes.append(NO_VALIDATION)
    return DataInfo(
        file_sha256=sha256,
        source=table.source,
        kind=table.kind,
        synthetic=table.synthetic,
        fingerprint=data.fingerprint(),
        pixels=data.pixel_digest(),
        classes=list(table.classes),
        counts={part: data.counts(part).tolist() for part in get_args(TablePart)},
        imbalance_factor=factor if math.isfinite(factor) else None,
        grouped=table.groups is not None,
        skipped=list(data.skipped),
        notes=notes,
    )


def trained_record(record: Record, trainer: "Trainer", temperature: float) -> Record:
    """Return the record of a run whose training has ended, without its numbers."""
    stages = [StageInfo.model_validate(stage) for stage in trainer.progress.stages]
    chosen = {key: value for stage in stages for key, value in stage.chosen.items()}
    model = record.model.model_copy(
        update={
            "temperature": temperature,
            "feature_dim": trainer.model.classifier.in_features,
            "levels": list(trainer.model.levels),
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
        }
    )
    return record.replaced(
        model=model,
        method=record.method.model_copy(update={"chosen": chosen}),
        stages=stages,
        stage_1_from=trainer.progress.taken_from,
        history=trainer.progress.history,
        timings={k: round(v, 3) for k, v in trainer.progress.timings.items()},
        finished=now(),
        status="finished",
    )


def scored(
    record: Record,
    predictions: Predictions,
    *,
    resamples: int = 1000,
    decide: Decide = Decide(),
) -> Record:
    """Return the record with the numbers that follow from predictions and decisions.

    Of an external validation only the external images are scored: the validation part, which gives
    the prediction sets, is the run's.
    """
    external = record.external is not None
    parts = {
        part: rows for part, rows in predictions.parts.items() if part == "test" or not external
    }
    temperatures = {part: _temperatures(record, part, rows.labels) for part, rows in parts.items()}
    basis = Basis.of_run(record, predictions)
    decisions = decisions_of(record, predictions, basis, decide)
    scores = {
        part: score(
            rows.labels,
            rows.probabilities,
            predictions.classes,
            record.tiers,
            record.data.counts["train"],
            groups=rows.groups,
            resamples=resamples,
            part="external" if external else part,
        )
        for part, rows in parts.items()
    }
    grouped = any(rows.groups is not None for rows in parts.values())
    return record.replaced(
        metrics={part: numbers.metrics for part, numbers in scores.items()},
        per_class={part: numbers.per_class for part, numbers in scores.items()},
        confusion={part: numbers.confusion for part, numbers in scores.items()},
        calibration={
            part: calibration(
                Sample(rows.labels, rows.probabilities, groups=rows.groups),
                temperatures[part],
                basis.prior,
                resamples=resamples,
            )
            for part, rows in parts.items()
        },
        **decisions,
        resamples=resamples,
        definitions=definitions(resamples, grouped=grouped),
        notes=[
            *record.data.notes,
            *record.method.notes,
            *(note for numbers in scores.values() for note in numbers.notes),
        ],
    )


def _temperatures(
    record: Record, part: Part, labels: NDArray[np.int64]
) -> float | NDArray[np.float64] | None:
    """Return what the logits were divided by: one number, or ``(N, 1)``, as each fold has its own.

    They are in the order of a ``Sample``, whose rows are sorted by class. ``None`` for means over
    mirror images, which have no logits.
    """
    if record.tta is not None:
        return None
    if record.folds is None or part != "test":
        return record.model.temperature
    folds = record.folds.runs
    images = [fold.images["test"] for fold in folds]
    values: NDArray[np.float64] = np.repeat([fold.temperature for fold in folds], images)
    return values[np.argsort(labels, kind="stable"), None]
