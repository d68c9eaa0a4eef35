"""`lmd evaluate --tta`: a run's own images again, predicted together with their mirror images."""

import shlex
import time
from pathlib import Path

import numpy as np

from lmd.base.device import choose_device
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.loaders import evaluation_batches
from lmd.data.prepare import Prepared
from lmd.deploy.predict import Predictor, load
from lmd.report import write_report
from lmd.runfolder.folder import RunFiles, RunFolder, unborn
from lmd.runfolder.predictions import PARTS, PartPredictions, Predictions
from lmd.runfolder.record import Record
from lmd.runs.decide import known_of, with_prior
from lmd.runs.features import BATCH, images_of_run
from lmd.runs.provenance import now
from lmd.runs.score import scored
from lmd.scoring.rules import Wanted, make_rule

NOTE = (
    "Each prediction is the mean over the image and its three mirror images. The model of {run} "
    "answers so with --tta only; its temperature was fitted without mirror images."
)


def evaluate_tta(
    path: str | Path,
    moved: str | None = None,
    *,
    resamples: int = 1000,
    wanted: Wanted | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> RunFolder:
    """Predict validation and test images with their mirror images, and score them.

    The images are read again, from ``moved`` if they are no longer where they were, and must be
    those of the run. Numbers, predictions and report go to the folder ``RUN-tta`` beside the run,
    which has no model; the run itself is not changed.
    """
    path = Path(path)
    record = with_prior(_checked(path))
    folder = path.resolve().parent / f"{path.resolve().name}-tta"
    _check_out(folder)
    if wanted is not None:  # a mistake is found before images are read
        make_rule(wanted, known_of(record, RunFolder.open(path).read_predictions()))
    predictor, started = load(path, choose_device(device)), time.perf_counter()
    with Display(quiet=quiet) as display:
        data = images_of_run(record, moved, display)
        predictions = _predicted(predictor, data, display)
    words = ["lmd", "evaluate", str(path), "--tta", *(["--data", moved] if moved else [])]
    words += (wanted or Wanted()).words()
    note = NOTE.format(run=record.name)
    record = record.replaced(
        name=folder.name,
        command=shlex.join(words),
        created=now(),
        tta="flips",
        data=record.data.model_copy(update={"notes": [*record.data.notes, note]}),
        timings={"predict": round(time.perf_counter() - started, 3)},
    )
    record = scored(record, predictions, resamples=resamples, wanted=wanted)
    record = record.replaced(finished=now())
    folder.mkdir(exist_ok=True)
    made = RunFolder(folder)
    made.write_predictions(predictions)
    made.write_record(record)
    write_report(RunFiles(folder, record, predictions, record.history))
    return made


def _checked(path: Path) -> Record:
    record = RunFolder.open(path).read_record()
    if record.status != "finished":
        raise LmdError(f"{path} is not finished: run `lmd train --resume --out {path}`")
    if record.tta is not None:
        raise LmdError(f"--tta: {path} was made with --tta; give the folder of the run itself")
    if record.folds is not None:
        fold = path / record.folds.runs[0].name
        raise LmdError(f"--tta: {path} has the folds of a cross-validation; give one, as {fold}")
    return record


def _check_out(folder: Path) -> None:
    """Only an earlier evaluation of this kind is replaced."""
    if not folder.exists() or (folder.is_dir() and unborn(folder)):
        return
    run = RunFolder(folder)
    if not run.record_path.exists() or run.read_record().tta is None:
        raise LmdError(f"--tta writes to {folder}, which holds something else: rename or remove it")


def _predicted(predictor: Predictor, data: Prepared, display: Display) -> Predictions:
    parts = {}
    total = sum(len(data.table.part(part)) for part in PARTS)
    display.start("predicting mirror images", total)
    done = 0
    for part in PARTS:
        table, images = data.table.part(part), data.part(part)
        if not len(table):
            continue
        found = np.zeros((len(table), len(predictor.classes)), np.float32)
        for rows, pixels in evaluation_batches(images.pixels, BATCH):
            found[rows] = predictor.answer(pixels.numpy(), tta=True)[0]
            display.step(done + rows.stop, total)
        done += len(table)
        groups = None if table.groups is None else np.unique(table.groups, return_inverse=True)[1]
        parts[part] = PartPredictions(table.ids, images.labels, found, groups)
    display.stop()
    return Predictions(predictor.classes, parts)
