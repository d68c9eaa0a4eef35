"""The one training loop: it trains whatever stages a method yields and knows no method's name."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmd.base.distributed import agree, all_reduce, check_same, rank, world
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.seeds import derive_seed
from lmd.contract.stage import Batch, Stage, Stages, prepare
from lmd.data.loaders import (
    ImageSet,
    Normalise,
    Pixels,
    RawBatch,
    batches_of,
    default_workers,
    draw,
    evaluation_batches,
    signals_held,
    training_batches,
)
from lmd.model import Model, channels_last
from lmd.protocol import Protocol
from lmd.scoring.confusion import class_recalls, mean_over_classes
from lmd.training.checkpoint import Checkpoint, clone_state, load_checkpoint, save_checkpoint
from lmd.training.descent import check_finite, make_optimizer, set_lr
from lmd.training.first_stage import FirstStages
from lmd.training.history import write_history
from lmd.training.measuring import Timings, evaluating
from lmd.training.sharing import averaged, sharing, split_encoder


@dataclass
class Trainer:
    """All that the loop works with; ``train`` never sees the test part.

    ``folder`` gets ``history.csv`` and ``checkpoint/state.safetensors`` after every epoch. Where
    ``first_stages`` has this run's first stage already, ``taken_from`` names the run that made it.
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
                training = _StageTraining(self, stage, index, path)
                if index == 0 and self.first_stages is not None:
                    self._shared(training, saved, self.first_stages)
                else:
                    training.run(saved)
                saved = None
            index += 1

    def _shared(
        self, training: "_StageTraining", saved: Checkpoint | None, stages: FirstStages
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


@dataclass
class EpochRun:
    """The contract's ``Run``, made anew for every epoch."""

    trainer: Trainer
    clock: Callable[[str], AbstractContextManager[None]]
    epoch: int
    epochs: int
    steps: int
    generator: torch.Generator
    val_recall: Tensor | None

    def features(
        self,
        drawn: Literal["natural", "balanced"] = "natural",
        part: Literal["train", "validation"] = "train",
    ) -> tuple[Tensor, Tensor]:
        """See ``lmd.contract.stage.Run.features``."""
        images = self.trainer.train if part == "train" else self.trainer.validation
        with self.clock("features"):
            if images is None or len(images) == 0:
                width = self.trainer.model.classifier.in_features
                empty = torch.empty(0, dtype=torch.long, device=self.trainer.device)
                return torch.empty(0, width, device=self.trainer.device), empty
            seed = int(torch.randint(2**62, (), generator=self.generator))
            return self.trainer.features(drawn, images, seed)


class _StageTraining:
    """One stage, from its first epoch or from a checkpoint to its last."""

    def __init__(self, trainer: Trainer, stage: Stage, index: int, path: Path) -> None:
        self.trainer, self.stage, self.index, self.path = trainer, stage, index, path
        protocol = trainer.protocol
        own = stage.epochs
        self.epochs = own or (protocol.epochs if index == 0 else protocol.stage2_epochs)
        lr = protocol.lr if index == 0 else (protocol.stage2_lr or protocol.lr)
        self.groups = prepare(stage)
        stage.clock = self.clock
        self.optimizer = make_optimizer(self.groups, lr, protocol)
        self.best: dict[str, Tensor] | None = None
        self.best_score = -1.0

    def clock(self, what: str) -> AbstractContextManager[None]:
        """Books the time inside for this stage."""
        return self.trainer.timings.of(f"stage {self.index + 1} {what}")

    def run(self, saved: Checkpoint | None) -> None:
        """Train the epochs that are missing; a checkpoint after each."""
        first = self._restore(saved) if saved is not None else 0
        with averaged([p for p in self.stage.parameters() if p.requires_grad]):
            for epoch in range(first, self.epochs):
                self._epoch(epoch)
        if self.trainer.protocol.select == "best" and self.best is not None:
            self.trainer.model.load_state_dict(self.best)
        for parameter in self.trainer.model.parameters():
            parameter.requires_grad_(True)

    def _restore(self, saved: Checkpoint) -> int:
        saved.restore(self.trainer.model, self.stage, self.optimizer)
        self.best = saved.part("best") or None
        progress = saved.progress
        self.best_score = progress["best_score"]
        self.trainer.history[:] = progress["history"]
        self.trainer.timings.seconds.update(progress["timings"])
        self.trainer.taken_from = self.trainer.taken_from or progress.get("taken_from")
        recall = progress["val_recall"]
        self.trainer.val_recall = None if recall is None else torch.tensor(recall).double()
        return int(progress["epoch"])

    def _epoch(self, epoch: int) -> None:
        trainer, started = self.trainer, time.perf_counter()
        seed = derive_seed(trainer.protocol.seed, self.index, epoch)
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        order = np.arange(len(trainer.train))
        steps = len(batches_of(order, trainer.protocol.batch_size))
        run = EpochRun(
            trainer, self.clock, epoch, self.epochs, steps, generator, trainer.val_recall
        )
        prepare(self.stage)
        lr = self.optimizer and set_lr(self.optimizer, trainer.protocol, epoch, self.epochs)
        name = f"stage {self.index + 1} {type(self.stage).__name__} {epoch + 1}/{self.epochs}"
        trainer.display.start(name, steps)
        with self.clock("start of epoch"):
            means = dict(self.stage.start_epoch(run, self.optimizer) or {})
            # Machines of different kinds round differently; here they start from the same again.
            agree(list(self.stage.state_dict().values()))
        means |= self._batches(run, seed)
        with trainer.timings.of("validation"):
            score = trainer.validate()
        if score is not None and score > self.best_score:
            self.best_score = score
            if trainer.protocol.select == "best":
                self.best = clone_state(trainer.model)
        row: dict[str, Any] = {
            "stage": self.index + 1,
            "stage_name": type(self.stage).__name__,
            "epoch": epoch + 1,
            "lr": lr,
            "seconds": round(time.perf_counter() - started, 3),
            "val_bacc": score,
            **means,
        }
        trainer.history.append(row)
        self._save(epoch + 1)
        shown = " ".join(f"{k} {v:.4g}" for k, v in means.items())
        found = "" if score is None else f"  validation BACC {100 * score:.1f}"
        trainer.display.say(f"{name}  {shown}{found}  {row['seconds']:.1f} s")

    def _batches(self, run: EpochRun, seed: int) -> dict[str, float]:
        """Train on the batches of one epoch; the mean of every loss term."""
        trainer, protocol = self.trainer, self.trainer.protocol
        asked = self.stage.class_weights(run)
        if not asked or self.optimizer is None:
            return {}
        weights = [None if w is None else w.double().cpu().numpy() for w in asked]
        workers = protocol.workers
        loader = training_batches(
            trainer.train,
            weights,
            views=self.stage.views,
            batch_size=protocol.batch_size,
            seed=seed,
            workers=default_workers(trainer.device) if workers is None else workers,
            share=(rank(), world()),
        )
        sums: dict[str, float] = {}
        with signals_held():
            raw = iter(loader)
        for b in range(len(loader)):
            with trainer.timings.of("waiting for batches"):
                batches = [self._batch(r) for r in next(raw)]
            set_lr(self.optimizer, protocol, run.epoch + b / len(loader), self.epochs)
            shared = sharing(len(batches[0].labels))
            with self.clock("steps"), trainer.autocast(), shared:
                terms = self.stage.step(self.optimizer, *batches)
                values = check_finite(terms, run.epoch, b, self.path)
            check_same(values["loss"])
            for key, value in values.items():
                sums[key] = sums.get(key, 0.0) + value
            trainer.display.step(b + 1, values)
        return {key: value / len(loader) for key, value in sums.items()}

    def _batch(self, raw: RawBatch) -> Batch:
        views, labels, seconds = raw
        self.trainer.timings.add("views", seconds)
        normalise = self.trainer.normalise
        return Batch(
            {name: normalise(view) for name, view in views.items()},
            labels.to(self.trainer.device, non_blocking=True),
        )

    def _save(self, epochs_done: int) -> None:
        trainer = self.trainer
        if rank() > 0:
            return
        recall = trainer.val_recall
        with trainer.timings.of("checkpoint"):
            # The checkpoint first: an epoch that the history shows can be resumed from.
            save_checkpoint(
                self.path,
                model=trainer.model,
                stage=self.stage,
                optimizer=self.optimizer,
                best=self.best,
                progress={
                    "run": trainer.folder.name,
                    "taken_from": trainer.taken_from,
                    "stage": self.index,
                    "epoch": epochs_done,
                    "best_score": self.best_score,
                    "history": trainer.history,
                    "timings": trainer.timings.seconds,
                    "val_recall": None if recall is None else recall.tolist(),
                },
            )
            write_history(trainer.folder / "history.csv", trainer.history)
