"""External validation: a shipped model on labelled images from another place."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd import __version__
from lmd.base.distributed import choose_device
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.source import Columns
from lmd.data.table import Table
from lmd.decisions.decide import Decide
from lmd.decisions.numbers import score_sets
from lmd.decisions.policy import Basis, make_policy
from lmd.evaluation.images import (
    Answers,
    external_data,
    known_rows,
    open_external,
    predicted,
    unknown_classes,
)
from lmd.evaluation.record import External
from lmd.evaluation.shift import (
    class_shifts,
    compare_metrics,
    confidence_shift,
    mix_distance,
    shared,
)
from lmd.fit.recording import commit, machine, now, scored
from lmd.model.files import weights_digest
from lmd.predict.predictor import load
from lmd.report.page import write_report
from lmd.runs.folder import Run, matched, paired, scored_part
from lmd.runs.predictions import PartPredictions, Predictions
from lmd.runs.record import Part, Record
from lmd.scoring.metrics import Sample
from lmd.scoring.scores import share_of


def evaluate_external(
    run: str | Path,
    data: str | Path,
    *,
    part: str | None = None,
    skip_unknown: bool = False,
    columns: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    against: Path | None = None,
    decide: Decide = Decide(),
    resamples: int = 1000,
    device: str = "auto",
    quiet: bool = False,
    command: str | None = None,
) -> Run:
    """Score the model of a run on the labelled images of ``data``, and write a folder of its own.

    ``data`` is anything that training takes; all its images are used, or those of one ``part``. The
    classes are matched by name. Images of a class that the model does not know are an error, or are
    left out of the scores with ``skip_unknown``; classes of the model without images are left out
    of means. Nothing in the folder of the run is changed. ``against`` is a folder that must be of
    the same images, because the result is to be compared with it.
    """
    files, here = _finished(Path(run)), choose_device(device)
    folder = Path(out) if out is not None else default_folder(Path(run), data)
    if folder.resolve() == Path(run).resolve():
        raise LmdError(f"--out: {folder} is the run itself; give another folder")
    Run.check_free(folder, overwrite=overwrite, resumable=False)
    _check_replaced(folder)
    other = None if against is None else _other(against, folder)
    predictor = load(run, here)
    table = open_external(files, str(data), part, columns or {}, skip_bad)
    # A mistake is found before images are read.
    known = known_rows(table, predictor.classes, skip_unknown)
    if files.predictions is not None:
        make_policy(decide, Basis.of_run(files.record, files.predictions))
    if other is not None:
        _check_paired(folder, table.take(known), predictor.classes, other, skip_bad)
    temperature = predictor.engine.spec.temperature
    begun, started = now(), time.perf_counter()
    with Display(quiet=quiet) as display:
        table, answers, skipped = predicted(predictor, table, display, skip_bad=skip_bad)
    known = known_rows(table, predictor.classes, skip_unknown)
    predictions = _predictions(files, table.take(known), answers.take(known))
    record = files.record.replaced(
        name=folder.name,
        command=command or _command(run, data, part, skip_unknown, columns, skip_bad, decide, out),
        created=begun,
        lmd_version=__version__,
        commit=commit(),
        data=external_data(files, table, known, skipped, str(data)),
        machine=machine(here),
        model=files.record.model.model_copy(update={"temperature": temperature}),
        folds=None,
        history=list(files.history),
        candidates=[],
        external=_external(files, Path(run), table, known, answers, predictions, part, resamples),
        timings={"predict": round(time.perf_counter() - started, 3)},
    )
    record = scored(record, predictions, resamples=resamples, decide=decide)
    record = _home_coverage(record, files).replaced(finished=now())
    if other is not None:
        paired(Run(folder, record, predictions), other)  # some may have been unreadable
    made = Run.create(folder, overwrite=overwrite)
    (folder / "checkpoint").rmdir()
    made.write_predictions(predictions)
    made.write_record(record)
    write_report(made)
    return made


def default_folder(run: Path, data: str | Path) -> Path:
    """``RUN-on-DATA``, beside the run.

    >>> default_folder(Path("runs/skin-lmd-seed0"), "clinic/2024.csv").as_posix()
    'runs/skin-lmd-seed0-on-2024'
    """
    return run.parent / f"{run.resolve().name}-on-{Path(data).stem or 'data'}"


def _check_replaced(folder: Path) -> None:
    """Only an earlier evaluation is replaced, never a training."""
    run = Run(folder)
    if run.record_path.exists() and run.record.external is None:
        raise LmdError(
            f"--out: {folder} holds a training, which an evaluation does not replace: give another "
            "folder"
        )


def _other(against: Path, folder: Path) -> Run:
    """The files of the run to compare with, which must stay."""
    if against.resolve() == folder.resolve():
        raise LmdError(f"--against: {folder} is what --overwrite replaces: give another folder")
    return Run.open(against)


def _check_paired(
    folder: Path, table: Table, classes: Sequence[str], other: Run, skip_bad: bool
) -> None:
    """An ``LmdError`` if the other run was scored on other images than will be scored here."""
    if skip_bad:
        # What cannot be read is in neither run.
        theirs = scored_part(other).ids
        if np.isin(theirs, table.ids).all():
            table = table.take(np.isin(table.ids, theirs))
    matched(folder, classes, table.ids, _labels(table, classes), other)


def _labels(table: Table, classes: Sequence[str]) -> NDArray[np.int64]:
    """The labels ``(N,)`` as indices of the model's classes."""
    index = {name: k for k, name in enumerate(classes)}
    return np.array([index[name] for name in table.label_names().tolist()], dtype=np.int64)


