"""Explain predictions: heat maps, nearest training images and the flag, also as a folder."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from lmd import __version__
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.data.images import read_image, resize, rgb_pixels
from lmd.explain.heat_map import heat, top_evidence
from lmd.explain.neighbours import FILE, NEAREST, Neighbour, Neighbours, load_neighbours
from lmd.explain.pictures import as_png, overlay, side_by_side
from lmd.predict.engines import Floats, Pixels, TorchEngine
from lmd.predict.predictor import Image, Predictor

SMALLEST, LARGEST = 256, 768  # longest side of the picture
SIDE = 384  # longest side of a picture in the page
PAGE, NUMBERS = "index.html", "explanations.json"


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
    probabilities: Floats
    evidence: Floats
    heat: Floats
    picture: Pixels
    neighbours: tuple[Neighbour, ...] = ()
    unlike_training: bool | None = None

    def peak(self, i: int) -> tuple[float, float]:
        """Return the place of the most evidence for class i, as fractions of width and height."""
        row, column = np.unravel_index(self.heat[i].argmax(), self.heat[i].shape)
        high, wide = self.heat[i].shape
        return (float(column) + 0.5) / wide, (float(row) + 0.5) / high

    def numbers(self, file: str) -> dict[str, Any]:
        """Return the numbers as plain JSON, with the name of their picture."""
        classes = [
            {
                "class": name,
                "probability": round(float(self.probabilities[i]), 6),
                "peak": [round(place, 4) for place in self.peak(i)],
                "evidence": [[round(float(x), 6) for x in row] for row in self.evidence[i]],
            }
            for i, name in enumerate(self.classes)
        ]
        nearest = [
            {key: value for key, value in asdict(case).items() if value is not None}
            for case in self.neighbours
        ]
        numbers: dict[str, Any] = {"image": self.name, "file": file, "classes": classes}
        numbers["nearest"] = nearest
        if self.unlike_training is not None:
            numbers["unlike_training"] = self.unlike_training
        return numbers


def explain(
    predictor: Predictor, image: Image, *, classes: int = 2, neighbours: int | None = None
) -> Explanation:
    """Explain one image, given as a path or as an RGB array ``(H, W, 3)`` of uint8."""
    engine = check_explainable(predictor)
    if classes < 1:
        raise LmdError(f"classes must be at least 1; it is {classes}")
    nearest_index(predictor, neighbours)  # a mistake is found before the image is read
    name = str(image) if isinstance(image, str | Path) else "image"
    full = read_image(image) if isinstance(image, str | Path) else rgb_pixels(image, name)
    return explain_pixels(
        predictor, resize(full, engine.image_size), shown(full),
        name=name, classes=classes, neighbours=neighbours,
    )  # fmt: skip


def explain_pixels(
    predictor: Predictor,
    pixels: Pixels,
    picture: Pixels,
    *,
    name: str = "image",
    classes: int = 2,
    neighbours: int | None = None,
) -> Explanation:
    """Explain an image that is resized for the model ``(S, S, 3)`` and to be shown ``(H, W, 3)``.

    The first is made by ``resize``, the second by ``shown``.
    """
    engine, novelty = check_explainable(predictor), predictor.novelty
    index = nearest_index(predictor, neighbours)
    order, probabilities, maps, features = top_evidence(engine, pixels, classes)
    nearest = [] if index is None else index.nearest(features[0], neighbours or NEAREST)
    return Explanation(
        name=name,
        classes=tuple(engine.classes[k] for k in order),
        probabilities=probabilities,
        evidence=maps,
        heat=heat(maps, (picture.shape[0], picture.shape[1])),
        picture=picture,
        neighbours=tuple(nearest),
        unlike_training=None if novelty is None else bool(novelty.unlike(features)[0]),
    )


def check_explainable(predictor: Predictor) -> TorchEngine:
    """Return the engine of a model that has heat maps; an ONNX file or an average has none."""
    if not isinstance(predictor.engine, TorchEngine):
        raise LmdError(predictor.engine.no_heat_maps)
    return predictor.engine


def nearest_index(predictor: Predictor, neighbours: int | None) -> Neighbours | None:
    """Return the features of the training images, read once; ``None`` if unwanted or absent."""
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


def shown(image: Pixels) -> Pixels:
    """Return the image with its longest side between ``SMALLEST`` and ``LARGEST`` pixels."""
    high, wide = image.shape[:2]
    longest = min(max(high, wide, SMALLEST), LARGEST)
    scale = longest / max(high, wide)
    size = max(round(wide * scale), 1), max(round(high * scale), 1)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, size, interpolation=method), np.uint8)


def explain_images(
    model: Path,
    predictor: Predictor,
    images: Sequence[Path | LmdError],
    out: Path,
    *,
    neighbours: int | None = None,
    skip_bad: bool = False,
    tick: Callable[[int, int], None] | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Write one PNG for each image, ``index.html`` and ``explanations.json`` to the folder ``out``.

    They are moved there when all images have been explained: a failure leaves nothing behind.
    Return the numbers of each image, and why others were skipped.
    """
    from lmd.report.page import environment

    spec = check_explainable(predictor).spec
    indexed = nearest_index(predictor, neighbours) is not None
    cases, panels = list[dict[str, Any]](), list[dict[str, Any]]()
    skipped: list[str] = []
    with _staged(out) as name:
        folder = Path(name)
        for number, path in enumerate(images, 1):
            try:
                if isinstance(path, LmdError):
                    raise path
                explanation = predictor.explain(path, neighbours=neighbours)
            except LmdError as error:
                if not skip_bad:
                    raise LmdError(f"{error}\nUse --skip-bad to leave out such images.") from error
                skipped.append(str(error))
                continue
            stem = re.sub(r"[^\w.-]+", "_", path.stem)[:80]
            file = f"{number:04}-{stem}.png"
            panels.append(_drawn(explanation, folder / file))
            cases.append(explanation.numbers(file))
            if tick is not None:
                tick(number, len(images))
        about = {"model": str(model), "classes": spec.classes, "images": cases}
        text = json.dumps(about | {"skipped": skipped}, indent=1, ensure_ascii=False)
        atomic_write(folder / NUMBERS, (text + "\n").encode())
        page = environment().get_template("explain.html").render(
            model=model.name, method=spec.method, panels=panels, indexed=indexed,
            version=__version__,
        )  # fmt: skip
        atomic_write(folder / PAGE, page.encode())
        _move(folder, out)
    return cases, skipped


