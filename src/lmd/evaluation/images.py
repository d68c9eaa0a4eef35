"""Read the images of an external validation and predict them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.text import counted, shorten
from lmd.data.cache import decode
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Source
from lmd.data.sources import open_table
from lmd.data.table import PARTS, FileImages, Table
from lmd.evaluation.record import UnknownClass
from lmd.fit.recording import NO_VALIDATION, data_info, file_digest
from lmd.predict.predictor import Predictor, in_batches
from lmd.runs.folder import Run, trainings_of
from lmd.runs.protocol import Protocol
from lmd.runs.record import DataInfo, Record


def refuse_own_data(run: Run, data: str) -> None:
    """An ``LmdError`` if a run was trained on ``data``, or on a copy of it."""
    if any(_is_data_of(record, data) for record in (run.record, *trainings_of(run))):
        raise LmdError(
            f"--data: {run.record.name} was trained on {data}; `lmd evaluate` without --data "
            "scores its test part, and --data takes images from another place"
        )


def refuse_training_images(run: Run, table: Table) -> None:
    """Refuse files of the run's training part, which are known if its data is where it was."""
    if not isinstance(table.images, FileImages):
        return
    resolved = cache(Path.resolve)
    places = {
        str(name): resolved(table.images.paths[row])
        for name, row in zip(table.ids, table.rows, strict=True)
    }
    seen: set[str] = set()
    for record in trainings_of(run):
        planned = _planned(record, record.request.data)
        own = None if planned is None else planned.table.part("train")
        if planned is None or own is None or not isinstance(own.images, FileImages):
            continue
        trained = {resolved(own.images.paths[row]) for row in own.rows}
        found = {name for name, place in places.items() if place in trained}
        if found and _unchanged(planned, record, Path(record.request.data).is_absolute()):
            seen |= found
    if seen:
        raise LmdError(
            f"--data: {run.record.name} was trained on "
            f"{counted(len(seen), '{n} of these images')} ({shorten(sorted(seen))}): give images "
            "that the model has not seen"
        )


def _is_data_of(record: Record, data: str) -> bool:
    """Whether a run was trained on these images, by their place if it is known, or their content.

    A relative place of the record may be another one now.
    """
    own, source = Path(record.request.data), Path(data)
    if record.request.data == data == "synthetic":
        return True
    if own.is_absolute() and own.exists() and source.exists() and source.samefile(own):
        return True
    if record.data.file_sha256 is not None or not source.is_dir():
        return (
            record.data.file_sha256 is not None and file_digest(source) == record.data.file_sha256
        )
    planned = _planned(record, data)
    return planned is not None and _unchanged(planned, record, False)


def _planned(record: Record, data: str) -> Dataset | None:
    """The images at ``data`` in the parts of a run, or ``None`` if they cannot be its images."""
    request = record.request
    if not request.protocol:
        return None
    try:
        protocol = Protocol.model_validate(request.protocol)
        return plan_data(replace(Source.of(request), data=data), protocol)
    except LmdError:
        return None


def _unchanged(planned: Dataset, record: Record, in_place: bool) -> bool:
    """Whether these are the images of a run: the same names, classes and parts.

    Pixels must agree, too, unless the images are known to be ``in_place``, because images from
    elsewhere may have the same names. Images that cannot be read are not in the record, and only
    decoding finds them.
    """
    expected = record.data.fingerprint
    same = planned.fingerprint() == expected
    more = len(planned.table) - sum(map(sum, record.data.counts.values()))
    if (same and in_place) or not (same or 0 < more <= len(record.data.skipped)):
        return same
    try:
        found = planned.decode(Display(quiet=True))
    except LmdError:
        return False
    known = in_place or record.data.pixels in (None, found.pixel_digest())
    return known and found.fingerprint() == expected


@dataclass(frozen=True)
class Answers:
    """Probabilities ``(N, K)`` of the model and flags ``(N,)``, or ``None`` if it has none."""

    probabilities: NDArray[np.float32]
    unlike: NDArray[np.bool_] | None

    def take(self, rows: NDArray[np.bool_]) -> "Answers":
        """The answers of some images."""
        return Answers(self.probabilities[rows], None if self.unlike is None else self.unlike[rows])


def open_external(
    run: Run, data: str, part: str | None, columns: Mapping[str, Any], skip_bad: bool
) -> Table:
    """The table of the other images, which must not be those of training."""
    refuse_own_data(run, data)
    table = open_table(data, skip_bad=skip_bad, **columns)
    if part is not None:
        if part not in PARTS:
            raise LmdError(f"--part must be one of {', '.join(PARTS)}; it is {part!r}")
        if table.parts is None or not (table.parts == part).any():
            raise LmdError(
                f"--part: {data} has no {part} part; leave out --part to use all its images"
            )
        table = table.part(part)
    refuse_training_images(run, table)
    return table