def _home_coverage(record: Record, home: Run) -> Record:
    """The record with the coverage of the same prediction sets in the run's own test part.

    A run without one has images of the validation part only, which gave the sets their thresholds.
    """
    external, sets = record.external, record.sets
    if external is None or sets is None or home.predictions is None or home.record.part != "test":
        return record
    own = _sample(record, home.predictions.parts["test"])
    basis = Basis.of_run(home.record, home.predictions)
    policy = make_policy(Decide(coverage=sets.requested), basis)
    found = score_sets(own, policy.sets or [], basis.classes, sets.requested).coverage
    return record.replaced(external=external.model_copy(update={"coverage": found}))


def _sample(record: Record, of: PartPredictions) -> Sample:
    return Sample(of.labels, of.probabilities, record.tiers.assignment, of.groups)


def _finished(path: Path) -> Run:
    run = Run.open(path).require_finished()
    record = run.record
    if record.external is not None:
        raise LmdError(
            f"{path} is an external validation of {record.external.run}: give the folder of that "
            "run together with --data"
        )
    if record.part is None or run.predictions is None:
        raise LmdError(f"{path} has no scored part to compare with: run `lmd evaluate {path}`")
    return Run(path, record, run.predictions)


def _predictions(files: Run, table: Table, answers: Answers) -> Predictions:
    """The external images as test part; the run's validation part gives the prediction sets."""
    assert files.predictions is not None
    classes = files.predictions.classes
    labels = _labels(table, classes)
    here = PartPredictions(table.ids, labels, answers.probabilities, table.group_numbers())
    own = files.predictions.parts.get("validation")
    parts: dict[Part, PartPredictions] = {"test": here}
    return Predictions(classes, parts if own is None else {**parts, "validation": own})


def _external(
    files: Run,
    run: Path,
    table: Table,
    known: NDArray[np.bool_],
    answers: Answers,
    predictions: Predictions,
    part: str | None,
    resamples: int,
) -> External:
    record, of = files.record, predictions.parts["test"]
    assert files.predictions is not None
    assert record.part is not None
    own = files.predictions.parts[record.part]
    home, here = (_sample(record, one) for one in (own, of))
    both = shared(home, here)
    recalls = [row.recall for row in record.per_class[record.part]]
    counts = record.data.counts["train"]
    shifts = class_shifts(home, here, predictions.classes, counts, recalls)
    flagged = None
    if answers.unlike is not None:
        flagged = share_of(answers.unlike[known], of.groups)
    return External(
        run=record.name,
        model_sha256=weights_digest(run) if (run / "model.json").exists() else None,
        part=part or "all",
        home_part=record.part,
        mix_distance=mix_distance(shifts),
        classes=shifts,
        metrics=compare_metrics(*both, resamples=resamples),
        confidence=confidence_shift(*both),
        coverage=None,
        flagged=flagged,
        unknown=unknown_classes(table.take(~known), answers.take(~known)),
    )


def _command(
    run: str | Path,
    data: str | Path,
    part: str | None,
    skip_unknown: bool,
    columns: Mapping[str, Any] | None,
    skip_bad: bool,
    decide: Decide,
    out: str | Path | None,
) -> str:
    """The command that repeats the evaluation."""
    words = ["lmd", "evaluate", str(run), "--data", str(data)]
    words += ["--part", part] if part is not None else []
    words += Columns.of(columns).words()
    words += ["--skip-unknown"] if skip_unknown else []
    words += ["--skip-bad"] if skip_bad else []
    words += decide.words()
    return shlex.join([*words, *(["--out", str(out)] if out is not None else [])])
