"""Choose test images for the report, and keep their pictures and heat maps."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.progress import Display
from lmd.data.dataset import Dataset
from lmd.explain.features import images_of_run
from lmd.explain.heat_map import explain_pixels
from lmd.predict.engines import TorchEngine
from lmd.predict.predictor import Predictor, load
from lmd.runs.folder import Run
from lmd.runs.predictions import Predictions
from lmd.scoring.proportions import Labels, Probabilities

EACH = 8


def confident_mistakes(
    labels: Labels, probabilities: Probabilities, most: int = EACH
) -> NDArray[np.int64]:
    """Places of the wrong images, those with the most confident prediction first.

    >>> confident_mistakes(np.array([0, 0, 1]), np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]]))
    array([0, 2])
    """
    wrong = np.flatnonzero(probabilities.argmax(1) != labels)
    order = np.argsort(-probabilities.max(1)[wrong], kind="stable")
    return np.asarray(wrong[order][:most])


def uncertain_hits(
    labels: Labels, probabilities: Probabilities, most: int = EACH
) -> NDArray[np.int64]:
    """Places of the right images, those with the least confident prediction first."""
    right = np.flatnonzero(probabilities.argmax(1) == labels)
    order = np.argsort(probabilities.max(1)[right], kind="stable")
    return np.asarray(right[order][:most])


FILE = "examples.npz"
MOST = 64  # images in a file


@dataclass(frozen=True)
class Examples:
    """``ids (N,)`` of the predictions, ``pictures (N, S, S, 3)``, and ``heat (N, S, S)``.

    Pictures and heat are uint8; ``heat`` shows the evidence for the predicted class, 255 at its
    highest. It is ``None`` if the model has no heat maps.
    """

    ids: NDArray[Any]
    pictures: NDArray[np.uint8]
    heat: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        right = self.ids.ndim == 1 and n <= MOST and self.ids.dtype.kind == "U"
        right &= self.pictures.ndim == 4 and self.pictures.shape[::3] == (n, 3)
        right &= self.heat is None or self.heat.shape == self.pictures.shape[:3]
        kinds = [self.pictures.dtype, *([] if self.heat is None else [self.heat.dtype])]
        if not right or any(kind != np.uint8 for kind in kinds):
            raise LmdError("its arrays do not fit together")

    def to_bytes(self) -> bytes:
        """The content of the file."""
        buffer = BytesIO()
        arrays: dict[str, Any] = {"ids": self.ids, "pictures": self.pictures}
        if self.heat is not None:
            arrays["heat"] = self.heat
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def read_examples(folder: Path) -> Examples | None:
    """The examples of a run folder; ``None`` if it has no such file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        return Examples(arrays["ids"], arrays["pictures"], arrays.get("heat"))
    except KeyError as error:
        why = f"it has no array {error}"
    except LmdError as error:
        why = str(error)
    raise LmdError(f"{path} cannot be read: {why}; remove it to write the report without images")


SIDE = 160  # px of a picture at most


def make_examples(engine: TorchEngine, data: Dataset, predictions: Predictions) -> Examples | None:
    """The most confident mistakes and the least certain hits of the test part."""
    found = predictions.parts.get("test")
    if found is None or not len(found.labels):
        return None
    chosen = (of(found.labels, found.probabilities) for of in (confident_mistakes, uncertain_hits))
    ids = found.ids[np.concatenate(list(chosen))].astype(str)
    places = {str(name): i for i, name in enumerate(data.table.ids.tolist())}
    images, predictor, pictures, maps = data.part(), Predictor(engine), [], []
    for name in ids.tolist():
        pixels = images[np.array([places[name]])][0]
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
    run = Run.open(path)
    record, engine = run.record, load(path, device).engine
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
