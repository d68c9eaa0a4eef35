"""Pictures of the test images that the report shows, with the heat maps of the shipped model."""

from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.progress import Display
from lmd.data.prepare import Prepared
from lmd.deploy.engines import TorchEngine
from lmd.deploy.explain import explain_pixels
from lmd.deploy.predict import Predictor, load
from lmd.runfolder.examples import FILE, Examples
from lmd.runfolder.folder import RunFolder
from lmd.runfolder.predictions import Predictions
from lmd.runs.features import images_of_run
from lmd.scoring.examples import confident_mistakes, uncertain_hits

SIDE = 160  # px of a picture at most


def make_examples(engine: TorchEngine, data: Prepared, predictions: Predictions) -> Examples | None:
    """The most confident mistakes and the least certain hits of the test part."""
    found = predictions.parts.get("test")
    if found is None or not len(found.labels):
        return None
    chosen = (of(found.labels, found.probabilities) for of in (confident_mistakes, uncertain_hits))
    ids = found.ids[np.concatenate(list(chosen))].astype(str)
    places = {str(name): i for i, name in enumerate(data.table.ids.tolist())}
    predictor, pictures, maps = Predictor(engine), [], []
    for name in ids.tolist():
        pixels = np.array(data.pixels[places[name]])  # a copy: the cache is read-only
        picture = _small(pixels)
        pictures.append(picture)
        try:
            heat = explain_pixels(predictor, pixels, picture, classes=1).heat[0]
        except LmdError:  # the backbone has no feature map
            continue
        maps.append((255 * heat).round().astype(np.uint8))
    complete = len(maps) == len(pictures)
    return Examples(ids, np.stack(pictures), np.stack(maps) if complete else None)


def add_examples(
    path: Path, data: str, *, device: torch.device | str = "cpu", display: Display | None = None
) -> Path:
    """Write ``examples.npz`` of a finished run again; ``data`` is where its images are now."""
    run = RunFolder.open(path)
    record, engine = run.read_record(), load(path, device).engine
    if not isinstance(engine, TorchEngine):
        raise LmdError(f"{path} has the average of several models: give one of its folds")
    found = images_of_run(record, data, display or Display(quiet=True))
    examples = make_examples(engine, found, run.read_predictions())
    if examples is not None:
        atomic_write(path / FILE, examples.to_bytes())
    return path / FILE


def _small(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A square image, shrunk to ``SIDE`` pixels if it is larger."""
    if len(pixels) <= SIDE:
        return pixels
    return np.asarray(cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)
