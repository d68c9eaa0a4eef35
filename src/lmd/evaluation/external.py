"""External validation: a shipped model on labelled images from another place."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd import __version__
from lmd.base.distributed import choose_device
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.text import counted, shorten
from lmd.data.cache import decode
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Source
from lmd.data.sources import scan_source
from lmd.data.table import PARTS, FileImages, Table
from lmd.decisions.decide import Decide
from lmd.decisions.numbers import score_sets
from lmd.decisions.policy import Basis, make_policy
from lmd.evaluation.record import External, UnknownClass
from lmd.evaluation.shift import class_shifts, compare_metrics, confidence_shift, shared
from lmd.fit.recording import NO_VALIDATION, commit, data_info, file_digest, machine, now, scored
from lmd.model.files import weights_digest
from lmd.predict.predictor import Predictor, in_batches, load
from lmd.report.page import write_report
from lmd.runs import folder as folders
from lmd.runs.folder import PartPredictions, Predictions, Run
from lmd.runs.protocol import Protocol
from lmd.runs.record import DataInfo, Part, Record
from lmd.scoring.metrics import Sample
from lmd.scoring.scores import share_of

Flags = NDArray[np.bool_]


def evaluate_external(
    path: Path,
    source: Source,
    *,
    part: str | None = None,
    skip_unknown: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    against: Path | None = None,
    decide: Decide = Decide(),
    resamples: int = 1000,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Score the model of a run on the labelled images of ``source``, and write a folder for it.

    All images are used, or those of one ``part``. Classes are matched by name; an unknown one is
    an error without ``skip_unknown``. ``against`` must be a run on the same images.
    """
    home, saved = _finished(path)
    here = choose_device(device)
    name = f"{path.resolve().name}-on-{Path(source.data).stem or 'data'}"
    folder = path.parent / name if out is None else out
    _check_out(folder, path, overwrite=overwrite, against=against)
    other = None if against is None else Run.open(against)
    predictor = load(path, here)
    classes, skip_bad = predictor.classes, source.skip_bad
    table = _open(home, source, part)
    # A mistake is found before images are read.
    recognised = known_rows(table, classes, skip_unknown)
    make_policy(decide, Basis.of_run(home.record, saved))
    if other is not None:
        _check_paired(folder, table.take(recognised), classes, other, skip_bad=skip_bad)
    begun, started = now(), time.perf_counter()
    with Display(quiet=quiet) as display:
        answered = _answer(predictor, table, display, skip_unknown, skip_bad)
    test = answered.test_part(classes)
    # The run's own validation part gives the prediction sets.
    parts: dict[Part, PartPredictions] = {"test": test}
    parts |= {"validation": saved.parts["validation"]} if "validation" in saved.parts else {}
    predictions = Predictions(classes, parts)
    command = ["lmd", "evaluate", str(path), "--data", str(source.data)]
    command += ["--part", part] if part is not None else []
    command += (
        source.columns.words() + ["--skip-unknown"] * skip_unknown + ["--skip-bad"] * skip_bad
    )
    command += decide.words() + ([] if out is None else ["--out", str(out)])
    temperature = predictor.engine.spec.temperature
    record = home.record.replaced(
        name=folder.name,
        command=shlex.join(command),
        created=begun,
        lmd_version=__version__,
        commit=commit(),
        data=_data_info(home, saved, answered, str(source.data)),
        machine=machine(here),
        model=home.record.model.model_copy(update={"temperature": temperature}),
        folds=None,
        history=list(home.history),
        candidates=[],
        external=_external(home, saved, answered, test, part, resamples),
        timings={"predict": round(time.perf_counter() - started, 3)},
    )
    record = scored(record, predictions, resamples=resamples, decide=decide)
    record = _with_home_coverage(record, home, saved).replaced(finished=now())
    if other is not None:
        folders.paired(Run(folder, record, predictions), other)  # some may have been unreadable
    run = Run.create(folder, overwrite=overwrite)
    (folder / "checkpoint").rmdir()
    run.write_predictions(predictions)
    run.write_record(record)
    write_report(run)
    return run


