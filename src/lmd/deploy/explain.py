"""An explanation of one prediction: heat maps, nearest training images, and the flag."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.deploy.average import AverageEngine
from lmd.deploy.engines import TorchEngine
from lmd.deploy.heat_map import evidence
from lmd.deploy.images import Image, as_pixels, fitted
from lmd.deploy.neighbours import FILE, NEAREST, Neighbour, Neighbours, load_neighbours
from lmd.deploy.predict import Predictor

if TYPE_CHECKING:
    from lmd.deploy.novelty import Novelty

SMALLEST, LARGEST = 256, 768  # longest side of the picture
ONNX = "heat maps need the run folder, and {} is an ONNX file: give the folder it was exported from"


@dataclass(frozen=True)
class Explanation:
    """The most probable classes of one image, and where the evidence for each of them is.

    ``classes (n,)`` are sorted by ``probabilities (n,)``. ``evidence (n, h, w)`` are the maps on
    the model's grid, negative where the image speaks against the class. ``heat (n, H, W)`` is their
    positive part, smoothly enlarged to ``picture (H, W, 3)`` and divided by the largest value of
    all n, so that it lies in [0, 1]. ``unlike_training`` is ``None`` if the model cannot tell.
    """

    name: str
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    evidence: NDArray[np.float32]
    heat: NDArray[np.float32]
    picture: NDArray[np.uint8]
    neighbours: tuple[Neighbour, ...] = ()
    unlike_training: bool | None = None

    def peak(self, i: int) -> tuple[float, float]:
        """The place of the most evidence for class i, as fractions of width and height."""
        row, column = np.unravel_index(self.heat[i].argmax(), self.heat[i].shape)
        high, wide = self.heat[i].shape
        return (float(column) + 0.5) / wide, (float(row) + 0.5) / high


def explain(
    predictor: Predictor, image: Image, *, classes: int = 2, neighbours: int | None = None
) -> Explanation:
    """Explain one image, given as a path or as an RGB array ``(H, W, 3)`` of uint8."""
    check_explainable(predictor)
    if classes < 1:
        raise LmdError(f"classes must be at least 1; it is {classes}")
    nearest_index(predictor, neighbours)  # a mistake is found before the image is read
    name = str(image) if isinstance(image, str | Path) else "image"
    pixels = fitted(image, name, predictor.engine.image_size, predictor.engine.rule)
    picture = shown(as_pixels(image, name))
    return explain_pixels(
        predictor, pixels, picture, name=name, classes=classes, neighbours=neighbours
    )


def explain_pixels(
    predictor: Predictor,
    pixels: NDArray[np.uint8],
    picture: NDArray[np.uint8],
    *,
    name: str = "image",
    classes: int = 2,
    neighbours: int | None = None,
) -> Explanation:
    """Explain an image that is resized for the model ``(S, S, 3)`` and to be shown ``(H, W, 3)``.

    The first is made by ``fitted``, the second by ``shown``.
    """
    engine = check_explainable(predictor)
    index = nearest_index(predictor, neighbours)
    batch = pixels[None]
    features = engine.features(batch)
    probabilities = engine.classified(features)[0]
    order = np.argsort(-probabilities, kind="stable")[:classes]
    chosen = torch.from_numpy(order[None]).to(engine.device)
    maps: NDArray[np.float32] = (
        evidence(engine.model, engine.normalised(batch), chosen)[0].cpu().numpy()
    )
    return Explanation(
        name=name,
        classes=tuple(engine.classes[k] for k in order),
        probabilities=probabilities[order],
        evidence=maps,
        heat=heat(maps, (picture.shape[0], picture.shape[1])),
        picture=picture,
        neighbours=()
        if index is None
        else tuple(index.nearest(features[0], neighbours or NEAREST)),
        unlike_training=_flag(predictor.novelty, features),
    )


def check_explainable(predictor: Predictor) -> TorchEngine:
    """The engine of a model that has heat maps; an ``LmdError`` for an ONNX file or an average."""
    if isinstance(predictor.engine, AverageEngine):
        raise LmdError(
            "heat maps are of one model, and this is the average of several: give the folder of "
            "one of its folds"
        )
    if not isinstance(predictor.engine, TorchEngine):
        raise LmdError(ONNX.format("this model"))
    return predictor.engine


def nearest_index(predictor: Predictor, neighbours: int | None) -> Neighbours | None:
    """The features of the training images, read once; ``None`` if they are not wanted or absent."""
    engine, folder = predictor.engine, predictor.folder
    if neighbours is not None and neighbours < 0:
        raise LmdError(f"neighbours must be at least 0; it is {neighbours}")
    if neighbours == 0 or folder is None or not isinstance(engine, TorchEngine):
        return None
    if neighbours is None and not (folder / FILE).exists():
        return None
    if predictor.index is None:
        predictor.index = load_neighbours(folder, engine.classes, engine.spec.feature_dim)
    return predictor.index


def heat(maps: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """The positive part of ``maps (n, h, w)``, enlarged to ``size`` (H, W), from 0 to 1."""
    high, wide = size
    grown = np.stack(
        [
            cv2.resize(np.maximum(one, 0), (wide, high), interpolation=cv2.INTER_CUBIC)
            for one in maps
        ]
    ).clip(0)
    top = grown.max()
    return (grown / top if top > 0 else grown).astype(np.float32)


def shown(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image with its longest side between ``SMALLEST`` and ``LARGEST`` pixels."""
    high, wide = image.shape[:2]
    longest = min(max(high, wide, SMALLEST), LARGEST)
    scale = longest / max(high, wide)
    size = max(round(wide * scale), 1), max(round(high * scale), 1)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, size, interpolation=method), np.uint8)


def _flag(novelty: "Novelty | None", features: NDArray[np.float32]) -> bool | None:
    return None if novelty is None else bool(novelty.unlike(features)[0])
