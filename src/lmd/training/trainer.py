"""The one training loop: it trains whatever stages a method yields and knows no method's name."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmd.base.distributed import all_reduce, rank, world
from lmd.base.errors import LmdError
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


@dataclass
class Trainer:
    """All that the loop works with; ``train`` never sees the test part.

    ``folder`` gets ``history.csv`` and ``checkpoint/state.safetensors`` after every epoch. Where
    ``first_stages`` has this run's first stage already, ``taken_from`` names the run that made it.
    ``summaries`` says of each stage its name, epochs, seconds, views and what it chose.
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

    def fit(self, *, resume: bool = False) -> None:
        """Train all stages, going on from the newest checkpoint if asked to."""
        channels_last(self.model.to(self.device))
        path = self.folder / "checkpoint" / "state.safetensors"
        saved = load_checkpoint(path) if resume else None
        with split_encoder(self.model.encoder):
            self._fit(path, saved)

    def _fit(self, path: Path, saved: Checkpoint | None) -> None:
        torch.manual_seed(derive_seed(self.protocol.seed, "method"))
        stages = self.stages()
        index = 0
        while True:
            # What a method does between two stages may be random: the seed makes it repeatable.
            torch.manual_seed(derive_seed(self.protocol.seed, "stage", index))
            stage = next(stages, None)
            if stage is None:
                return
            stage.to(self.device)
            if saved is None or index >= saved.progress["stage"]:
                training = StageTraining(self, stage, index, path)
                if index == 0 and self.first_stages is not None:
                    self._shared(training, saved, self.first_stages)
                else:
                    training.run(saved)
                saved = None
            index += 1

    def _shared(
        self, training: StageTraining, saved: Checkpoint | None, stages: FirstStages
    ) -> None:
        """Train the first stage, or take over what another run made of the very same one."""
        place = stages.place(training.stage, self.model)
        found = stages.take(place) if saved is None else None
        if found is not None:
            self.taken_from = found.progress["run"]
            self.display.say(f"stage 1 is that of {self.taken_from}, already trained")
        training.run(saved or found)
        if found is None:
            stages.leave(place, training.path)

    def predict(self, images: ImageSet) -> Tensor:
        """Logits ``(N, K)`` of the evaluation view, on the CPU."""
        return self._forward(self.model, images.pixels, self.model.classifier.out_features)

    def features(
        self, drawn: Literal["natural", "balanced"], images: ImageSet, seed: int
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
        found = self._forward(self.model.encoder, chosen, self.model.classifier.in_features)
        labels = torch.from_numpy(images.labels[index]).to(self.device)
        return found.to(self.device)[torch.from_numpy(back).to(self.device)], labels

    def _forward(self, module: nn.Module, pixels: Pixels, width: int) -> Tensor:
        """Outputs ``(N, width)`` of the evaluation view; several processes share the batches."""
        outputs = torch.zeros(len(pixels), width)
        size = max(self.protocol.batch_size, 64)
        with evaluating(self.model), torch.no_grad(), self.autocast():
            for rows, images in evaluation_batches(pixels, size, (rank(), world())):
                outputs[rows] = module(self.normalise(images)).float().cpu()
        all_reduce(outputs)
        return outputs

    def autocast(self) -> Any:
        """bfloat16 where a GPU computes in it; everything else in float32."""
        if self.protocol.amp and self.device.type == "cuda" and torch.cuda.is_bf16_supported():
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    def validate(self) -> float | None:
        """Balanced accuracy on the validation part; keeps the recall of each class."""
        if self.validation is None or len(self.validation) == 0:
            return None
        logits = self.predict(self.validation)
        if not torch.isfinite(logits).all():
            raise LmdError(
                "the model's outputs are no longer finite after this epoch: training stopped; a "
                "smaller learning rate (--set lr=…) is the usual remedy"
            )
        predicted = logits.argmax(1).numpy()
        recall = class_recalls(self.validation.labels, predicted, logits.shape[1])
        self.val_recall = torch.from_numpy(recall)
        return float(mean_over_classes(recall))
