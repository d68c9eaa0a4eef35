"""The training loop: it trains the stages that a method yields."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmd.base.distributed import all_reduce, rank, world
from lmd.base.errors import DivergedError
from lmd.base.progress import Display
from lmd.base.seeds import derive_seed
from lmd.contract.stage import Stages
from lmd.data.loaders import ImageSet, Normalise, Pixels, draw, evaluation_batches
from lmd.model import Model, channels_last
from lmd.protocol import Protocol
from lmd.scoring.confusion import class_recalls, mean_over_classes
from lmd.training.checkpoint import Checkpoint, load_checkpoint
from lmd.training.first_stage import FirstStages
from lmd.training.measuring import Timings, evaluating
from lmd.training.sharing import split_encoder
from lmd.training.stage_training import StageTraining


def not_finite(when: str) -> DivergedError:
    """The error for a model whose outputs are infinite or undefined."""
    return DivergedError(
        f"the model's outputs are no longer finite {when}: training stopped. "
        "Try a smaller learning rate (--set lr=…)."
    )


@dataclass
class Trainer:
    """Trains all stages of a run; it never sees the test part.

    After every epoch it writes ``history.csv`` and ``checkpoint/state.safetensors`` to ``folder``.
    ``taken_from`` is the run that trained the first stage if it comes from ``first_stages``.
    ``watch`` is told the history after every epoch, in the first process only.
    ``summaries`` has the name, budget, seconds, views and chosen values of each stage.
    """

    model: Model
    stages: Callable[[], Stages]
    train: ImageSet
    validation: ImageSet | None
    protocol: Protocol
    normalise: Normalise
    folder: Path
    device: torch.device
    display: Display
    history: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    val_recall: Tensor | None = None
    first_stages: FirstStages | None = None
    taken_from: str | None = None
    watch: Callable[[list[dict[str, Any]]], None] | None = None

    def fit(self, *, resume: bool = False) -> None:
        """Train all stages, from the newest checkpoint if ``resume``."""
        channels_last(self.model.to(self.device))
        path = self.folder / "checkpoint" / "state.safetensors"
        saved = load_checkpoint(path) if resume else None
        torch.manual_seed(derive_seed(self.protocol.seed, "method"))
        stages = self.stages()
        with split_encoder(self.model.encoder):
            for index in count():
                # What a method does between stages may be random; the seed makes it repeatable.
                torch.manual_seed(derive_seed(self.protocol.seed, "stage", index))
                stage = next(stages, None)
                if stage is None:
                    return
                stage.to(self.device)
                if saved is None or index >= saved.progress["stage"]:
                    self._train(StageTraining(self, stage, index, path), saved)
                    saved = None

    def _train(self, training: StageTraining, saved: Checkpoint | None) -> None:
        """Train a stage, or load a first stage that another run has trained."""
        shared = self.first_stages if training.index == 0 else None
        place = shared and shared.place(training.stage, self.model)
        if place and saved is None:
            saved = load_checkpoint(place)
            if saved is not None:
                self.taken_from = saved.progress["run"]
                self.display.say(f"stage 1 has been trained by {self.taken_from} and is reused")
        training.run(saved)
        if shared and place:
            shared.keep(training.path, place)

    def predict(self, images: ImageSet, *, exact: bool = False) -> Tensor:
        """Logits ``(N, K)`` of the evaluation view, on the CPU; ``exact`` ones are in float32."""
        width = self.model.classifier.out_features
        return self._forward(self.model, images.pixels, width, exact=exact)

    def features(
        self,
        drawn: Literal["natural", "balanced"],
        images: ImageSet,
        seed: int,
        view: str = "eval",
    ) -> tuple[Tensor, Tensor]:
        """Features ``(N, C)`` and labels ``(N,)``; an image drawn twice is computed once."""
        if drawn == "natural":
            index = np.arange(len(images))
        else:
            counts = np.bincount(images.labels)
            weights = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
            index = draw(images.labels, weights, seed)
        unique, back = np.unique(index, return_inverse=True)
        chosen = images.pixels if len(unique) == len(images) else images.pixels[unique]
        width = self.model.classifier.in_features
        found = self._forward(self.model.encoder, chosen, width, view, seed)
        labels = torch.from_numpy(images.labels[index]).to(self.device)
        return found.to(self.device)[torch.from_numpy(back).to(self.device)], labels

    def _forward(
        self,
        module: nn.Module,
        pixels: Pixels,
        width: int,
        view: str = "eval",
        seed: int = 0,
        *,
        exact: bool = False,
    ) -> Tensor:
        """Outputs ``(N, width)`` in eval mode; processes share the batches."""
        outputs = torch.zeros(len(pixels), width)
        size = max(self.protocol.batch_size, 64)
        precision = nullcontext() if exact else self.autocast()
        with evaluating(self.model), torch.no_grad(), precision:
            shared = evaluation_batches(pixels, size, (rank(), world()), view, seed)
            for rows, images in shared:
                outputs[rows] = module(self.normalise(images)).float().cpu()
        all_reduce(outputs)
        return outputs

    def autocast(self) -> Any:
        """bfloat16 where a GPU computes in it; everything else in float32."""
        # Older GPUs emulate it, slowly.
        computes = partial(torch.cuda.is_bf16_supported, including_emulation=False)
        if self.protocol.amp and self.device.type == "cuda" and computes():
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    def validate(self) -> float | None:
        """Balanced accuracy on the validation part; sets ``val_recall``."""
        if self.validation is None or len(self.validation) == 0:
            return None
        logits = self.predict(self.validation)
        if not torch.isfinite(logits).all():
            raise not_finite("after this epoch")
        predicted = logits.argmax(1).numpy()
        recall = class_recalls(self.validation.labels, predicted, logits.shape[1])
        self.val_recall = torch.from_numpy(recall)
        return float(mean_over_classes(recall))