def _finished(path: Path) -> tuple[Run, Predictions]:
    run = Run.open(path).require_finished()
    if run.record.external is not None:
        raise LmdError(
            f"{path} is an external validation of {run.record.external.run}: give the folder of "
            "that run together with --data"
        )
    if run.record.part is None or run.predictions is None:
        raise LmdError(f"{path} has no scored part to compare with: run `lmd evaluate {path}`")
    return run, run.predictions


def _check_out(folder: Path, run: Path, *, overwrite: bool, against: Path | None) -> None:
    """Check that only an earlier evaluation is replaced, and not one that is to be compared."""
    if folder.resolve() == run.resolve():
        raise LmdError(f"--out: {folder} is the run itself; give another folder")
    Run.check_free(folder, overwrite=overwrite, resumable=False)
    earlier = Run(folder)
    if earlier.record_path.exists() and earlier.record.external is None:
        raise LmdError(
            f"--out: {folder} holds a training, which an evaluation does not replace: give another "
            "folder"
        )
    if against is not None and against.resolve() == folder.resolve():
        raise LmdError(f"--against: {folder} is what --overwrite replaces: give another folder")


def _open(run: Run, source: Source, part: str | None) -> Table:
    """Open the table of the other images, which must not be the training images."""
    records = run.record, *folders.trainings_of(run)
    if any(_is_data_of(record, str(source.data)) for record in records):
        raise LmdError(
            f"--data: {run.record.name} was trained on {source.data}; `lmd evaluate` without "
            "--data scores its test part, and --data takes images from another place"
        )
    table = scan_source(source.data, source.columns).table(skip_bad=source.skip_bad)
    if part is not None:
        if part not in PARTS:
            raise LmdError(f"--part must be one of {', '.join(PARTS)}; it is {part!r}")
        if table.parts is None or not (table.parts == part).any():
            raise LmdError(
                f"--part: {source.data} has no {part} part; leave out --part to use all its images"
            )
        table = table.part(part)
    if isinstance(table.images, FileImages):
        _refuse_training_images(run, table.ids, [table.images.paths[row] for row in table.rows])
    return table


def _is_data_of(record: Record, data: str) -> bool:
    """Whether a run was trained on these images, by their place or their content."""
    if "synthetic" in (record.request.data, data):  # generated images are in no file
        return record.request.data == data
    origin, place = Path(record.request.data).expanduser(), Path(data).expanduser()
    # A relative place of the record may be another one now.
    if origin.is_absolute() and origin.exists() and place.exists() and place.samefile(origin):
        return True
    digest = record.data.file_sha256
    if digest is not None or not place.is_dir():
        return digest is not None and file_digest(place) == digest
    planned = _planned(record, data)
    return planned is not None and _unchanged(planned, record, in_place=False)


def _refuse_training_images(run: Run, ids: NDArray[np.str_], paths: Sequence[Path]) -> None:
    """Refuse files of the run's training part, which are known if its data is where it was."""
    resolved = cache(Path.resolve)
    places = {str(name): resolved(path) for name, path in zip(ids, paths, strict=True)}
    seen: set[str] = set()
    for record in folders.trainings_of(run):
        planned = _planned(record, record.request.data)
        if planned is None or not isinstance(planned.table.images, FileImages):
            continue
        files = planned.table.images.paths
        trained = {resolved(files[row]) for row in planned.table.part("train").rows}
        matches = {name for name, path in places.items() if path in trained}
        in_place = Path(record.request.data).is_absolute()
        if matches and _unchanged(planned, record, in_place=in_place):
            seen |= matches
    if seen:
        raise LmdError(
            f"--data: {run.record.name} was trained on "
            f"{counted(len(seen), '{n} of these images')} ({shorten(sorted(seen))}): give images "
            "that the model has not seen"
        )


def _planned(record: Record, data: str) -> Dataset | None:
    """Return the images at ``data`` in the parts of a run; ``None`` if they cannot be the same."""
    if not record.request.protocol or not Path(data).expanduser().exists():
        return None
    try:
        protocol = Protocol.model_validate(record.request.protocol)
        return plan_data(replace(Source.of(record.request), data=data), protocol)
    except LmdError:
        return None


