"""Evaluate a run: from its predictions, with mirror images, or on images from elsewhere."""

import os
import shlex
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.data.source import Columns, Source
from lmd.decisions.decide import CostTable, Decide, Prevalence
from lmd.decisions.policy import Basis, make_policy
from lmd.fit.recording import now, scored
from lmd.report.card import write_card
from lmd.report.page import write_report
from lmd.runs.folder import PARTS, PartPredictions, Predictions, Run, paired, unborn
from lmd.runs.record import Record
from lmd.scoring.metrics import Sample

NOTE = (
    "Each prediction is the mean over the image and its three mirror images. The model of {run} "
    "answers so with --tta only; its temperature was fitted without mirror images."
)


def evaluate(
    run: str | PathLike[str],
    data: str | PathLike[str] | None = None,
    *,
    part: str | None = None,
    skip_unknown: bool = False,
    columns: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    tta: bool = False,
    against: str | PathLike[str] | None = None,
    prevalence: Prevalence | None = None,
    costs: CostTable | None = None,
    coverage: float | None = None,
    refer_above: int | None = None,
    resamples: int = 1000,
    images: bool = True,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Compute all numbers and the report of a run again, or score its model on other images.

    ``run`` is what ``lmd.train`` returned, or the path of a run folder. Without ``data``, the
    numbers come from the predictions of the run, and replace the record's numbers unless that has
    more ``resamples``; with ``tta``, its images are predicted again together with their mirror
    images, and the result is the folder ``RUN-tta``; ``data`` is where they are now, if they have
    moved. Otherwise ``data`` are labelled images from another place, and the result is a folder of
    its own: see docs/external.md. The report compares the result with ``against``, another run on
    the same test images; without ``images`` it has no pictures. The other arguments are as for
    ``lmd evaluate``. ``metrics`` of the result has the numbers.
    """
    path, decide = Path(run), Decide(prevalence, costs, coverage, refer_above)
    other = None if against is None else Path(against)
    if data is not None and not tta:
        from lmd.evaluation.external import evaluate_external

        result = evaluate_external(
            path, Source(os.fspath(data), Columns.of(columns), skip_bad), part=part,
            skip_unknown=skip_unknown, out=None if out is None else Path(out), overwrite=overwrite,
            against=other, decide=decide, resamples=resamples, device=device, quiet=quiet,
        )  # fmt: skip
    else:
        options = {"part": part, "out": out, "skip_unknown": skip_unknown, "overwrite": overwrite}
        for key, value in (options | {"skip_bad": skip_bad} | dict(columns or {})).items():
            if value:  # means nothing without the images of another place
                needed = "--data without --tta" if tta else "--data"
                raise LmdError(f"--{key.replace('_', '-')} needs {needed} as well")
        if other is not None:
            paired(Run.open(path), Run.open(other))  # refused before the first numbers appear
        if not tta:
            record = rescore(path, resamples=resamples, decide=decide, against=other, images=images)
            return Run(path, record)
        moved = None if data is None else os.fspath(data)
        result = evaluate_tta(
            path, moved, resamples=resamples, decide=decide, device=device, quiet=quiet
        )
    if other is not None:
        rescore(result.path, resamples=resamples, decide=decide, against=other)
    return result


def rescore(
    path: Path,
    *,
    resamples: int = 1000,
    decide: Decide = Decide(),
    against: Path | None = None,
    images: bool = True,
) -> Record:
    """Recompute the record's numbers from ``predictions.npz`` and rewrite record and report.

    With fewer ``resamples`` than the record has, nothing is written: its intervals are better.
    The report compares the run with ``against``, another run on the same test images.
    """
    run = Run.open(path).require_finished()
    before = run.record
    others = [] if against is None else [Run.open(against)]
    for other in others:
        paired(run, other)  # refused before anything is written
    predictions = run.predictions or run.read_predictions()
    record = scored(before, predictions, resamples=resamples, decide=decide)
    levels = [None if r.sets is None else r.sets.requested for r in (before, record)]
    if record.external is not None and levels[0] != levels[1]:
        external = record.external.model_copy(update={"coverage": None})
        record = record.replaced(external=external)
    if resamples < before.resamples:
        return record
    run.write_record(record)
    write_report(run, compare=others, resamples=resamples, images=images)
    if record.external is None and record.tta is None:
        write_card(record, path)
    return record


def compare_runs(a: Path, b: Path, *, resamples: int = 1000) -> str:
    """Return differences of two runs in all metrics as text, with paired intervals and p-values."""
    from lmd.report.text import format_comparison
    from lmd.scoring.differences import compare

    left = Run.open(a)
    mine, theirs = paired(left, Run.open(b))
    tiers = left.record.tiers.assignment
    first, second = (
        Sample(mine.labels, probabilities, tiers, mine.groups)
        for probabilities in (mine.probabilities, theirs)
    )
    title = (
        f"{a.name} minus {b.name}, in points, on the same {len(mine.ids)} test images (paired "
        "bootstrap; p by Holm for the number of metrics)"
    )
    return format_comparison(compare(first, second, resamples=resamples), title)


def evaluate_tta(
    path: Path,
    moved: str | None = None,
    *,
    resamples: int = 1000,
    decide: Decide = Decide(),
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Predict validation and test images with their mirror images, and score them.

    The run's own images are read again, from ``moved`` if they are no longer where they were. The
    results go to the folder ``RUN-tta`` beside the run, which is not changed.
    """
    from lmd.base.distributed import choose_device
    from lmd.base.progress import Display
    from lmd.data.dataset import images_of_run
    from lmd.predict.predictor import in_batches, load

    record = Run.open(path).require_finished().record
    if record.tta is not None:
        raise LmdError(f"--tta: {path} was made with --tta; give the folder of the run itself")
    if record.folds is not None:
        fold = path / record.folds.runs[0].name
        raise LmdError(f"--tta: {path} has the folds of a cross-validation; give one, as {fold}")
    folder = path.resolve().parent / f"{path.resolve().name}-tta"
    earlier = Run(folder)
    same = earlier.record_path.exists() and earlier.record.tta is not None
    if folder.exists() and not (folder.is_dir() and unborn(folder)) and not same:
        raise LmdError(f"--tta writes to {folder}, which holds something else: rename or remove it")
    # A mistake is found before images are read.
    make_policy(decide, Basis.of_run(record, Run.open(path).read_predictions()))
    predictor, started = load(path, choose_device(device)), time.perf_counter()
    parts = {}
    with Display(quiet=quiet) as display:
        data = images_of_run(record, moved, display)
        for part in PARTS:
            table, images = data.table.part(part), data.part(part)
            if not len(table):
                continue
            display.start(f"predicting mirror images of the {part} part", len(table))
            answers = predictor.infer(in_batches(images, display.step), tta=True)
            groups = table.group_numbers()
            parts[part] = PartPredictions(table.ids, images.labels, answers.probabilities, groups)
        display.stop()
    predictions = Predictions(predictor.classes, parts)
    command = ["lmd", "evaluate", str(path), "--tta", *(["--data", moved] if moved else [])]
    notes = [*record.data.notes, NOTE.format(run=record.name)]
    record = record.replaced(
        name=folder.name,
        command=shlex.join(command + decide.words()),
        created=now(),
        tta="flips",
        data=record.data.model_copy(update={"notes": notes}),
        timings={"predict": round(time.perf_counter() - started, 3)},
    )
    record = scored(record, predictions, resamples=resamples, decide=decide)
    folder.mkdir(exist_ok=True)
    run = Run(folder)
    run.write_predictions(predictions)
    run.write_record(record.replaced(finished=now()))
    write_report(run)
    return run
