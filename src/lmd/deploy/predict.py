"""Prediction with a shipped model, without importing any method."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.frames import frames_note, frames_of
from lmd.data.pixels import quiet_decoders
from lmd.deploy.average import AverageEngine, load_average
from lmd.deploy.decisions import rule_of
from lmd.deploy.engines import OnnxEngine, TorchEngine
from lmd.deploy.images import Given, Image, find_images, fitted, listed, mirrored
from lmd.deploy.neighbours import Neighbours
from lmd.deploy.novelty import Novelty, checked_above, load_novelty
from lmd.deploy.prediction import Prediction
from lmd.model import AVERAGE, load_model
from lmd.scoring.costs import GivenCosts
from lmd.scoring.novelty import ABOVE
from lmd.scoring.prevalence import Prevalence
from lmd.scoring.rules import Wanted

if TYPE_CHECKING:
    from lmd.deploy.explain import Explanation
    from lmd.deploy.exported import Compute

__all__ = ["Predictor", "find_images", "load"]


class Predictor:
    """Predicts images of any size, given as paths, folders, Pillow images or arrays."""

    def __init__(
        self, engine: TorchEngine | OnnxEngine | AverageEngine, folder: Path | None = None
    ) -> None:
        self.engine = engine
        self.classes = engine.classes
        self.folder = folder
        self.novelty: Novelty | None = None
        self.index: Neighbours | None = None  # read when it is first needed
        self.compute: Compute | None = None  # probabilities and features of a faster engine
        if folder is not None and isinstance(engine, TorchEngine):
            self.novelty = load_novelty(folder, engine.spec.feature_dim)
        elif isinstance(engine, AverageEngine):
            self.novelty = engine.novelty

    def predict(
        self,
        images: Given | Sequence[Given],
        *,
        batch_size: int = 64,
        skip_bad: bool = False,
        tick: Callable[[int, int], None] | None = None,
        prevalence: Prevalence | None = None,
        costs: GivenCosts | None = None,
        coverage: float | None = None,
        refer_above: int | None = None,
        unlike_above: float | None = None,
        tta: bool = False,
    ) -> Prediction:
        """Probabilities of all images, which are decoded in parallel while the model computes.

        One image or several: paths, folders, Pillow images, or arrays ``(H, W)`` or ``(H, W, C)``
        with 1, 3 or 4 channels of uint8 or uint16; an array ``(N, H, W, C)`` is N images.
        ``prevalence``, ``costs``, ``coverage`` and ``refer_above`` are those of ``lmd predict``,
        see docs/decisions.md. An image is flagged if it is farther from the training images than
        the share ``unlike_above`` of the validation images, by default 0.99. With ``tta``, the
        probabilities are means over the image and its three mirror images.
        """
        if tta and coverage is not None:
            raise LmdError(
                "--tta cannot be used with --coverage: the prediction sets are calibrated on "
                "validation images that were not mirrored"
            )
        rule = rule_of(self.engine.spec, Wanted(prevalence, costs, coverage, refer_above))
        above = checked_above(unlike_above, self.novelty)
        others: list[Path] = []
        images = listed(images, others)
        frames: dict[str, int] = {}
        names: list[str] = []
        flags = [np.zeros(0, np.bool_)]
        batches = [np.zeros((0, len(self.classes)), np.float32)]
        skipped: list[str] = []
        done = 0
        for chunk in self._read(images, batch_size, frames):
            good = [(name, found) for name, found in chunk if not isinstance(found, LmdError)]
            problems = [str(found) for _, found in chunk if isinstance(found, LmdError)]
            if problems and not skip_bad:
                raise LmdError(f"{problems[0]}\nUse --skip-bad to leave out such images.")
            skipped += problems
            if good:
                names += [name for name, _ in good]
                pixels = np.stack([pixels for _, pixels in good])
                probabilities, unlike = self.answer(pixels, above, tta=tta)
                batches.append(probabilities)
                flags.append(unlike)
            done += len(chunk)
            if tick is not None:
                tick(done, len(images))
        decided = rule.decide(np.concatenate(batches))
        return Prediction(
            tuple(names),
            self.classes,
            decided.probabilities,
            decided,
            rule,
            tuple(skipped),
            None if self.novelty is None else np.concatenate(flags),
            (frames_note(dict(sorted(frames.items()))),) if frames else (),
            tuple(map(str, others)),
        )

    def __repr__(self) -> str:
        """What the model is and what it tells apart."""
        spec = self.engine.spec
        made = f"{spec.method} on {spec.backbone} at {self.engine.image_size} px"
        where = "" if self.folder is None else f" from {self.folder}"
        return f"<model{where}: {made}, {len(self.classes)} classes: {shorten(self.classes, 8)}>"

    def explain(
        self, image: Image, *, classes: int = 2, neighbours: int | None = None
    ) -> "Explanation":
        """Heat maps of the most probable classes, and the nearest training images.

        ``neighbours`` is their number; by default 5 if the run folder has their features, else 0.
        """
        from lmd.deploy.explain import explain

        return explain(self, image, classes=classes, neighbours=neighbours)

    def answer(
        self, pixels: NDArray[np.uint8], above: float = ABOVE, *, tta: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Of resized images ``(B, S, S, 3)``: probabilities ``(B, K)``, and the flags ``(B,)``.

        With ``tta``, probabilities are means over mirror images; the flags are of the images alone.
        """
        found, unlike = self._answer(pixels, above)
        if tta:
            views = [found, *map(self.engine.probabilities, mirrored(pixels))]
            found = np.asarray(np.mean(views, axis=0, dtype=np.float64), np.float32)
        return found, unlike

    def _answer(
        self, pixels: NDArray[np.uint8], above: float
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        if isinstance(self.engine, AverageEngine):
            return self.engine.answer(pixels, above)
        if self.compute is not None:
            probabilities, features = self.compute(pixels)
            if self.novelty is None:
                return probabilities, np.zeros(len(pixels), np.bool_)
            return probabilities, self.novelty.unlike(features, above)
        if self.novelty is None or not isinstance(self.engine, TorchEngine):
            return self.engine.probabilities(pixels), np.zeros(len(pixels), np.bool_)
        features = self.engine.features(pixels)
        return self.engine.classified(features), self.novelty.unlike(features, above)

    def _read(
        self, images: Sequence[Given], batch_size: int, frames: dict[str, int]
    ) -> Iterator[list[tuple[str, NDArray[np.uint8] | LmdError]]]:
        """Batches of names and pixels ``(S, S, 3)`` or errors, read one batch ahead.

        Files with several frames are added to ``frames``.
        """
        size, rule = self.engine.image_size, self.engine.rule

        def one(item: tuple[int, Given]) -> tuple[str, NDArray[np.uint8] | LmdError]:
            number, image = item
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            if isinstance(image, LmdError):
                return name, image
            try:
                pixels = fitted(image, name, size, rule)
            except LmdError as error:
                return name, error
            except MemoryError:
                return name, LmdError(f"image {name} needs more memory than there is: shrink it")
            if isinstance(image, str | Path) and (count := frames_of(Path(image))) > 1:
                frames[name] = count
            return name, pixels

        with quiet_decoders(), ThreadPoolExecutor() as pool:
            items = iter(enumerate(images))
            waiting = [pool.submit(one, item) for item in islice(items, batch_size)]
            while waiting:
                ahead = [pool.submit(one, item) for item in islice(items, batch_size)]
                yield [future.result() for future in waiting]
                waiting = ahead


def load(path: str | PathLike[str], device: torch.device | str = "cpu") -> Predictor:
    """A predictor for the model of a run, of a run folder or of an exported ``.onnx`` file.

    The models of a cross-validation's folder answer together.
    """
    path = Path(path)
    if path.suffix.lower() == ".onnx":
        return Predictor(OnnxEngine(path))
    if (path / AVERAGE).is_file() and not (path / "model.json").exists():
        return Predictor(load_average(path, device), path)
    folder = path if path.is_dir() else path.parent
    return Predictor(TorchEngine(*load_model(path), device), folder)
