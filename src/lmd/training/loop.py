"""Train the stages that a method yields."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from math import cos, isfinite, pi
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

from lmd.base.distributed import agree, all_reduce, check_same, derive_seed, in_turn, rank, world
from lmd.base.errors import DivergedError
from lmd.base.files import waiting_for
from lmd.base.progress import Display
from lmd.data import loaders
from lmd.data.table import Part
from lmd.methods.stage import Batch, Stage, Stages, Terms, prepare
from lmd.model import Model, Normalise
from lmd.runs.folder import Run
from lmd.runs.protocol import Protocol
from lmd.runs.record import PROCESSOR_TIME, HistoryRow
from lmd.scoring.metrics import class_recalls, mean_over_classes
from lmd.training.checkpoint import Checkpoint, FirstStages, Progress

READ_EVERY = 50  # steps; reading a number waits for all work queued on the GPU
_SMALLER_RATE = "Try a smaller learning rate (--set lr=…)."


@dataclass
class Trainer:
    """Trains all stages of a run; it never sees the test part.

    After every epoch it writes ``history.csv`` and ``checkpoint/state.safetensors`` to ``folder``,
    and the first process calls ``watch`` with the history. ``progress`` describes each stage.
    """

    model: Model
    stages: Callable[[], Stages]
    train: Part
    validation: Part | None
    protocol: Protocol
    normalise: Normalise
    folder: Path
    device: torch.device
    display: Display
    first_stages: FirstStages | None = None
    watch: Callable[[Sequence[HistoryRow]], None] | None = None

    def __post_init__(self) -> None:
        self.progress = Progress(
            run=self.folder.name, stage=0, epoch=0, best_score=-1.0, history=[], stages=[],
            timings={}, val_recall=None,
        )  # fmt: skip
        self.autocast: AbstractContextManager[Any] = nullcontext()
        on_gpu = self.protocol.amp and self.device.type == "cuda"
        if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False):  # not slowly
            self.autocast = torch.autocast("cuda", dtype=torch.bfloat16)
        self.share: Callable[[int], AbstractContextManager[Any]] = nullcontext  # a batch's size

    def fit(self, *, resume: bool = False) -> None:
        """Train all stages, from the newest checkpoint if ``resume``."""
        # The memory layout in which convolutions are fastest.
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        path = self.folder / "checkpoint" / "state.safetensors"
        saved = Checkpoint.load(path) if resume else None
        torch.manual_seed(derive_seed(self.protocol.seed, "method"))
        stages = self.stages()
        with ExitStack() as stack:
            if world() > 1:
                from lmd.training.sharing import sharing, split_encoder

                stack.enter_context(split_encoder(self.model.encoder))
                self.share = sharing
            for index in count():
                # What a method does between stages may be random; the seed makes it repeatable.
                torch.manual_seed(derive_seed(self.protocol.seed, "stage", index))
                stage = next(stages, None)
                if stage is None:
                    return
                stage.to(self.device)
                if saved is None or index >= saved.progress.stage:
                    self._train(StageTraining(self, stage, index, path), saved)
                    saved = None

    def _train(self, training: "StageTraining", saved: Checkpoint | None) -> None:
        """Train a stage, or load a first stage that another run has trained."""
        shared = self.first_stages if training.index == 0 else None
        path = shared and shared.place(training.stage, self.model)
        if not shared or not path:
            training.run(saved)
            return
        with ExitStack() as stack:
            if rank() == 0:
                # Whichever run comes first trains the stage; the others wait here and take it over.
                stack.enter_context(waiting_for(path.with_suffix(".lock")))
            if saved is None and (saved := in_turn(lambda: Checkpoint.load(path))) is not None:
                self.progress.taken_from = saved.progress.run
                self.display.say(f"stage 1 has been trained by {saved.progress.run} and is reused")
            training.run(saved)
            shared.keep(training.path, path)

    def predict(self, images: Part) -> Tensor:
        """Return logits ``(N, K)`` of the evaluation view, on the CPU."""
        return self.forward(self.model, images, self.model.classifier.out_features)

    def encode(self, images: Part) -> tuple[Tensor, Tensor]:
        """Return features ``(N, C)`` and logits ``(N, K)`` in float32, as the shipped model."""

        def both(batch: Tensor) -> Tensor:
            features = self.model.features(batch)
            return torch.cat([features, self.model.classifier(features)], 1)

        widths = [self.model.classifier.in_features, self.model.classifier.out_features]
        outputs = self.forward(both, images, sum(widths), exact=True)
        features, logits = outputs.split(widths, dim=1)
        return features.contiguous(), logits.contiguous()

    def forward(
        self, compute: Callable[[Tensor], Tensor], images: Part, width: int, view: str = "eval",
        seed: int = 0, *, exact: bool = False,
    ) -> Tensor:  # fmt: skip
        """Return outputs ``(N, width)`` in eval mode; processes share the batches."""
        outputs = torch.zeros(len(images), width)
        size = max(self.protocol.batch_size, 64)
        precision = nullcontext() if exact else self.autocast
        batches = loaders.evaluation_batches(images, size, (rank(), world()), view, seed)
        with evaluating(self.model), torch.no_grad(), precision:
            for rows, batch in batches:
                outputs[rows] = compute(self.normalise(batch)).float().cpu()
        if world() > 1:
            all_reduce(outputs)
        return outputs

    def validate(self) -> float | None:
        """Return the balanced accuracy on the validation part, and keep its recalls."""
        if self.validation is None or len(self.validation) == 0:
            return None
        logits = self.predict(self.validation)
        check_finite(logits, "after this epoch")
        recall = class_recalls(self.validation.labels, logits.argmax(1).numpy(), logits.shape[1])
        self.progress.val_recall = recall.tolist()
        return float(mean_over_classes(recall))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode in the context; every sub-module gets its mode back afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode


def check_finite(logits: Tensor, when: str) -> None:
    """Raise a ``DivergedError`` if outputs are infinite or undefined."""
    if not logits.isfinite().all():
        raise DivergedError(
            f"the model's outputs are no longer finite {when}: training stopped. {_SMALLER_RATE}"
        )


class StageTraining:
    """A stage, its optimiser and the best model so far."""

    def __init__(self, trainer: Trainer, stage: Stage, index: int, path: Path) -> None:
        self.trainer, self.stage, self.index, self.path = trainer, stage, index, path
        protocol = trainer.protocol
        self.epochs = stage.epochs or (protocol.stage2_epochs if index else protocol.epochs)
        self.schedule = stage.schedule or protocol.schedule
        # Each view that the stage asks for, and the one that is made for it.
        self.views = {n: protocol.views if n == "label" else n for n in stage.views}
        stage.clock = self._clock
        self.optimizer = make_optimizer(stage, index, protocol)
        self.best: dict[str, Tensor] | None = None
        trainer.progress.best_score = -1.0

    def _clock(self, activity: str) -> AbstractContextManager[None]:
        return self.trainer.progress.clock(f"stage {self.index + 1} {activity}")

    def run(self, saved: Checkpoint | None) -> None:
        """Train the remaining epochs, with a checkpoint after each."""
        trainer, first = self.trainer, 0
        if saved is not None:
            saved.restore(trainer.model, self.stage, self.optimizer)
            self.best = saved.part("best") or None
            first = saved.progress.epoch
            trainer.progress = trainer.progress.continued(saved.progress)
        if first == self.epochs:  # trained by another run
            self._save(first)
        for epoch in range(first, self.epochs):
            self._epoch(epoch)
        if trainer.protocol.select == "best" and self.best is not None:
            trainer.model.load_state_dict(self.best)
        for parameter in trainer.model.parameters():
            parameter.requires_grad_(True)

    def _epoch(self, number: int) -> None:
        trainer, progress = self.trainer, self.trainer.progress
        started, spent = time.perf_counter(), os.times()
        epoch = StageEpoch(self, number)
        prepare(self.stage)
        lr = self._set_lr(number) if self.optimizer else None
        name = f"stage {self.index + 1} {self.stage.name} {number + 1}/{self.epochs}"
        trainer.display.start(name, epoch.steps)
        with self._clock("start of epoch"):
            means = dict(self.stage.start_epoch(epoch) or {})
            # Different machines round differently; here they get the same values again.
            if world() > 1:
                agree(list(self.stage.state_dict().values()))
        means |= self._train_batches(epoch)
        with progress.clock("validation"):
            score = trainer.validate()
        if score is not None and score > progress.best_score:
            progress.best_score = score
            if trainer.protocol.select == "best":
                self.best = deepcopy(trainer.model.state_dict())
        if trainer.device.type == "cpu":
            # Unlike the seconds of the row, this does not grow with other work on the machine.
            used = sum(os.times()[:4]) - sum(spent[:4])
            progress.add_time(PROCESSOR_TIME.format(self.index + 1), round(used, 3))
        row: dict[str, Any] = {
            "stage": self.index + 1,
            "stage_name": self.stage.name,
            "epoch": number + 1,
            "lr": lr if self.stage.updates else None,
            "seconds": round(time.perf_counter() - started, 3),
            "val_bacc": score,
            **means,
        }
        progress.history.append(row)
        self._summarise()
        self._save(number + 1)
        terms = " ".join(f"{k} {v:.4g}" for k, v in means.items())
        validated = "" if score is None else f"  validation BACC {100 * score:.1f}"
        trainer.display.say(f"{name}  {terms}{validated}  {row['seconds']:.1f} s")

    def _set_lr(self, done: float) -> float:
        """Set the learning rate after ``done`` epochs; return the first group's."""
        assert self.optimizer is not None
        factor = 1.0 if self.schedule == "constant" else 0.5 * (1 + cos(pi * done / self.epochs))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return float(self.optimizer.param_groups[0]["lr"])

    def _train_batches(self, epoch: "StageEpoch") -> dict[str, float]:
        """Train on the batches of one epoch and return the mean of every loss term."""
        loader = self._loader(epoch)
        if loader is None or self.optimizer is None:
            return {}
        trainer, losses = self.trainer, LossTerms(epoch.index, self.path)
        with loaders.signals_held():
            raw = iter(loader)
        for b in range(len(loader)):
            with trainer.progress.clock("waiting for batches"):
                batches = [self._on_device(r) for r in next(raw)]
            self._set_lr(epoch.index + b / len(loader))
            with self._clock("steps"):
                try:
                    with trainer.autocast, trainer.share(len(batches[0].labels)):
                        terms = self.stage.step(self.optimizer, *batches)
                except Exception:
                    # The cause may be a term that was not finite some steps ago.
                    losses.read(compare=False)
                    raise
                losses.add(terms)
            trainer.display.step(b + 1, len(loader), losses.newest)
        with self._clock("steps"):
            return losses.means()

    def _loader(self, epoch: "StageEpoch") -> "DataLoader[list[loaders.RawBatch]] | None":
        """Return the batches that the stage asks for in this epoch, if any."""
        streams = self.stage.class_weights(epoch)
        if not streams:
            return None
        trainer, workers = self.trainer, self.trainer.protocol.workers
        return loaders.training_batches(
            trainer.train,
            [None if weights is None else weights.double().cpu().numpy() for weights in streams],
            views=tuple(dict.fromkeys(self.views.values())),  # one with two names is made once
            batch_size=trainer.protocol.batch_size,
            seed=epoch.seed,
            workers=loaders.default_workers(trainer.device) if workers is None else workers,
            share=(rank(), world()),
        )

    def _on_device(self, raw: loaders.RawBatch) -> Batch:
        trainer, labels = self.trainer, raw.labels
        trainer.progress.add_time("views", raw.seconds)
        normal = {name: trainer.normalise(view) for name, view in raw.views.items()}
        views = {name: normal[made] for name, made in self.views.items()}
        return Batch(views, labels.to(trainer.device, non_blocking=True), labels)

    def _summarise(self) -> None:
        """Renew what the progress has of this stage."""
        progress, updating = self.trainer.progress, self.optimizer if self.stage.updates else None
        seconds = [row["seconds"] for row in progress.history if row["stage"] == self.index + 1]
        summary = {
            "name": self.stage.name,
            "epochs": len(seconds),
            "seconds": round(sum(seconds), 3),
            "lr": updating and updating.param_groups[0]["initial_lr"],
            "schedule": updating and self.schedule,
            "views": list(dict.fromkeys(self.views.values())) if self.optimizer else [],
            # Without validation nothing was chosen: the stage fell back to its own values.
            "chosen": dict(self.stage.chosen()) if self.trainer.validation else {},
        }
        progress.stages[self.index :] = [summary]

    def _save(self, epochs_done: int) -> None:
        if rank() > 0:
            return
        trainer, progress = self.trainer, self.trainer.progress
        progress.stage, progress.epoch = self.index, epochs_done
        with progress.clock("checkpoint"):
            # The checkpoint comes first, so that every epoch of the history can be resumed.
            Checkpoint.save(
                self.path, trainer.model, self.stage, self.optimizer, self.best, progress
            )
            Run(trainer.folder).write_history(progress.history)
        if trainer.watch is not None:
            trainer.watch(progress.history)


