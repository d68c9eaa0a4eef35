"""The folds of a cross-validation as one run folder: predictions, record, report and model."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.crossval.record import FoldRun, Folds
from lmd.data.dataset import fingerprint
from lmd.data.imbalance import imbalance_factor
from lmd.fit.recording import now, scored
from lmd.model import AVERAGE
from lmd.predict.average import save_average
from lmd.report.card import write_card
from lmd.report.page import write_report
from lmd.runs.folder import FINAL, Run
from lmd.runs.predictions import PartPredictions, Predictions
from lmd.runs.record import Record, TablePart
from lmd.scoring.tiers import assign_tiers

Final = Literal["average", "refit", "none"]
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


def write_pooled(
    folder: Path, names: Sequence[str], final: Final, notes: Sequence[str], command: Sequence[str]
) -> Run:
    """Write one run folder from the finished folds ``names`` in it; the record comes last but one.

    ``notes`` are about the data; ``command`` are the words that repeat the cross-validation.
    """
    runs = [Run.open(folder / name) for name in names]
    for one in runs[1:]:
        if one.record.data.pixels != runs[0].record.data.pixels:
            raise LmdError(
                f"the images have changed between {runs[0].path.name} and {one.path.name} of "
                f"{folder}, so that their answers are not of one data set: start again with "
                "--overwrite"
            )
    predictions = pooled(runs)
    record = _record(folder, runs, predictions, final, notes, shlex.join(command))
    run = Run(folder)
    _write_model(folder, names, record, final)
    run.write_predictions(predictions)
    run.write_record(record)
    write_report(run)
    write_card(record, folder)
    return run


def pooled(runs: Sequence[Run]) -> Predictions:
    """The test predictions of all folds together; groups, which stay whole, get new numbers."""
    parts: list[PartPredictions] = []
    taken = 0
    for run in runs:
        found = run.predictions.parts.get("test") if run.predictions is not None else None
        if found is None:
            raise LmdError(f"{run.path} has no test predictions: train this fold again")
        groups = None
        if found.groups is not None:
            groups = found.groups + taken
            taken = int(groups.max()) + 1
        parts.append(PartPredictions(found.ids, found.labels, found.probabilities, groups))
    numbers = [part.groups for part in parts if part.groups is not None]
    whole = PartPredictions(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        np.concatenate(numbers) if len(numbers) == len(parts) else None,
    )
    if len(np.unique(whole.ids)) < len(whole.ids):
        raise LmdError("some images are in the test part of two folds: train all folds again")
    return Predictions(tuple(runs[0].record.data.classes), {"test": whole})


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
    trained = np.mean([one.data.counts["train"] for one in records], axis=0).round().astype(int)
    protocol = {key: value for key, value in first.protocol.items() if key != "fold"}
    labels = np.array(classes, dtype=np.str_)[test.labels]
    factor = imbalance_factor(tested)
    data = first.data.model_copy(
        update={
            "fingerprint": fingerprint(test.ids, labels, np.full(len(labels), "test")),
            "counts": {
                "train": trained.tolist(),
                "validation": [0] * len(classes),
                "test": tested.tolist(),
            },
            "imbalance_factor": factor if np.isfinite(factor) else None,
            "notes": _notes(records, final, notes),
        }
    )
    record = first.replaced(
        name=folder.name,
        created=min(one.created for one in records),
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
        timings={f"training {one.name}": sum(s.seconds for s in one.stages) for one in records},
        finished=now(),
        status="finished",
    )
    return scored(record, predictions)


def _fold(run: Run) -> FoldRun:
    record = run.record
    parts: tuple[TablePart, ...] = ("train", "validation", "test")
    found = record.metrics["test"]["balanced_accuracy"]
    return FoldRun(
        name=run.path.name,
        images={part: sum(record.data.counts.get(part, [])) for part in parts},
        temperature=record.model.temperature,
        balanced_accuracy=found.value,
    )


def _notes(records: Sequence[Record], final: Final, notes: Sequence[str]) -> list[str]:
    """What is true of all folds, and what to know about a cross-validation."""
    n = len(records)
    common = [note for note in records[0].data.notes if all(note in r.data.notes for r in records)]
    return [
        *common,
        f"Cross-validation with {n} folds: every image was tested once, by the model of the fold "
        "that was not trained on it. The numbers of training images are means over the folds.",
        SHARED.format(n=n),
        "AUC compares probabilities across all images, which are of different models here.",
        SHIPPED[final].format(n=n),
        *notes,
    ]


def _write_model(folder: Path, names: Sequence[str], record: Record, final: Final) -> None:
    """Ship what ``final`` asks for, and nothing else that an earlier call may have shipped."""
    for name in (*MODEL, AVERAGE):
        (folder / name).unlink(missing_ok=True)
    if final == "average":
        save_average(folder, list(names))
    elif final == "refit":
        # The weights come before their description: a folder with model.json is complete.
        for name in (name for name in MODEL if (folder / FINAL / name).exists()):
            atomic_write(folder / name, (folder / FINAL / name).read_bytes())