def _drawn(explanation: Explanation, path: Path) -> dict[str, Any]:
    """Write the picture of an explained image, and return its panel of the page."""
    from lmd.report.charts import data_uri
    from lmd.report.text import percent

    unlike = bool(explanation.unlike_training)
    pictures = [explanation.picture, *(overlay(explanation.picture, h) for h in explanation.heat)]
    note = "unlike the training images" if unlike else ""
    shares = [percent(float(p)) for p in explanation.probabilities]
    names = zip(explanation.classes, shares, strict=True)
    captions = [(Path(explanation.name).name, note), *names]
    atomic_write(path, as_png(side_by_side(pictures, captions)))
    uris = (data_uri(picture, SIDE, quality=80) for picture in pictures)
    shown = [(uri, *caption) for uri, caption in zip(uris, captions, strict=True)]
    nearest = explanation.neighbours
    return {"name": explanation.name, "pictures": shown, "nearest": nearest, "unlike": unlike}


def check_out(out: Path, *, overwrite: bool) -> None:
    """Check that explanations may be written to a folder; only earlier ones are replaced."""
    if out.exists() and not out.is_dir():
        raise LmdError(f"--out: {out} is a file; give a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not overwrite:
        raise LmdError(f"--out: {out} is not empty: choose another folder, or use --overwrite")
    if not (out / NUMBERS).exists():
        raise LmdError(
            f"--overwrite: {out} was not written by `lmd explain`; choose another folder"
        )


def _staged(out: Path) -> "tempfile.TemporaryDirectory[str]":
    """Make a folder for unfinished files in the nearest folder above ``out`` that exists."""
    above = next(path for path in out.absolute().parents if path.is_dir())
    try:
        return tempfile.TemporaryDirectory(dir=above, prefix=f".{out.name[:100]}.")
    except OSError as error:
        raise LmdError(f"--out: cannot write to {above}: {error.strerror}") from error


def _move(folder: Path, out: Path) -> None:
    """Replace earlier explanations in ``out`` by the files in ``folder``."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("[0-9]*-*.png"):
            old.unlink()
        for file in sorted(folder.iterdir(), key=lambda file: file.name == PAGE):
            file.replace(out / file.name)
    except OSError as error:
        raise LmdError(f"--out: cannot write to {out}: {error.strerror}") from error
