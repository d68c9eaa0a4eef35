"""Prediction with a shipped model, without importing any method."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.data.loaders import Normalise
from lmd.data.reading import read_image
from lmd.data.sources.walk import images_below
from lmd.data.views import resize
from lmd.deploy.neighbours import Neighbours
from lmd.deploy.novelty import Novelty, checked_above, load_novelty
from lmd.model import Model, ModelSpec, channels_last, load_model

if TYPE_CHECKING:
    from lmd.deploy.explain import Explanation

Image = str | Path | NDArray[np.uint8]


class TorchEngine:
    """The shipped model of a run folder, run by torch."""

    def __init__(self, model: Model, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.model = channels_last(model.to(self.device)).eval()
        self.spec = spec
        pre = spec.preprocessing
        self.classes, self.image_size = spec.classes, pre.image_size
        self._normalise = Normalise.of(pre.mean, pre.std, self.device)

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        return self.classified(self.features(pixels))

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, C)``."""
        with torch.inference_mode():
            features = self.model.features(self.normalised(pixels))
        found: NDArray[np.float32] = features.float().cpu().numpy()
        return found

    def classified(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities ``(B, K)`` of ``features (B, C)``."""
        with torch.inference_mode():
            logits = self.model.classifier(torch.from_numpy(features).to(self.device))
            probabilities = (logits.float() / self.spec.temperature).softmax(1)
        found: NDArray[np.float32] = probabilities.cpu().numpy()
        return found

    def normalised(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """The model's input ``(B, 3, S, S)``, on its device."""
        return self._normalise(torch.from_numpy(pixels))


class OnnxEngine:
    """A file of ``lmd.deploy.export.export_onnx``, run by onnxruntime on the CPU.

    With ``threads=0``, onnxruntime chooses the number of threads.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise LmdError(
                f"{path} needs onnxruntime, which is not installed: run pip install 'lmd[onnx]'"
            ) from error
        if not path.is_file():
            raise LmdError(f"model file {path} does not exist")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise LmdError(f"model file {path} is not a valid ONNX file ({error})") from error
        about = self._session.get_modelmeta().custom_metadata_map
        inputs = [i.name for i in self._session.get_inputs()]
        if not {"classes", "spec"} <= about.keys() or inputs != ["images"]:
            raise LmdError(
                f"model file {path} was not written by lmd (it has no classes in its metadata): "
                "make it with `lmd export RUN --onnx FILE`"
            )
        self.classes: tuple[str, ...] = tuple(json.loads(about["classes"]))
        self.image_size = int(json.loads(about["spec"])["preprocessing"]["image_size"])

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        found: NDArray[np.float32] = self._session.run(["probabilities"], {"images": pixels})[0]
        return found


@dataclass(frozen=True)
class Prediction:
    """``probabilities (N, K)`` of the images ``names (N,)``, in the order of ``classes (K,)``.

    ``skipped`` says which images could not be read, and why. ``unlike_training (N,)`` flags images
    unlike the training images; it is ``None`` if the model cannot tell.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    skipped: tuple[str, ...] = ()
    unlike_training: NDArray[np.bool_] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable class of each image."""
        return tuple(self.classes[k] for k in self.probabilities.argmax(1))

    def write_csv(self, path: Path) -> None:
        """Write one row per image: name, class, its probability, then all probabilities.

        The column ``unlike_training`` (true or false) comes before them, if it is known.
        """
        flags = self.unlike_training
        flag_column = [] if flags is None else ["unlike_training"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [*flag_column, *(f"p:{c}" for c in self.classes)]
        writer.writerow(["image", "predicted", "probability", *columns])
        rows = zip(self.names, self.labels, self.probabilities, strict=True)
        for i, (name, label, row) in enumerate(rows):
            flag = [] if flags is None else [str(bool(flags[i])).lower()]
            writer.writerow([name, label, f"{row.max():.6f}", *flag, *(f"{p:.6f}" for p in row)])
        atomic_write(path, text.getvalue().encode())


class Predictor:
    """Predicts images of any size, given as paths or as RGB arrays ``(H, W, 3)`` of uint8."""

    def __init__(self, engine: TorchEngine | OnnxEngine, folder: Path | None = None) -> None:
        self.engine = engine
        self.classes = engine.classes
        self.folder = folder
        self.novelty: Novelty | None = None
        self.index: Neighbours | None = None  # read when it is first needed
        if folder is not None and isinstance(engine, TorchEngine):
            self.novelty = load_novelty(folder, engine.spec.feature_dim)

    def predict(
        self,
        images: Sequence[Image],
        *,
        batch_size: int = 64,
        skip_bad: bool = False,
        tick: Callable[[int, int], None] | None = None,
        unlike_above: float | None = None,
    ) -> Prediction:
        """Probabilities of all images, which are decoded in parallel while the model computes.

        An image is flagged if it is farther from the training images than the share
        ``unlike_above`` of the validation images, by default 0.99.
        """
        above = checked_above(unlike_above, self.novelty)
        names: list[str] = []
        flags = [np.zeros(0, np.bool_)]
        batches = [np.zeros((0, len(self.classes)), np.float32)]
        skipped: list[str] = []
        done = 0
        for chunk in self._read(images, batch_size):
            good = [(name, found) for name, found in chunk if not isinstance(found, LmdError)]
            problems = [str(found) for _, found in chunk if isinstance(found, LmdError)]
            if problems and not skip_bad:
                raise LmdError(f"{problems[0]}\nUse --skip-bad to leave out such images.")
            skipped += problems
            if good:
                names += [name for name, _ in good]
                pixels = np.stack([pixels for _, pixels in good])
                probabilities, unlike = self._answer(pixels, above)
                batches.append(probabilities)
                flags.append(unlike)
            done += len(chunk)
            if tick is not None:
                tick(done, len(images))
        found = np.concatenate(batches)
        flagged = None if self.novelty is None else np.concatenate(flags)
        return Prediction(tuple(names), self.classes, found, tuple(skipped), flagged)

    def explain(
        self, image: Image, *, classes: int = 2, neighbours: int | None = None
    ) -> "Explanation":
        """Heat maps of the most probable classes, and the nearest training images.

        ``neighbours`` is their number; by default 5 if the run folder has their features, else 0.
        """
        from lmd.deploy.explain import explain

        return explain(self, image, classes=classes, neighbours=neighbours)

    def _answer(
        self, pixels: NDArray[np.uint8], above: float
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Probabilities ``(B, K)``, and which images are unlike the training images ``(B,)``."""
        if self.novelty is None or not isinstance(self.engine, TorchEngine):
            return self.engine.probabilities(pixels), np.zeros(len(pixels), np.bool_)
        features = self.engine.features(pixels)
        return self.engine.classified(features), self.novelty.unlike(features, above)

    def _read(
        self, images: Sequence[Image], batch_size: int
    ) -> Iterator[list[tuple[str, NDArray[np.uint8] | LmdError]]]:
        """Batches of names and pixels ``(S, S, 3)`` or errors, read one batch ahead."""
        size = self.engine.image_size

        def one(item: tuple[int, Image]) -> tuple[str, NDArray[np.uint8] | LmdError]:
            number, image = item
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            try:
                return name, resize(as_pixels(image, name, size), size)
            except LmdError as error:
                return name, error

        with ThreadPoolExecutor() as pool:
            items = iter(enumerate(images))
            waiting = [pool.submit(one, item) for item in islice(items, batch_size)]
            while waiting:
                ahead = [pool.submit(one, item) for item in islice(items, batch_size)]
                yield [future.result() for future in waiting]
                waiting = ahead


def load(path: str | Path, device: torch.device | str = "cpu") -> Predictor:
    """A predictor for the model of a run folder or for an exported ``.onnx`` file."""
    path = Path(path)
    if path.suffix.lower() == ".onnx":
        return Predictor(OnnxEngine(path))
    folder = path if path.is_dir() else path.parent
    return Predictor(TorchEngine(*load_model(path), device), folder)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """The given files, and the images in the given folders."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = images_below(path)
            if not inside:
                raise LmdError(f"there are no images in the folder {path}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise LmdError(f"image {path} does not exist")
    return found


def as_pixels(image: Image, name: str, size: int) -> NDArray[np.uint8]:
    """RGB ``(H, W, 3)`` of a file or an array; a JPEG may be decoded at a fraction of its size."""
    if isinstance(image, str | Path):
        return read_image(image, at_least=size)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise LmdError(
            f"{name} must be an RGB array of uint8 with shape (H, W, 3); "
            f"it is {image.dtype} with shape {image.shape}"
        )
    return image
