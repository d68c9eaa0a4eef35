"""Use of a shipped model: images in, probabilities out; no method is imported."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.data.loaders import Normalise
from lmd.data.reading import SUFFIXES, read_image
from lmd.data.views import resize
from lmd.errors import LmdError
from lmd.files import atomic_write
from lmd.model import Model, ModelSpec, channels_last, load_model

Image = str | Path | NDArray[np.uint8]


@dataclass(frozen=True)
class Prediction:
    """``labels (N,)`` are class names, ``probabilities (N, K)`` follow ``classes``.

    ``names (N,)`` are the images that could be read, ``skipped`` says why the others could not.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    skipped: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable class of each image."""
        return tuple(self.classes[k] for k in self.probabilities.argmax(1))

    def write_csv(self, path: Path) -> None:
        """One row per image: name, class, its probability, then all probabilities."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "predicted", "probability", *(f"p:{c}" for c in self.classes)])
        for name, label, row in zip(self.names, self.labels, self.probabilities, strict=True):
            writer.writerow([name, label, f"{row.max():.6f}", *(f"{p:.6f}" for p in row)])
        atomic_write(path, text.getvalue().encode())


class Predictor:
    """A shipped model, ready for images of any size.

    ``lmd.load("runs/x").predict(["a.jpg", array])``: paths, or RGB arrays ``(H, W, 3)`` of uint8.
    """

    def __init__(self, model: Model, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.model = channels_last(model.to(self.device)).eval()
        self.spec = spec
        pre = spec.preprocessing
        self._normalise = Normalise.of(pre.mean, pre.std, self.device)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the probabilities."""
        return self.spec.classes

    def predict(
        self,
        images: Sequence[Image],
        *,
        batch_size: int = 64,
        skip_bad: bool = False,
        tick: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Probabilities of every image; images are decoded in parallel while the model computes."""
        names: list[str] = []
        found: list[NDArray[np.float32]] = []
        skipped: list[str] = []
        done = 0
        for chunk in self._read(images, batch_size):
            good = [(name, pixels) for name, pixels, problem in chunk if problem is None]
            problems = [problem for _, _, problem in chunk if problem is not None]
            if problems and not skip_bad:
                raise LmdError(f"{problems[0]}\nGo on without such images with --skip-bad.")
            skipped += problems
            if good:
                names += [name for name, _ in good]
                found.append(self.probabilities(np.stack([pixels for _, pixels in good])))
            done += len(chunk)
            if tick is not None:
                tick(done, len(images))
        empty = np.zeros((0, len(self.classes)), np.float32)
        return Prediction(
            tuple(names), self.classes, np.concatenate(found) if found else empty, tuple(skipped)
        )

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        with torch.inference_mode():
            logits = self.model(self._normalise(torch.from_numpy(pixels)))
            probabilities = (logits.float() / self.spec.temperature).softmax(1)
        found: NDArray[np.float32] = probabilities.cpu().numpy()
        return found

    def _read(
        self, images: Sequence[Image], batch_size: int
    ) -> Iterator[list[tuple[str, NDArray[np.uint8], str | None]]]:
        """Batches of name, pixels ``(S, S, 3)`` and what went wrong; one batch ahead."""
        size = self.spec.preprocessing.image_size
        nothing = np.zeros((0, 0, 3), np.uint8)

        def one(item: tuple[int, Image]) -> tuple[str, NDArray[np.uint8], str | None]:
            number, image = item
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            try:
                return name, resize(_as_pixels(image, name, size), size), None
            except LmdError as error:
                return name, nothing, str(error)

        with ThreadPoolExecutor() as pool:
            items = iter(enumerate(images))
            waiting = [pool.submit(one, item) for item in islice(items, batch_size)]
            while waiting:
                ahead = [pool.submit(one, item) for item in islice(items, batch_size)]
                yield [future.result() for future in waiting]
                waiting = ahead


def load(path: str | Path, device: torch.device | str = "cpu") -> Predictor:
    """The shipped model of a run folder, ready to predict."""
    model, spec = load_model(Path(path))
    return Predictor(model, spec, device)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are, folders searched for images; an error names what is missing or empty."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()
            )
            if not inside:
                raise LmdError(f"there is no image in the folder {path}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise LmdError(f"image {path} does not exist")
    return found


def _as_pixels(image: Image, name: str, size: int) -> NDArray[np.uint8]:
    if isinstance(image, str | Path):
        return read_image(image, at_least=size)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise LmdError(
            f"{name} must be RGB of uint8 with shape (H, W, 3); "
            f"it is {image.dtype} with shape {image.shape}"
        )
    return image
