"""Whether images from another place are those that a model was trained on."""

from functools import cache
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import counted, shorten
from lmd.data.prepare import Planned, plan_data
from lmd.data.reading import FileImages
from lmd.data.table import Table
from lmd.protocol import Protocol
from lmd.runfolder.folder import RunFiles
from lmd.runfolder.one_model import trainings_of
from lmd.runfolder.record import Record
from lmd.runs.recording import file_digest


def refuse_own_data(run: RunFiles, data: str) -> None:
    """An ``LmdError`` if a run was trained on ``data``, or on a copy of it."""
    if any(_is_data_of(record, data) for record in (run.record, *trainings_of(run))):
        raise LmdError(
            f"--data: {run.record.name} was trained on {data}; `lmd evaluate` without --data "
            "scores its test part, and --data takes images from another place"
        )


def refuse_training_images(run: RunFiles, table: Table) -> None:
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


def _planned(record: Record, data: str) -> Planned | None:
    """The images at ``data`` in the parts of a run, or ``None`` if they cannot be its images."""
    request = record.request
    if not request.protocol:
        return None
    try:
        protocol = Protocol.model_validate(request.protocol)
        return plan_data(data, protocol, columns=request.columns, skip_bad=request.skip_bad)
    except LmdError:
        return None


def _unchanged(planned: Planned, record: Record, in_place: bool) -> bool:
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
        found = planned.decoded()
    except LmdError:
        return False
    known = in_place or record.data.pixels in (None, found.pixel_digest())
    return known and found.fingerprint() == expected
