"""Prediction with a shipped model, without importing any method."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image as PillowImage

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.data.loaders import Normalise
from lmd.data.pixels import rgb_pixels
from lmd.data.reading import read_image
from lmd.data.resizing import resize, resize_v1
from lmd.data.sources.walk import images_below
from lmd.deploy.decisions import extra_columns, rule_of
from lmd.model import Model, ModelSpec, channels_last, load_model, read_spec
from lmd.scoring.conformal import Guarantee
from lmd.scoring.costs import GivenCosts
from lmd.scoring.prevalence import Prevalence
from lmd.scoring.rules import Decided, Rule, Wanted

Image = str | Path | PillowImage | NDArray[np.uint8] | NDArray[np.uint16]


class TorchEngine:
    """The shipped model of a run folder, run by torch."""

    def __init__(self, model: Model, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.model = channels_last(model.to(self.device)).eval()
        self.spec = spec
        pre = spec.preprocessing
        self.classes, self.image_size, self.rule = spec.classes, pre.image_size, pre.resize
        self._normalise = Normalise.of(pre.mean, pre.std, self.device)

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        with torch.inference_mode():
            logits = self.model(self._normalise(torch.from_numpy(pixels)))
            probabilities = (logits.float() / self.spec.temperature).softmax(1)
        found: NDArray[np.float32] = probabilities.cpu().numpy()
        return found


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
        self.spec = read_spec(json.loads(about["spec"]), f"the metadata of model file {path}")
        self.classes, self.image_size = self.spec.classes, self.spec.preprocessing.image_size
        self.rule: str = self.spec.preprocessing.resize

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        found: NDArray[np.float32] = self._session.run(["probabilities"], {"images": pixels})[0]
        return found


@dataclass(frozen=True)
class Prediction:
    """``probabilities (N, K)`` of the images ``names (N,)``, in the order of ``classes (K,)``.

    ``skipped`` says which images could not be read, and why. ``decided`` has what follows from the
    ``rule``: classes, prediction sets and referrals.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: NDArray[np.floating[Any]]
    decided: Decided
    rule: Rule
    skipped: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable class of each image, or the cheapest one if there are costs."""
        return tuple(self.classes[k] for k in self.decided.chosen)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...] | None:
        """The prediction set of each image, if a coverage was asked for."""
        if self.decided.sets is None:
            return None
        return tuple(
            tuple(name for name, inside in zip(self.classes, row, strict=True) if inside)
            for row in self.decided.sets
        )

    @property
    def guarantees(self) -> dict[str, Guarantee]:
        """What the coverage of each class means; empty without prediction sets."""
        return dict(zip(self.classes, self.rule.sets or (), strict=False))

    def write_csv(self, path: Path) -> None:
        """Write one row per image: name, class, its probability, decisions, all probabilities."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        extra = extra_columns(self.decided, self.rule, self.classes)
        every = (f"p:{name}" for name in self.classes)
        writer.writerow(["image", "predicted", "probability", *extra, *every])
        for i, (name, k) in enumerate(zip(self.names, self.decided.chosen, strict=True)):
            row = [f"{p:.6f}" for p in self.probabilities[i]]
            cells = [column[i] for column in extra.values()]
            writer.writerow([name, self.classes[k], row[k], *cells, *row])
        atomic_write(path, text.getvalue().encode())


class Predictor:
    """Predicts images of any size, given as paths, folders, Pillow images or arrays."""

    def __init__(self, engine: TorchEngine | OnnxEngine) -> None:
        self.engine = engine
        self.classes = engine.classes

    def predict(
        self,
        images: Image | Sequence[Image],
        *,
        batch_size: int = 64,
        skip_bad: bool = False,
        tick: Callable[[int, int], None] | None = None,
        prevalence: Prevalence | None = None,
        costs: GivenCosts | None = None,
        coverage: float | None = None,
        refer_above: int | None = None,
    ) -> Prediction:
        """Probabilities of all images, which are decoded in parallel while the model computes.

        One image or several: paths, folders, Pillow images, or arrays ``(H, W)`` or ``(H, W, C)``
        with 1, 3 or 4 channels of uint8 or uint16. ``prevalence``, ``costs``, ``coverage`` and
        ``refer_above`` are those of ``lmd predict``: see docs/decisions.md.
        """
        rule = rule_of(self.engine.spec, Wanted(prevalence, costs, coverage, refer_above))
        images = _listed(images)
        names: list[str] = []
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
                batches.append(self.engine.probabilities(pixels))
            done += len(chunk)
            if tick is not None:
                tick(done, len(images))
        decided = rule.decide(np.concatenate(batches))
        return Prediction(
            tuple(names), self.classes, decided.probabilities, decided, rule, tuple(skipped)
        )

    def _read(
        self, images: Sequence[Image], batch_size: int
    ) -> Iterator[list[tuple[str, NDArray[np.uint8] | LmdError]]]:
        """Batches of names and pixels ``(S, S, 3)`` or errors, read one batch ahead."""
        size, rule = self.engine.image_size, self.engine.rule

        def one(item: tuple[int, Image]) -> tuple[str, NDArray[np.uint8] | LmdError]:
            number, image = item
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            try:
                return name, _as_pixels(image, name, size, rule)
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
    return Predictor(TorchEngine(*load_model(path), device))


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


def _listed(images: Image | Sequence[Image]) -> list[Image]:
    """Single images; folders and arrays ``(N, H, W, C)`` are replaced by what they contain."""
    several = isinstance(images, Iterable) and not isinstance(images, str | bytes | PillowImage)
    if isinstance(images, np.ndarray):
        several = images.ndim == 4
    given: Iterable[Image] = images if several else [images]  # type: ignore[assignment, list-item]
    found: list[Image] = []
    for image in given:
        folder = isinstance(image, str | Path) and Path(image).is_dir()
        found += find_images([image]) if folder else [image]  # type: ignore[list-item]
    return found


def _as_pixels(image: Image, name: str, size: int, rule: str) -> NDArray[np.uint8]:
    """Pixels ``(size, size, 3)`` by the rule of the model."""
    old = rule == "v1"
    if isinstance(image, str | Path):
        pixels = read_image(image, at_least=size if old else None, old=old)
    else:
        pixels = rgb_pixels(image, name)
    return resize_v1(pixels, size) if old else resize(pixels, size)
