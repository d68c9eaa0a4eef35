"""Read the images of a run again, and keep the features of its training images."""

from pathlib import Path

import torch

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Columns, Source
from lmd.runs.folder import Run, of_one_model, several_models
from lmd.runs.protocol import Protocol
from lmd.runs.record import Record, Request


def build_index(
    path: Path,
    data: str | None = None,
    *,
    with_names: bool = False,
    overwrite: bool = False,
    device: torch.device | str = "cpu",
    display: Display | None = None,
) -> Path:
    """Write ``neighbours.npz`` of a finished run from its training images.

    ``data`` is only needed if the images have moved since training.
    """
    from lmd.explain.neighbours import FILE, Neighbours, size_line
    from lmd.model.files import weights_digest
    from lmd.predict.predictor import in_batches, load

    display = display or Display(quiet=True)
    run = Run.open(path)
    if (path / FILE).exists() and not overwrite:
        raise LmdError(f"{path / FILE} exists: use --overwrite to replace it")
    record = of_one_model(run.path).record
    predictor = load(path, device)
    dataset = images_of_run(record, data, display)
    part, images = dataset.table.part("train"), dataset.part("train")
    display.say(size_line(len(part), predictor.engine.spec.feature_dim))
    display.start("computing features", len(part))
    features = predictor.infer(in_batches(images, display.step)).features
    display.stop()
    assert features is not None
    names = part.ids.tolist() if with_names else None
    index = Neighbours.of(features, part.labels, dataset.table.classes, names)
    return index.save(path, weights_digest(path))


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