def make_optimizer(stage: Stage, index: int, protocol: Protocol) -> Optimizer | None:
    """Return SGD over the parameters that a stage trains; ``None`` if there are none."""
    groups = prepare(stage)
    if not groups:
        return None
    lr = (protocol.stage2_lr if index else None) or protocol.lr
    optimizer = SGD(
        groups,
        lr=lr if stage.lr is None else stage.lr.at(protocol.batch_size),
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
        foreach=True,  # one call for all parameters instead of several for each
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


class StageEpoch:
    """The contract's ``Epoch``; ``seed`` decides all random draws."""

    def __init__(self, training: StageTraining, index: int) -> None:
        trainer, recall = training.trainer, training.trainer.progress.val_recall
        self.training, self.index, self.total = training, index, training.epochs
        self.seed = derive_seed(trainer.protocol.seed, training.index, index)
        torch.manual_seed(self.seed)
        order = np.arange(len(trainer.train))
        self.steps = len(loaders.batches_of(order, trainer.protocol.batch_size))
        self.generator = torch.Generator().manual_seed(self.seed)
        self.val_recall = None if recall is None else torch.tensor(recall, dtype=torch.float64)

    def features(
        self,
        drawn: Literal["natural", "balanced"] = "natural",
        part: Literal["train", "validation"] = "train",
        view: Literal["eval", "weak", "strong"] = "eval",
    ) -> tuple[Tensor, Tensor]:
        """See ``lmd.methods.stage.Epoch.features``; an image drawn twice is computed once."""
        trainer = self.training.trainer
        images = trainer.train if part == "train" else trainer.validation
        width = trainer.model.classifier.in_features
        with self.training._clock("features"):
            if images is None or len(images) == 0:
                empty = torch.empty(0, dtype=torch.long, device=trainer.device)
                return torch.empty(0, width, device=trainer.device), empty
            seed = int(torch.randint(2**62, (), generator=self.generator))
            index = np.arange(len(images))
            if drawn == "balanced":
                counts = np.bincount(images.labels)
                weights = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
                index = loaders.draw(images.labels, weights, seed)
            unique, back = np.unique(index, return_inverse=True)
            chosen = images if len(unique) == len(images) else images.take(unique)
            features = trainer.forward(trainer.model.encoder, chosen, width, view, seed)
            rows = torch.from_numpy(back).to(trainer.device)
            labels = torch.from_numpy(images.labels[index]).to(trainer.device)
            return features.to(trainer.device)[rows], labels


@dataclass
class LossTerms:
    """Sums and checks the loss terms of an epoch without waiting for the device in each step."""

    epoch: int
    checkpoint: Path
    batches: int = 0  # that have been read
    sums: dict[str, float] = field(default_factory=dict)
    _unread: list[dict[str, Tensor]] = field(default_factory=list)
    _newest: dict[str, Tensor] = field(default_factory=dict)

    def add(self, terms: Terms) -> None:
        """Add the terms of the next batch; the loss comes first."""
        loss = terms["loss"]
        self._newest = {
            key: value.detach().reshape(()).to(loss.device, torch.float64, copy=True)
            for key, value in {"loss": loss, **terms}.items()
        }
        self._unread.append(self._newest)
        # The first batch is read at once, as it shows most mistakes.
        if self.batches == 0 or len(self._unread) == READ_EVERY:
            self.read()

    def read(self, *, compare: bool = True) -> None:
        """Sum and check the terms added since the last call; ``compare`` them among processes."""
        rows, self._unread = self._unread, []
        if not rows:
            return
        numbers = iter(torch.stack([value for row in rows for value in row.values()]).tolist())
        losses = []
        for row in rows:
            for key in row:
                value = next(numbers)
                if not isfinite(value):
                    state = "there is no checkpoint yet"
                    if self.checkpoint.exists():
                        state = f"the last good checkpoint is kept in {self.checkpoint.parent}"
                    raise DivergedError(
                        f"loss term {key!r} is {value} in epoch {self.epoch + 1}, batch "
                        f"{self.batches + 1}: training stopped; {state}. {_SMALLER_RATE}"
                    )
                self.sums[key] = self.sums.get(key, 0.0) + value
                if key == "loss":
                    losses.append(value)
            self.batches += 1
        if compare and world() > 1:
            check_same(losses)

    def newest(self) -> dict[str, float]:
        """Return the terms of the last batch."""
        return {key: float(value) for key, value in self._newest.items()}

    def means(self) -> dict[str, float]:
        """Return the mean of every term over the epoch."""
        self.read()
        return {key: value / self.batches for key, value in self.sums.items()}
