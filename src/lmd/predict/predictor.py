"""Predict images with a shipped model."""

from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.text import csv_text, no_formula, shorten
from lmd.data.images import frames_note, quiet_decoders
from lmd.decisions.decide import CostTable, Decide, Prevalence
from lmd.decisions.policy import Decided, Policy, extra_columns, policy_of
from lmd.model.files import AVERAGE, read_model
from lmd.predict.engines import Engine, OnnxEngine, Pixels, TorchEngine
from lmd.predict.images import Given, Image, find_images, fitted, listed, mirrored
from lmd.predict.novelty import ABOVE, Novelty, checked_above, load_novelty
from lmd.scoring.conformal import Guarantee

if TYPE_CHECKING:
    from lmd.explain.heat_map import Explanation
    from lmd.explain.neighbours import Neighbours
    from lmd.predict.average import Majority

__all__ = ["Predictor", "find_images", "load"]


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
        """The classes and probabilities of the first images."""
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
        return tuple(
            tuple(name for name, inside in zip(self.classes, row, strict=True) if inside)
            for row in self.decided.sets
        )

    @property
    def guarantees(self) -> dict[str, Guarantee]:
        """What the coverage of each class means; empty without prediction sets."""
        return dict(zip(self.classes, self.policy.sets or (), strict=False))

    def write_csv(self, path: str | Path) -> None:
        """Write one row per image: name, class, its probability, decisions, all probabilities.

        The column ``unlike_training`` (true or false) is there if it is known. A class has the
        same name in the header and in every column, also if a spreadsheet would compute it.
        """
        classes = [no_formula(name) for name in self.classes]
        extra = extra_columns(self.decided, self.policy, classes)
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
    """What a model makes of N images: ``probabilities (N, K)`` and flags ``unlike (N,)``.

    ``features (N, C)`` are ``None`` if the engine has none. No image is flagged if the model has
    no ``novelty``.
    """

    probabilities: NDArray[np.float32]
    unlike: NDArray[np.bool_]
    features: NDArray[np.float32] | None


class Rows(Sized, Protocol):
    """Images ``(N, S, S, 3)`` that may be on disk until a batch of them is read."""

    def __getitem__(self, rows: slice, /) -> Pixels:
        """Return the images of some rows."""


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
        images: Given | Sequence[Given],
        *,
        batch_size: int = 64,
        skip_bad: bool = False,
        tick: Callable[[int, int], None] | None = None,
        prevalence: Prevalence | None = None,
        costs: CostTable | None = None,
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
        policy = policy_of(self.engine.spec, Decide(prevalence, costs, coverage, refer_above))
        above = checked_above(unlike_above, self.novelty is not None)
        others: list[Path] = []
        images = listed(images, others)
        frames: dict[str, int] = {}
        names: list[str] = []
        answers: list[Answers] = []
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
                answers.append(self.answer(pixels, above, tta=tta))
            done += len(chunk)
            if tick is not None:
                tick(done, len(images))
        probabilities, unlike, _ = self._joined(answers)
        decided = policy.decide(probabilities)
        return Prediction(
            tuple(names),
            self.classes,
            decided.probabilities,
            decided,
            policy,
            tuple(skipped),
            None if self.novelty is None else unlike,
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
        from lmd.explain.heat_map import explain

        return explain(self, image, classes=classes, neighbours=neighbours)

    def infer(
        self,
        images: Rows,
        *,
        tta: bool = False,
        tick: Callable[[int, int], None] | None = None,
    ) -> Answers:
        """Answer for decoded and resized images ``(N, S, S, 3)``, in batches."""
        answers = []
        for start in range(0, len(images), BATCH):
            batch = images[start : start + BATCH]
            answers.append(self.answer(batch, tta=tta))
            if tick is not None:
                tick(start + len(batch), len(images))
        return self._joined(answers)

    def answer(self, pixels: Pixels, above: float = ABOVE, *, tta: bool = False) -> Answers:
        """Answer for one batch of resized images ``(B, S, S, 3)``.

        With ``tta``, probabilities are means over mirror images; all else is of the images alone.
        """
        probabilities, features = (self.faster or self.engine).answer(pixels)
        unlike = np.zeros(len(pixels), np.bool_)
        if self.novelty is not None and features is not None:
            unlike = self.novelty.unlike(features, above)
        if tta:
            views = [probabilities, *map(self.engine.probabilities, mirrored(pixels))]
            probabilities = np.asarray(np.mean(views, axis=0, dtype=np.float64), np.float32)
        return Answers(probabilities, unlike, features)

    def _joined(self, answers: Sequence[Answers]) -> Answers:
        """The answers of all batches, of which there may be none."""
        if not answers:
            no_features = np.zeros((0, self.engine.spec.feature_dim), np.float32)
            no_probabilities = np.zeros((0, len(self.classes)), np.float32)
            return Answers(no_probabilities, np.zeros(0, np.bool_), no_features)
        probabilities, unlike, features = zip(*answers, strict=True)
        joined = None if features[0] is None else np.concatenate(features)
        return Answers(np.concatenate(probabilities), np.concatenate(unlike), joined)

    def _read(
        self, images: Sequence[Given], batch_size: int, frames: dict[str, int]
    ) -> Iterator[list[tuple[str, NDArray[np.uint8] | LmdError]]]:
        """Batches of names and pixels ``(S, S, 3)`` or errors, read one batch ahead.

        Files with several frames are added to ``frames``.
        """
        size = self.engine.image_size

        def one(item: tuple[int, Given]) -> tuple[str, NDArray[np.uint8] | LmdError]:
            number, image = item
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            if isinstance(image, LmdError):
                return name, image
            try:
                pixels, count = fitted(image, name, size)
            except LmdError as error:
                return name, error
            except MemoryError:
                return name, LmdError(f"image {name} needs more memory than there is: shrink it")
            if count > 1:
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
        from lmd.predict.average import load_average

        average, majority = load_average(path, device)
        return Predictor(average, path, majority)
    folder = path if path.is_dir() else path.parent
    model, spec, digest = read_model(path)
    novelty = load_novelty(folder, spec.feature_dim, digest)
    return Predictor(TorchEngine(model, spec, device), folder, novelty)


BATCH = 64
SHOWN = 5  # images in the representation
