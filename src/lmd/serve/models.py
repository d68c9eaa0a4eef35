"""The models of a server: loading, description, answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.policy import Policy, policy_of
from lmd.explain.explanation import Explanation, explain_pixels, nearest_index
from lmd.export.export import TracedEngine, onnx_is_there
from lmd.predict.engines import TorchEngine
from lmd.predict.onnx_files import OnnxEngine
from lmd.predict.predictor import Predictor, load
from lmd.scoring.proportions import class_mix
from lmd.serve.batching import Batcher
from lmd.serve.limits import Limits
from lmd.serve.measures import Measures
from lmd.serve.problems import Problem
from lmd.serve.schemas import Answer, ClassInfo, ModelInfo, Options

Engine = Literal["auto", "onnx", "torch"]
CARD = "model-card.md"
MOST_CARD = 200_000  # characters
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@dataclass(frozen=True)
class Served:
    """A loaded model with its name and its thread."""

    name: str
    predictor: Predictor
    batcher: Batcher
    card: str | None = None

    @property
    def explains(self) -> bool:
        """Whether the model has heat maps."""
        return isinstance(self.predictor.engine, TorchEngine)

    def policy(self, options: Options) -> Policy:
        """The policy that a request asks for; a ``Problem`` if the model cannot follow it."""
        decide = Decide(options.prevalence, options.costs, options.coverage, options.refer_above)
        try:
            return policy_of(self.predictor.engine.spec, decide)
        except LmdError as error:
            text = _OPTION.sub(lambda found: found[1].replace("-", "_"), str(error))
            raise Problem("bad-options", text) from None

    def answer(
        self, name: str, probabilities: NDArray[np.float32], unlike: bool, policy: Policy
    ) -> Answer:
        """The answer for one image with ``probabilities (K,)`` of the model."""
        decided, classes = policy.decide(probabilities[None]), self.predictor.classes
        chosen = int(decided.chosen[0])
        sets = None
        if decided.sets is not None:
            sets = [of for of, inside in zip(classes, decided.sets[0], strict=True) if inside]
        return Answer(
            image=name,
            predicted=classes[chosen],
            probability=float(decided.probabilities[0, chosen]),
            probabilities={
                of: float(p) for of, p in zip(classes, decided.probabilities[0], strict=True)
            },
            set=sets,
            refer=bool(decided.refer[0]) if policy.refers else None,
            unlike_training=None if self.predictor.novelty is None else unlike,
        )

    def explain(self, pixels: NDArray[np.uint8], picture: NDArray[np.uint8]) -> Explanation:
        """The two most probable classes; runs in the thread of the model."""
        return explain_pixels(self.predictor, pixels, picture)

    def info(self) -> ModelInfo:
        """The description."""
        predictor = self.predictor
        spec = predictor.engine.spec
        shares, held_out = class_mix("training", spec.class_counts), spec.held_out
        classes = [
            ClassInfo(
                name=name,
                training_images=count,
                training_share=float(share),
                validation_images=None if held_out is None else len(held_out.probabilities[k]),
            )
            for k, (name, count, share) in enumerate(
                zip(spec.classes, spec.class_counts, shares, strict=True)
            )
        ]
        return ModelInfo(
            name=self.name,
            method=spec.method,
            backbone=spec.backbone,
            engine="onnxruntime" if self._by_onnx else "torch",
            image_size=predictor.engine.image_size,
            temperature=spec.temperature,
            prior=None if spec.prior is None else spec.prior.kind,
            classes=classes,
            coverage=held_out is not None and any(held_out.probabilities),
            explanations=self.explains,
            neighbours=predictor.index is not None,
            unlike_training=predictor.novelty is not None,
            lmd_version=spec.lmd_version,
            card=self.card,
        )

    @property
    def _by_onnx(self) -> bool:
        engine = self.predictor.engine
        return self.predictor.faster is not None or isinstance(engine, OnnxEngine)


def load_models(
    paths: Sequence[Path],
    limits: Limits,
    measures: Measures,
    device: str = "cpu",
    engine: Engine = "torch",
) -> dict[str, Served]:
    """Load every model and give it a name of its own: that of its folder or file.

    ``engine`` computes the predictions of run folders; heat maps always need torch. ``auto`` is
    onnxruntime on a CPU if it is installed and can compute the model, else torch.
    """
    predictors = [load(path, device) for path in paths]
    for path, predictor in zip(paths, predictors, strict=True):
        speed_up(path, predictor, engine, device)
    found: dict[str, Served] = {}
    for path, predictor in zip(paths, predictors, strict=True):
        nearest_index(predictor, None)  # read now, so that damage is found before the start
        name = _name(path, found)

        def observe(images: int, seconds: float, model: str = name) -> None:
            measures.images.labels(model).inc(images)
            measures.batches.labels(model).observe(images)
            measures.model_seconds.labels(model).observe(seconds)

        batcher = Batcher(predictor.answer, capacity=limits.queue, observe=observe)
        found[name] = Served(name, predictor, batcher, read_card(predictor.folder))
    return found


def speed_up(path: Path, predictor: Predictor, engine: Engine, device: str) -> None:
    """Let onnxruntime compute the predictions of a run folder, if it is wanted and possible."""
    own = predictor.engine
    if engine == "torch" or not isinstance(own, TorchEngine):
        return
    if engine == "auto" and (device != "cpu" or not onnx_is_there()):
        return
    try:
        predictor.faster = TracedEngine(own)
    except LmdError as error:
        if engine == "onnx":
            raise LmdError(f"--engine onnx: {path}: {error}; use --engine torch") from None


def read_card(folder: Path | None) -> str | None:
    """The model card beside a model, as Markdown; ``None`` if there is none."""
    path = None if folder is None else folder / CARD
    if path is None or not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CARD)
    except OSError as error:
        raise LmdError(f"{path} cannot be read: {error.strerror}") from None


def _name(path: Path, taken: dict[str, Served]) -> str:
    """A name that fits into an address."""
    path = path.resolve()
    own = path.stem if path.suffix.lower() == ".onnx" else path.name
    if path.is_file() and path.suffix.lower() != ".onnx":
        own = path.parent.name
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-.") or "model"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name