def _unchanged(planned: Dataset, record: Record, *, in_place: bool) -> bool:
    """Whether these are the images of a run: the same names, classes, parts and pixels.

    Pixels are not compared ``in_place``; only decoding finds images that cannot be read.
    """
    expected = record.data.fingerprint
    same = planned.fingerprint() == expected
    more = len(planned.table) - sum(map(sum, record.data.counts.values()))
    if (same and in_place) or not (same or 0 < more <= len(record.data.skipped)):
        return same
    try:
        decoded = planned.decode(Display(quiet=True))
    except LmdError:
        return False
    agree = in_place or record.data.pixels in (None, decoded.pixel_digest())
    return agree and decoded.fingerprint() == expected


def known_rows(table: Table, classes: Sequence[str], skip: bool) -> Flags:
    """Return which images ``(N,)`` are of a class that the model knows."""
    names = table.label_names()
    recognised: Flags = np.isin(names, classes)
    if not recognised.any():
        raise LmdError(
            f"--data: {table.source} has no image of a class that the model knows. Its classes are "
            f"{shorten(sorted(set(names.tolist())), 8)}; those of the model are "
            f"{shorten(classes, 8)}. Classes are matched by name: rename them in the data"
        )
    if recognised.all() or skip:
        return recognised
    listed, by_lower = [], {name.lower(): name for name in classes}
    for name, images in zip(*np.unique(names[~recognised], return_counts=True), strict=True):
        near = get_close_matches(name.lower(), by_lower, n=1)
        hint = f", perhaps {by_lower[near[0]]!r}" if near else ""
        listed.append(f"{str(name)!r} ({counted(int(images), '{n} [image|images]')}{hint})")
    raise LmdError(
        f"--data: the model does not know {shorten(listed, 8)}. Its classes are "
        f"{shorten(classes, 8)}. Rename the classes in the data, or leave such images out of the "
        "scores with --skip-unknown"
    )


def _labels(table: Table, classes: Sequence[str]) -> NDArray[np.int64]:
    """Return the labels ``(N,)`` as indices of the model's classes."""
    index = {name: k for k, name in enumerate(classes)}
    return np.array([index[name] for name in table.label_names().tolist()], dtype=np.int64)


def _check_paired(
    folder: Path, table: Table, classes: Sequence[str], other: Run, *, skip_bad: bool
) -> None:
    """Check that the other run was scored on the images that will be scored here."""
    if skip_bad:
        # What cannot be read is in neither run.
        theirs = folders.scored_part(other).ids
        if np.isin(theirs, table.ids).all():
            table = table.take(np.isin(table.ids, theirs))
    folders.matched(folder, classes, table.ids, _labels(table, classes), other)


@dataclass(frozen=True)
class _Answered:
    """Images of another place, what the model makes of them, and which of them it knows."""

    table: Table
    recognised: Flags
    probabilities: NDArray[np.float32]
    unlike: Flags | None
    skipped: tuple[str, ...]

    def test_part(self, classes: Sequence[str]) -> PartPredictions:
        """Return the images of known classes."""
        rows, probabilities = self.table.take(self.recognised), self.probabilities[self.recognised]
        return PartPredictions(
            rows.ids, _labels(rows, classes), probabilities, rows.group_numbers()
        )

    def unknown_classes(self) -> list[UnknownClass]:
        """Return what the model makes of images whose class it does not know."""
        names, top = self.table.label_names(), self.probabilities.max(axis=1)
        classes = []
        for name in sorted(set(names[~self.recognised].tolist())):
            rows = names == name
            flagged = None if self.unlike is None else float(self.unlike[rows].mean())
            images, confidence = int(rows.sum()), float(top[rows].mean())
            classes.append(
                UnknownClass(name=name, images=images, confidence=confidence, flagged=flagged)
            )
        return classes


