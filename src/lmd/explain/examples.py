"""Pictures and heat maps of a few test images, kept for the report, and its section."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.explain.pictures import Pixels, overlay
from lmd.report.charts import data_uri
from lmd.report.page import Report, Values
from lmd.report.text import percent
from lmd.runs.folder import Predictions, Run
from lmd.scoring.proportions import Labels, Probabilities

if TYPE_CHECKING:
    import torch

    from lmd.data.dataset import Dataset
    from lmd.predict.engines import TorchEngine

FILE = "examples.npz"
MOST = 64  # images in a file
SIDE = 160  # px of a picture at most
QUALITY = 80
EACH = 8


def choose_looks(
    labels: Labels, probabilities: Probabilities, most: int = EACH
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the most confident mistakes, and of the least certain hits.

    >>> choose_looks(np.array([0, 0, 1]), np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]]))
    (array([0, 2]), array([1]))
    """
    right, sure = probabilities.argmax(1) == labels, probabilities.max(1)
    mistakes, hits = np.flatnonzero(~right), np.flatnonzero(right)
    mistakes = mistakes[np.argsort(-sure[mistakes], kind="stable")]
    return mistakes[:most], hits[np.argsort(sure[hits], kind="stable")][:most]


@dataclass(frozen=True)
class Examples:
    """``ids (N,)`` of the predictions, ``pictures (N, S, S, 3)``, and ``heat (N, S, S)``.

    Pictures and heat are uint8; ``heat`` shows the evidence for the predicted class, 255 at its
    highest. It is ``None`` if the model has no heat maps.
    """

    ids: NDArray[Any]
    pictures: Pixels
    heat: Pixels | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        right = self.ids.ndim == 1 and n <= MOST and self.ids.dtype.kind == "U"
        right &= self.pictures.ndim == 4 and self.pictures.shape[::3] == (n, 3)
        right &= self.heat is None or self.heat.shape == self.pictures.shape[:3]
        images = [self.pictures] if self.heat is None else [self.pictures, self.heat]
        if not right or any(array.dtype != np.uint8 for array in images):
            raise LmdError("its arrays do not fit together")

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        buffer = BytesIO()
        arrays = {key: array for key, array in vars(self).items() if array is not None}
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def read_examples(folder: Path) -> Examples | None:
    """Read the examples of a run folder; ``None`` if it has no such file."""
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


def write_examples(
    folder: Path, engine: "TorchEngine", data: "Dataset", predictions: Predictions
) -> None:
    """Keep the most confident mistakes and the least certain hits of the test part, if any."""
    import cv2

    from lmd.explain.heat_map import heat, top_evidence

    test = predictions.parts.get("test")
    if test is None or not len(test.labels):
        return
    ids = test.ids[np.concatenate(choose_looks(test.labels, test.probabilities))].astype(str)
    places = {str(name): i for i, name in enumerate(data.table.ids.tolist())}
    pictures, maps = [], []
    for pixels in data.part()[np.array([places[name] for name in ids.tolist()])]:
        picture = pixels
        if len(pixels) > SIDE:
            picture = np.asarray(cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA))
        pictures.append(picture)
        try:
            evidence = top_evidence(engine, pixels, 1)[2]
        except LmdError:  # the backbone has no feature map
            continue
        maps.append((255 * heat(evidence, picture.shape[:2])[0]).round().astype(np.uint8))
    hot = np.stack(maps) if len(maps) == len(pictures) else None
    atomic_write(folder / FILE, Examples(ids, np.stack(pictures), hot).to_bytes())


def add_examples(path: Path, data: str, *, device: "torch.device | str" = "cpu") -> None:
    """Write ``examples.npz`` of a finished run again; ``data`` is where its images are now."""
    from lmd.base.progress import Display
    from lmd.data.dataset import images_of_run
    from lmd.explain.explanation import check_explainable
    from lmd.predict.predictor import load

    run, engine = Run.open(path), check_explainable(load(path, device))
    dataset = images_of_run(run.record, data, Display(quiet=True))
    write_examples(path, engine, dataset, run.read_predictions())


def looks_view(report: Report) -> Values | None:
    """Two lists of pictures with what the predictions say about them."""
    run, examples = report.run, read_examples(report.run.path) if report.images else None
    test = run.predictions.parts.get("test") if run.predictions else None
    if examples is None or test is None:
        return None
    places = {str(name): i for i, name in enumerate(test.ids.tolist())}
    classes, cards = run.record.data.classes, list[dict[str, Any]]()
    for i, name in enumerate(examples.ids.tolist()):
        if name not in places:  # of an earlier run in this folder
            continue
        row, picture, heat = test.probabilities[places[name]], examples.pictures[i], ""
        true, predicted = int(test.labels[places[name]]), int(row.argmax())
        if examples.heat is not None:
            hot = overlay(picture, examples.heat[i].astype(np.float32) / 255)
            heat = data_uri(hot, SIDE, QUALITY)
        cards.append(
            {
                "name": name,
                "right": true == predicted,
                "true": classes[true],
                "predicted": classes[predicted],
                "probability": percent(float(row[predicted])),
                "own": percent(float(row[true])),
                "picture": data_uri(picture, SIDE, QUALITY),
                "heat": heat,
            }
        )
    mistakes = [card for card in cards if not card["right"]]
    hits = [card for card in cards if card["right"]]
    return {"mistakes": mistakes, "hits": hits, "heat": examples.heat is not None}
