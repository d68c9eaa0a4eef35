"""Read the images of a run again."""

from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Columns, Source
from lmd.runs.folder import several_models
from lmd.runs.protocol import Protocol
from lmd.runs.record import Record, Request


def images_of_run(record: Record, data: str | None, display: Display) -> Dataset:
    """Read all images of a run again as its record says; they must be the same.

    ``data`` is where they are now, if they have moved.
    """
    request = record.request
    if record.folds is not None:
        raise LmdError(several_models(record))
    if not request.protocol:
        raise LmdError(
            f"the record of {record.name} does not say how its images are read: it was made from "
            "features, or by an earlier `lmd calibrate`"
        )
    if data is None and request.data != "synthetic" and not Path(request.data).exists():
        raise LmdError(
            f"the images of {record.name} are not at {request.data}, where they were in training: "
            "say where they are now with --data, or run the command from the folder in which "
            "training was started"
        )
    source = source_of(request, data)
    planned = plan_data(source, Protocol.model_validate(request.protocol))
    other = LmdError(
        f"--data: {source.data} is not what {record.name} was trained on (names, "
        "classes or parts differ): give the same data"
    )
    # Images that cannot be read may be left out, and only decoding finds them.
    if not request.skip_bad and planned.fingerprint() != record.data.fingerprint:
        raise other
    decoded = planned.decode(display)
    if decoded.fingerprint() != record.data.fingerprint:
        raise other
    return decoded


def source_of(request: Request, moved: str | None) -> Source:
    """Return where the images of a run are and how they are read, if they may have ``moved``."""
    columns = dict(request.columns)
    if moved is not None and not Path(columns.get("root", ".")).is_dir():
        columns.pop("root")  # the images have moved with the data
    return Source(moved or request.data, Columns.of(columns), request.skip_bad)