def _answer(
    predictor: Predictor, table: Table, display: Display, skip_unknown: bool, skip_bad: bool
) -> _Answered:
    size = predictor.engine.image_size
    table, images, bad = decode(table, size, display, skip_bad=skip_bad)
    display.start("predicting", len(table))
    probabilities, flags, _ = predictor.infer(in_batches(images, display.step))
    recognised = known_rows(table, predictor.classes, skip_unknown)
    unlike = None if predictor.novelty is None else flags
    return _Answered(table, recognised, probabilities, unlike, (*table.skipped, *bad))


def _external(
    home: Run,
    saved: Predictions,
    answered: _Answered,
    test: PartPredictions,
    part: str | None,
    resamples: int,
) -> External:
    """Compare both places."""
    record, unlike = home.record, answered.unlike
    assert record.part is not None
    places = _sample(record, saved.parts[record.part]), _sample(record, test)
    shifts = class_shifts(*places, record)
    both = shared(*places)
    one_file = (home.path / "model.json").exists()
    return External(
        run=record.name,
        model_sha256=weights_digest(home.path) if one_file else None,
        part=part or "all",
        home_part=record.part,
        # 0 for the same mix, 1 for no common class
        mix_distance=0.5 * sum(abs(shift.here - shift.home) for shift in shifts),
        classes=shifts,
        metrics=compare_metrics(*both, resamples=resamples),
        confidence=confidence_shift(*both),
        coverage=None,
        flagged=None if unlike is None else share_of(unlike[answered.recognised], test.groups),
        unknown=answered.unknown_classes(),
    )


def _sample(record: Record, part: PartPredictions) -> Sample:
    return Sample(part.labels, part.probabilities, record.tiers.assignment, part.groups)


def _with_home_coverage(record: Record, home: Run, saved: Predictions) -> Record:
    """Add the coverage of the same prediction sets in the run's own test part, if it has one."""
    if record.external is None or record.sets is None or home.record.part != "test":
        return record
    basis, level = Basis.of_run(home.record, saved), record.sets.requested
    guarantees = make_policy(Decide(coverage=level), basis).sets or []
    sample = _sample(record, saved.parts["test"])
    coverage = score_sets(sample, guarantees, basis.classes, level).coverage
    return record.replaced(external=record.external.model_copy(update={"coverage": coverage}))


def _data_info(run: Run, saved: Predictions, answered: _Answered, source: str) -> DataInfo:
    """Describe the external images; classes and training counts are the run's."""
    record, table, recognised = run.record, answered.table, answered.recognised
    whole = replace(table.take(recognised), parts=np.full(int(recognised.sum()), "test"))
    request = record.request.model_copy(update={"data": source})
    info = data_info(request, Dataset(whole, record.tiers, answered.skipped))
    there = dict(zip(whole.classes, info.counts["test"], strict=True))
    counts = {**record.data.counts, "test": [there.get(name, 0) for name in record.data.classes]}
    notes = [f"These are images from {source}, not the test part of {record.name}."]
    notes += [note for note in info.notes if note != NO_VALIDATION]
    if not recognised.all():
        names = sorted(set(table.take(~recognised).label_names().tolist()))
        left_out = counted(int((~recognised).sum()), "{n} [image|images]")
        notes.append(
            f"Left out of the scores: {left_out} of {shorten(names, 8)}, which the model does not "
            "know."
        )
    scored_names = set().union(*(_names(part.ids) for part in saved.parts.values()))
    if repeated := len(_names(whole.ids) & scored_names):
        notes.append(
            f"{counted(repeated, '{n} [image has|images have]')} the name of a validation or test "
            f"image of {record.name}: if they are the same images, these numbers are not external."
        )
    update = {"classes": record.data.classes, "counts": counts, "notes": notes}
    return info.model_copy(update=update | {"imbalance_factor": record.data.imbalance_factor})


def _names(ids: NDArray[Any]) -> set[str]:
    """Names of files without their folders; numbers of images in an array say nothing."""
    return {PurePosixPath(name).name for name in map(str, ids) if not name.isdecimal()}
