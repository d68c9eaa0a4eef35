"""Predict images with a shipped model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress, islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image as PillowImage

from lmd.base.errors import LmdError
from lmd.base.files import FOLDER, MISSING, atomic_write, what_is
from lmd.base.text import csv_text, no_formula, printable, shorten
from lmd.data import images as decoding
from lmd.data.walk import images_of, tree_below
from lmd.decisions.decide import CostTable, Decide, Prevalence
from lmd.decisions.policy import Decided, Policy, policy_of
from lmd.model.files import AVERAGE, read_model
from lmd.predict.engines import Engine, Floats, Pixels, TorchEngine
from lmd.predict.novelty import ABOVE, FILE, Novelty, load_novelty

if TYPE_CHECKING:
    from lmd.data.table import Part
    from lmd.explain.explanation import Explanation
    from lmd.explain.neighbours import Neighbours
    from lmd.predict.average import Majority
    from lmd.scoring.conformal import Guarantee

BATCH = 64
SHOWN = 5  # images in the representation
Image = str | Path | PillowImage | NDArray[np.uint8] | NDArray[np.uint16]
Input = Image | LmdError  # an error stands for what cannot be read
Tick = Callable[[int, int], None]


def find_images(
    paths: Iterable[str | Path], others: list[Path] | None = None
) -> list[Path | LmdError]:
    """Return the files, and the images in the folders, which are those that training sees.

    Folders that cannot be listed, pipes, sockets, devices and names that are not UTF-8 are in the
    list as errors, which are raised by the prediction or counted as skipped. Files that are not
    images are added to ``others``.
    """
    images: list[Path | LmdError] = []
    for path in map(Path, paths):
        state = what_is(path)
        if state == FOLDER:
            tree = tree_below(path)
            refused = [
                decoding.unreadable(at, why) for at, why in (tree.unlisted | tree.special).items()
            ]
            inside = images_of(tree.files, path)
            rest = sorted({*tree.files} - {*inside})
            if not inside and not refused:
                names = f": {shorten([file.name for file in rest])} are not images" if rest else ""
                raise LmdError(f"there are no images in the folder {path}{names}")
            images += [*map(_checked_name, inside), *refused]
            if others is not None:
                others += rest
        elif state == MISSING:
            raise LmdError(f"image {path} does not exist")
        else:
            images.append(_checked_name(path))
    return images


def _checked_name(path: Path) -> Path | LmdError:
    """Return the path, or an error if its name cannot be written to a file."""
    if printable(str(path)) == str(path):
        return path
    return LmdError(f"the name of the file {printable(str(path))} is not UTF-8: rename it")


def _listed(images: Input | Sequence[Input], others: list[Path]) -> list[Input]:
    """Return single images; folders and arrays ``(N, H, W, C)`` are replaced by their images."""
    several = isinstance(images, Iterable) and not isinstance(images, str | bytes | PillowImage)
    if isinstance(images, np.ndarray):
        several = images.ndim == 4
    items: Iterable[Input] = images if several else [images]  # type: ignore[assignment, list-item]
    singles: list[Input] = []
    for image in items:
        if not isinstance(image, str | Path):
            singles.append(image)
        elif what_is(Path(image)) == FOLDER:
            singles += find_images([image], others)
        else:
            name = _checked_name(Path(image))
            singles.append(name if isinstance(name, LmdError) else image)
    return singles


def fitted(image: Image, name: str, size: int) -> decoding.Decoded:
    """Return pixels ``(size, size, 3)`` as in training, and the number of frames."""
    if not isinstance(image, str | Path):
        return decoding.Decoded(decoding.resize(decoding.rgb_pixels(image, name), size))
    with decoding.open_image(image) as full:
        return decoding.Decoded(decoding.resize(full.pixels, size), full.frames)


@dataclass
class _Reading:
    """Images that become batches of a ``size``, with the ``frames`` of files that have several."""

    images: list[Input]
    size: int
    skip_bad: bool
    names: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    frames: dict[str, int] = field(default_factory=dict)

    def batches(self, batch_size: int, tick: Tick | None) -> Iterator[Pixels]:
        """Yield the pixels ``(B, S, S, 3)`` of readable images, which are read one batch ahead."""
        with decoding.quiet_decoders(), ThreadPoolExecutor() as pool:
            numbers, done = iter(range(len(self.images))), 0
            waiting = [pool.submit(self._read, i) for i in islice(numbers, batch_size)]
            while waiting:
                ahead = [pool.submit(self._read, i) for i in islice(numbers, batch_size)]
                read = [future.result() for future in waiting]
                problems = [str(pixels) for _, pixels in read if isinstance(pixels, LmdError)]
                if problems and not self.skip_bad:
                    raise LmdError(f"{problems[0]}\nUse --skip-bad to leave out such images.")
                self.skipped += problems
                good = [(name, pixels) for name, pixels in read if isinstance(pixels, np.ndarray)]
                self.names += [name for name, _ in good]
                if good:
                    yield np.stack([pixels for _, pixels in good])
                done += len(waiting)
                if tick is not None:
                    tick(done, len(self.images))
                waiting = ahead

    def _read(self, number: int) -> tuple[str, Pixels | LmdError]:
        image = self.images[number]
        name = str(image) if isinstance(image, str | Path) else f"image {number}"
        if isinstance(image, LmdError):
            return name, image
        try:
            pixels, count = fitted(image, name, self.size)
        except LmdError as error:
            return name, error
        except MemoryError:
            return name, LmdError(f"image {name} needs more memory than there is: shrink it")
        if count > 1:
            self.frames[name] = count
        return name, pixels


def in_batches(images: "Part | Pixels", tick: Tick | None = None) -> Iterator[Pixels]:
    """Yield decoded and resized images ``(N, S, S, 3)``, a part of which may be on disk."""
    for start in range(0, len(images), BATCH):
        yield images[start : start + BATCH]
        if tick is not None:
            tick(min(start + BATCH, len(images)), len(images))


@dataclass(frozen=True, repr=False)
class Prediction:
    """``probabilities (N, K)`` of the images ``names (N,)``, in the order of ``classes (K,)``.

    ``skipped`` says which images could not be read, and why. ``decided`` has what follows from the
    ``policy``: classes, prediction sets and referrals. ``unlike_training (N,)`` flags images unlike
    the training images; it is ``None`` if the model cannot tell. ``notes`` say what else is worth
    knowing, such as files with several frames; ``passed_over`` are the files in given folders that
    are not images.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: NDArray[np.floating[Any]]
    decided: Decided
    policy: Policy
    skipped: tuple[str, ...] = ()
    unlike_training: NDArray[np.bool_] | None = None
    notes: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        """Show the classes and probabilities of the first images."""
        chosen = zip(self.names, self.labels, self.probabilities, self.decided.chosen, strict=True)
        rows = [f"  {name}: {label} {p[k]:.3f}" for name, label, p, k in islice(chosen, SHOWN)]
        more = [f"  and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return "\n".join([f"<prediction of {len(self)} images{skipped}", *rows, *more]) + ">"

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable class of each image, or the cheapest one if there are costs."""
        return tuple(self.classes[k] for k in self.decided.chosen)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...] | None:
        """The prediction set of each image, if a coverage was asked for."""
        if self.decided.sets is None:
            return None
        return tuple(tuple(compress(self.classes, row)) for row in self.decided.sets)

    @property
    def guarantees(self) -> "dict[str, Guarantee]":
        """What the coverage of each class means; empty without prediction sets."""
        return dict(zip(self.classes, self.policy.sets or (), strict=False))

    def write_csv(self, path: str | Path) -> None:
        """Write one row per image: name, class, its probability, decisions, all probabilities.

        The column ``unlike_training`` (true or false) is there if it is known. A class has the
        same name in the header and in every column, also if a spreadsheet would compute it.
        """
        classes = [no_formula(name) for name in self.classes]
        extra: dict[str, list[Any]] = {}
        if self.decided.sets is not None:
            # A backslash comes before what would end a name.
            names = [name.replace("\\", r"\\").replace("|", r"\|") for name in classes]
            extra["set"] = ["|".join(compress(names, row)) for row in self.decided.sets]
            extra["set_size"] = self.decided.sets.sum(axis=1).tolist()
        if self.policy.refers:
            extra["refer"] = ["yes" if refer else "no" for refer in self.decided.refer]
        if self.unlike_training is not None:
            extra["unlike_training"] = [str(bool(flag)).lower() for flag in self.unlike_training]
        header = ["image", "predicted", "probability", *extra, *(f"p:{name}" for name in classes)]
        rows = []
        for i, (name, k) in enumerate(zip(self.names, self.decided.chosen, strict=True)):
            cells = [f"{p:.6f}" for p in self.probabilities[i]]
            others = [column[i] for column in extra.values()]
            rows.append([no_formula(name), classes[k], cells[k], *others, *cells])
        # Names are safe by now; exact, because a set of two classes is no call either.
        atomic_write(Path(path), csv_text(header, rows, exact=True).encode(), parents=True)


class Answers(NamedTuple):
    """What a model makes of N images; no image is flagged ``unlike`` without ``novelty``."""

    probabilities: Floats
    unlike: NDArray[np.bool_]
    features: Floats | None


class Predictor:
    """Predicts images of any size, given as paths, folders, Pillow images or arrays."""

    def __init__(
        self,
        engine: Engine,
        folder: Path | None = None,
        novelty: "Novelty | Majority | None" = None,
    ) -> None:
        self.engine = engine
        self.classes = engine.classes
        self.folder = folder
        self.novelty = novelty
        self.faster: Engine | None = None  # answers in place of the engine, if there is one
        self.index: Neighbours | None = None  # read when it is first needed

    def predict(
        self,
        images: Input | Sequence[Input],
        *,
        batch_size: int = 64,
        skip_bad: bool = False,
        tick: Tick | None = None,
        prevalence: Prevalence | None = None,
        costs: CostTable | None = None,
        coverage: float | None = None,
        refer_above: int | None = None,
        unlike_above: float | None = None,
        tta: bool = False,
    ) -> Prediction:
        """Predict all images, which are decoded in parallel while the model computes.

        One image or several: paths, folders, Pillow images, or arrays ``(H, W)`` or ``(H, W, C)``
        with 1, 3 or 4 channels of uint8 or uint16; an array ``(N, H, W, C)`` is N images.
        ``prevalence``, ``costs``, ``coverage`` and ``refer_above`` are as in ``lmd predict``,
        see docs/decisions.md. An image is flagged if it is farther from the training images than
        the share ``unlike_above`` of the validation images, by default 0.99. With ``tta``, the
        probabilities are means over the image and its three mirror images.
        """
        if tta and coverage is not None:
            raise LmdError(
                "--tta cannot be used with --coverage: the prediction sets are calibrated on "
                "validation images that were not mirrored"
            )
        policy = policy_of(self.engine.spec, Decide(prevalence, costs, coverage, refer_above))
        above = ABOVE if unlike_above is None else unlike_above
        if not 0 < above < 1:
            raise LmdError(f"--unlike-above must be between 0 and 1; it is {above}")
        if unlike_above is not None and self.novelty is None:
            raise LmdError(
                f"--unlike-above: the model has no {FILE}, so it cannot tell which images are "
                "unlike the training images: leave out the option, or train the run again"
            )
        others: list[Path] = []
        reading = _Reading(_listed(images, others), self.engine.image_size, skip_bad)
        answers = self.infer(reading.batches(batch_size, tick), above, tta=tta)
        decided, frames = policy.decide(answers.probabilities), dict(sorted(reading.frames.items()))
        return Prediction(
            tuple(reading.names),
            self.classes,
            decided.probabilities,
            decided,
            policy,
            tuple(reading.skipped),
            None if self.novelty is None else answers.unlike,
            (decoding.frames_note(frames),) if frames else (),
            tuple(map(str, others)),
        )

    def __repr__(self) -> str:
        """Show what the model is and its classes."""
        spec = self.engine.spec
        method = f"{spec.method} on {spec.backbone} at {self.engine.image_size} px"
        where = "" if self.folder is None else f" from {self.folder}"
        return f"<model{where}: {method}, {len(self.classes)} classes: {shorten(self.classes, 8)}>"

    def explain(
        self, image: Image, *, classes: int = 2, neighbours: int | None = None
    ) -> "Explanation":
        """Return heat maps of the most probable classes, and the nearest training images.

        ``neighbours`` is their number; by default 5 if the run folder has their features, else 0.
        """
        from lmd.explain.explanation import explain

        return explain(self, image, classes=classes, neighbours=neighbours)

    def infer(
        self, batches: Iterable[Pixels], above: float = ABOVE, *, tta: bool = False
    ) -> Answers:
        """Answer for the images of batches ``(B, S, S, 3)``, of which there may be none."""
        answers = [self.answer(pixels, above, tta=tta) for pixels in batches]
        if not answers:
            none = np.zeros((0, len(self.classes)), np.float32)
            no_features = np.zeros((0, self.engine.spec.feature_dim), np.float32)
            return Answers(none, np.zeros(0, np.bool_), no_features)
        probabilities, unlike, features = zip(*answers, strict=True)
        joined = None if features[0] is None else np.concatenate(features)
        return Answers(np.concatenate(probabilities), np.concatenate(unlike), joined)

    def answer(self, pixels: Pixels, above: float = ABOVE, *, tta: bool = False) -> Answers:
        """Answer for one batch of resized images ``(B, S, S, 3)``.

        With ``tta``, probabilities are means over mirror images; all else is of the images alone.
        """
        probabilities, features = (self.faster or self.engine).answer(pixels)
        unlike = np.zeros(len(pixels), np.bool_)
        if self.novelty is not None and features is not None:
            unlike = self.novelty.unlike(features, above)
        if tta:
            views = [probabilities, *(self.engine.answer(view)[0] for view in mirrored(pixels))]
            probabilities = np.asarray(np.mean(views, axis=0, dtype=np.float64), np.float32)
        return Answers(probabilities, unlike, features)


def mirrored(pixels: Pixels) -> list[Pixels]:
    """Return the images ``(B, S, S, 3)`` mirrored left to right, top to bottom, and both."""
    views = (pixels[:, :, ::-1], pixels[:, ::-1], pixels[:, ::-1, ::-1])
    return [np.ascontiguousarray(view) for view in views]


def load(path: str | PathLike[str], device: torch.device | str = "cpu") -> Predictor:
    """Return a predictor for the model of a run, of a run folder or of an ``.onnx`` file.

    The models of a cross-validation's folder answer together.
    """
    path = Path(path)
    if path.suffix.lower() == ".onnx":
        from lmd.predict.onnx_files import OnnxEngine

        return Predictor(OnnxEngine(path))
    if (path / AVERAGE).is_file() and not (path / "model.json").exists():
        from lmd.predict.average import load_average

        average, majority = load_average(path, device)
        return Predictor(average, path, majority)
    folder = path if path.is_dir() else path.parent
    model, spec, digest = read_model(path)
    novelty = load_novelty(folder, spec.feature_dim, digest)
    return Predictor(TorchEngine(model, spec, device), folder, novelty)
