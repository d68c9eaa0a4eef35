"""The models of a server: loading, description, answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.deploy.decisions import rule_of
from lmd.deploy.engines import OnnxEngine, TorchEngine
from lmd.deploy.explain import Explanation, explain_pixels, nearest_index
from lmd.deploy.predict import Predictor, load
from lmd.scoring.prevalence import class_mix
from lmd.scoring.rules import Rule, Wanted
from lmd.serve.batching import Batcher
from lmd.serve.limits import Limits
from lmd.serve.measures import Measures
from lmd.serve.problems import Problem
from lmd.serve.schemas import Answer, ClassInfo, ModelInfo, Options

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@dataclass(frozen=True)
class Served:
    """A loaded model with its name and its thread."""

    name: str
    predictor: Predictor
    batcher: Batcher

    @property
    def explains(self) -> bool:
        """Whether the model has heat maps."""
        return isinstance(self.predictor.engine, TorchEngine)

    def rule(self, options: Options) -> Rule:
        """The rule that a request asks for; a ``Problem`` if the model cannot follow it."""
        wanted = Wanted(options.prevalence, options.costs, options.coverage, options.refer_above)
        try:
            return rule_of(self.predictor.engine.spec, wanted)
        except LmdError as error:
            text = _OPTION.sub(lambda found: found[1].replace("-", "_"), str(error))
            raise Problem("bad-options", text) from None

    def answer(
        self, name: str, probabilities: NDArray[np.float32], unlike: bool, rule: Rule
    ) -> Answer:
        """The answer for one image with ``probabilities (K,)`` of the model."""
        decided, classes = rule.decide(probabilities[None]), self.predictor.classes
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
            refer=bool(decided.refer[0]) if rule.refers else None,
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
            engine="onnxruntime" if isinstance(predictor.engine, OnnxEngine) else "torch",
            image_size=predictor.engine.image_size,
            temperature=spec.temperature,
            prior=None if spec.prior is None else spec.prior.kind,
            classes=classes,
            coverage=held_out is not None and any(held_out.probabilities),
            explanations=self.explains,
            neighbours=predictor.index is not None,
            unlike_training=predictor.novelty is not None,
            lmd_version=spec.lmd_version,
        )


def load_models(
    paths: Sequence[Path], limits: Limits, measures: Measures, device: str = "cpu"
) -> dict[str, Served]:
    """Load every model and give it a name of its own: that of its folder or file."""
    predictors = [load(path, device) for path in paths]
    found: dict[str, Served] = {}
    for path, predictor in zip(paths, predictors, strict=True):
        nearest_index(predictor, None)  # read now, so that damage is found before the start
        name = _name(path, found)

        def observe(images: int, seconds: float, model: str = name) -> None:
            measures.images.add(images, model=model)
            measures.batches.observe(images, model=model)
            measures.model_seconds.observe(seconds, model=model)

        batcher = Batcher(predictor.answer, capacity=limits.queue, observe=observe)
        found[name] = Served(name, predictor, batcher)
    return found


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
