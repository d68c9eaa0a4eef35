"""What is kept of the training images' features: the flag's Gaussians and the nearest cases."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Columns, Source
from lmd.explain.neighbours import FILE, Neighbours, expected_bytes, save_neighbours
from lmd.predict.engines import TorchEngine
from lmd.predict.novelty import (
    ABOVE,
    Novelty,
    fit_gaussians,
    flag_threshold,
    save_novelty,
)
from lmd.predict.predictor import Predictor, Rows, load
from lmd.predict.record import NoveltyInfo
from lmd.runs.folder import Run, of_one_model, several_models
from lmd.runs.predictions import Predictions
from lmd.runs.protocol import Protocol
from lmd.runs.record import Record, Request
from lmd.scoring.estimates import Estimate
from lmd.scoring.proportions import effective, wilson


@dataclass(frozen=True)
class Kept:
    """What a run keeps of its features; each may be absent."""

    novelty: Novelty | None = None
    info: NoveltyInfo | None = None
    neighbours: Neighbours | None = None

    def write(self, folder: Path) -> None:
        """Write the files beside the model, which must be there."""
        if self.novelty is not None:
            save_novelty(self.novelty, folder)
        if self.neighbours is not None:
            save_neighbours(self.neighbours, folder)


def keep(
    features: Mapping[str, NDArray[np.float32]],
    data: Dataset,
    predictions: Predictions,
    *,
    neighbours: bool,
) -> Kept:
    """What is kept of the ``features (N, C)`` of each part.

    Without validation images there is no flag: training images are nearer to their own Gaussians
    than new images are, so they cannot give the threshold.
    """
    if "train" not in features:
        return Kept()
    own, labels = features["train"], data.part("train").labels
    index = Neighbours.of(own, labels, data.table.classes) if neighbours else None
    none = np.zeros((0, own.shape[1]), np.float32)
    held_out = {part: features.get(part, none) for part in ("validation", "test")}
    test = predictions.parts.get("test")
    flag = flag_of(own, labels, held_out, None if test is None else test.groups)
    return Kept(flag.novelty, flag.info, index)


def flag_of(
    own: NDArray[np.float32],
    labels: NDArray[np.int64],
    held_out: Mapping[str, NDArray[np.float32]],
    test_groups: NDArray[Any] | None,
) -> Kept:
    """The flag from features ``own (N, C)`` of training images and those of the other parts."""
    finite = all(np.isfinite(found).all() for found in (own, *held_out.values()))
    if len(held_out["validation"]) == 0 or not finite:
        return Kept()
    gaussians = fit_gaussians(own, labels)
    novelty = Novelty(gaussians, gaussians.distances(held_out["validation"]))
    rate = None
    if len(held_out["test"]):
        rate = flag_rate(novelty.unlike(held_out["test"]), test_groups)
    info = NoveltyInfo(
        above=ABOVE,
        threshold=flag_threshold(novelty.validation),
        images=len(novelty.validation),
        flagged=rate,
    )
    return Kept(novelty, info)


def flag_rate(flags: NDArray[np.bool_], groups: NDArray[Any] | None) -> Estimate:
    """The share of flagged images and its 95 % interval (Wilson), which respects groups.

    >>> flag_rate(np.array([True, False, False, False]), None).text()
    '0.250 (0.046 to 0.699)'
    """
    low, high = wilson(*effective(flags, groups))
    return Estimate(value=float(flags.mean()), low=low, high=high)


def features_of(
    predictor: Predictor, images: Rows, tick: Callable[[int, int], None] | None = None
) -> NDArray[np.float32]:
    """Return the features ``(N, C)`` of decoded images, as in prediction."""
    features = predictor.infer(images, tick=tick).features
    assert features is not None
    return features


def size_line(images: int, width: int) -> str:
    """How large ``neighbours.npz`` becomes.

    >>> size_line(10_000, 1280)
    'neighbours.npz: 10000 training images with 1280 features, about 25.7 MB'
    """
    size = expected_bytes(images, width) / 1e6
    return f"{FILE}: {images} training images with {width} features, about {size:.1f} MB"


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
    display = display or Display(quiet=True)
    run = Run.open(path)
    if (path / FILE).exists() and not overwrite:
        raise LmdError(f"{path / FILE} exists: use --overwrite to replace it")
    record = of_one_model(run.path).record
    predictor = load(path, device)
    if not isinstance(predictor.engine, TorchEngine):
        raise LmdError(f"{path} has the average of several models: give one of its folds")
    prepared = images_of_run(record, data, display)
    part = prepared.table.part("train")
    display.say(size_line(len(part), predictor.engine.spec.feature_dim))
    display.start("computing features", len(part))
    features = features_of(predictor, prepared.part("train"), display.step)
    display.stop()
    names = part.ids.tolist() if with_names else None
    return save_neighbours(
        Neighbours.of(features, part.labels, prepared.table.classes, names), path
    )


def images_of_run(record: Record, data: str | None, display: Display) -> Dataset:
    """All images of a run, read again as its record says; they must be the same.

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
    place, columns = place_of(request, data)
    protocol = Protocol.model_validate(request.protocol)
    planned = plan_data(Source(place, Columns.of(columns), request.skip_bad), protocol)
    other = LmdError(
        f"--data: {place} is not what {record.name} was trained on (names, "
        "classes or parts differ): give the same data"
    )
    # Images that cannot be read may be left out, and only decoding finds them.
    if not request.skip_bad and planned.fingerprint() != record.data.fingerprint:
        raise other
    found = planned.decode(display)
    if found.fingerprint() != record.data.fingerprint:
        raise other
    return found


def place_of(request: Request, moved: str | None) -> tuple[str, dict[str, Any]]:
    """Where the images of a run are, and how its table is read, if they may have ``moved``."""
    columns = dict(request.columns)
    if moved is not None and not Path(columns.get("root", ".")).is_dir():
        columns.pop("root")  # the images have moved with the data
    return moved or request.data, columns