def known_rows(table: Table, classes: tuple[str, ...], skip: bool) -> NDArray[np.bool_]:
    """Which images ``(N,)`` are of a class that the model knows."""
    names = table.label_names()
    known: NDArray[np.bool_] = np.isin(names, classes)
    if not known.any():
        raise LmdError(
            f"--data: {table.source} has no image of a class that the model knows. Its classes are "
            f"{shorten(sorted(set(names.tolist())), 8)}; those of the model are "
            f"{shorten(classes, 8)}. Classes are matched by name: rename them in the data"
        )
    if known.all() or skip:
        return known
    unknown, counts = np.unique(names[~known], return_counts=True)
    listed = []
    for name, images in zip(unknown.tolist(), counts.tolist(), strict=True):
        by_lower = {one.lower(): one for one in classes}
        near = get_close_matches(name.lower(), by_lower, n=1)
        hint = f", perhaps {by_lower[near[0]]!r}" if near else ""
        listed.append(f"{name!r} ({counted(images, '{n} [image|images]')}{hint})")
    raise LmdError(
        f"--data: the model does not know {shorten(listed, 8)}. Its classes are "
        f"{shorten(classes, 8)}. Rename the classes in the data, or leave such images out of the "
        "scores with --skip-unknown"
    )


def predicted(
    predictor: Predictor, table: Table, display: Display, *, skip_bad: bool
) -> tuple[Table, Answers, tuple[str, ...]]:
    """The readable images, the model's answers for them, and the problems of the others."""
    size = predictor.engine.image_size
    table, images, bad = decode(table, size, display, skip_bad=skip_bad)
    display.start("predicting", len(table))
    probabilities, unlike, _ = predictor.infer(in_batches(images, display.step))
    answers = Answers(probabilities, None if predictor.novelty is None else unlike)
    return table, answers, (*table.skipped, *bad)


def unknown_classes(table: Table, answers: Answers) -> list[UnknownClass]:
    """What the model makes of images whose class it does not know."""
    names, top, found = table.label_names(), answers.probabilities.max(axis=1, initial=0), []
    for name in sorted(set(names.tolist())):
        own = names == name
        flags = None if answers.unlike is None else float(answers.unlike[own].mean())
        found.append(
            UnknownClass(
                name=name, images=int(own.sum()), confidence=float(top[own].mean()), flagged=flags
            )
        )
    return found


def external_data(
    run: Run, table: Table, known: NDArray[np.bool_], skipped: tuple[str, ...], source: str
) -> DataInfo:
    """What the record says about the external images; classes and training counts are the run's."""
    record = run.record
    whole = replace(table.take(known), parts=np.full(int(known.sum()), "test"))
    request = record.request.model_copy(update={"data": source})
    info = data_info(request, Dataset(whole, record.tiers, skipped))
    there = dict(zip(whole.classes, info.counts["test"], strict=True))
    counts = {**record.data.counts, "test": [there.get(name, 0) for name in record.data.classes]}
    notes = [note for note in info.notes if note != NO_VALIDATION]
    notes.insert(0, f"These are images from {source}, not the test part of {record.name}.")
    if not known.all():
        names = sorted(set(table.take(~known).label_names().tolist()))
        left_out = counted(int((~known).sum()), "{n} [image|images]")
        notes.append(
            f"Left out of the scores: {left_out} of {shorten(names, 8)}, which the model does not "
            "know."
        )
    repeated = len(_names(whole.ids) & _own_names(run))
    if repeated:
        notes.append(
            f"{counted(repeated, '{n} [image has|images have]')} the name of a validation or test "
            f"image of {record.name}: if they are the same images, these numbers are not external."
        )
    return info.model_copy(
        update={
            "classes": record.data.classes,
            "counts": counts,
            "imbalance_factor": record.data.imbalance_factor,
            "notes": notes,
        }
    )


def _own_names(run: Run) -> set[str]:
    parts = run.predictions.parts.values() if run.predictions is not None else ()
    return {name for of in parts for name in _names(of.ids)}


def _names(ids: NDArray[Any]) -> set[str]:
    """Names of files without their folders; numbers of images in an array say nothing."""
    return {PurePosixPath(name).name for name in map(str, ids) if not name.isdecimal()}
