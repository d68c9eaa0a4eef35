"""Train the stages that a method yields."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
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
from lmd.base.progress import Display
from lmd.data.loaders import (
    Normalise,
    RawBatch,
    batches_of,
    default_workers,
    draw,
    evaluation_batches,
    signals_held,
    training_batches,
)
from lmd.data.table import Part
from lmd.methods.stage import Batch, ParameterGroups, Schedule, Stage, Stages, Terms, prepare
from lmd.model import Model, channels_last
from lmd.runs.folder import Run
from lmd.runs.protocol import Protocol
from lmd.runs.record import processor_time
from lmd.scoring.metrics import class_recalls, mean_over_classes
from lmd.training.checkpoint import (
    Checkpoint,
    FirstStages,
    clone_state,
    load_checkpoint,
    save_checkpoint,
)
from lmd.training.sharing import sharing, split_encoder


@dataclass
class Timings:
    """Seconds spent, by activity."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Add the time inside the context to ``what``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(what, time.perf_counter() - start)

    def add(self, what: str, seconds: float) -> None:
        """Add seconds to ``what``."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended, in seconds."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context; the mode of every sub-module is restored afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode


# Reading a number waits for all work queued on the GPU.
READ_EVERY = 50  # steps


class LossTerms:
    """Sums and checks the loss terms of an epoch without waiting for the device in each step."""

    def __init__(self, epoch: int, checkpoint: Path) -> None:
        self.epoch, self.checkpoint = epoch, checkpoint
        self.batches = 0  # that have been read
        self.sums: dict[str, float] = {}
        self._unread: list[dict[str, Tensor]] = []
        self._newest: dict[str, Tensor] = {}

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
            check_same(self.read())

    def read(self) -> list[float]:
        """Sum and check the terms added since the last call; returns the loss of each batch."""
        rows, self._unread = self._unread, []
        if not rows:
            return []
        numbers = iter(torch.stack([value for row in rows for value in row.values()]).tolist())
        losses = []
        for row in rows:
            values = {key: next(numbers) for key in row}
            for key, value in values.items():
                if not isfinite(value):
                    raise self._error(key, value)
                self.sums[key] = self.sums.get(key, 0.0) + value
            self.batches += 1
            losses.append(values["loss"])
        return losses

    def newest(self) -> dict[str, float]:
        """The terms of the last batch."""
        return {key: float(value) for key, value in self._newest.items()}

    def means(self) -> dict[str, float]:
        """The mean of every term over the epoch."""
        check_same(self.read())
        return {key: value / self.batches for key, value in self.sums.items()}

    def _error(self, term: str, value: float) -> DivergedError:
        kept = (
            f"the last good checkpoint is kept in {self.checkpoint.parent}"
            if self.checkpoint.exists()
            else "there is no checkpoint yet"
        )
        return DivergedError(
            f"loss term {term!r} is {value} in epoch {self.epoch + 1}, batch {self.batches + 1}: "
            f"training stopped; {kept}. Try a smaller learning rate (--set lr=…)."
        )


def learning_rate(stage: Stage, index: int, protocol: Protocol) -> float:
    """The stage's own rate if it has one, otherwise the protocol's for a stage of this index."""
    if stage.lr is not None:
        return stage.lr.at(protocol.batch_size)
    return (protocol.stage2_lr if index else None) or protocol.lr


def schedule_of(stage: Stage, protocol: Protocol) -> Schedule:
    """The stage's own schedule if it has one, otherwise the protocol's."""
    return stage.schedule or protocol.schedule


def make_optimizer(groups: ParameterGroups, lr: float, protocol: Protocol) -> Optimizer | None:
    """SGD over the parameters that a stage trains; ``None`` if there are none."""
    if not groups:
        return None
    optimizer = SGD(
        groups,
        lr=lr,
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
        foreach=True,  # one call for all parameters instead of several for each
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_lr(optimizer: Optimizer, schedule: Schedule, done: float, epochs: int) -> float:
    """Set the learning rate after ``done`` epochs of a stage; returns that of the first group."""
    factor = 1.0 if schedule == "constant" else 0.5 * (1 + cos(pi * done / epochs))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])


@dataclass
class TrainerEpoch:
    """The contract's ``Epoch``; ``seed`` decides its batches."""

    trainer: "Trainer"
    clock: Callable[[str], AbstractContextManager[None]]
    index: int
    total: int
    steps: int
    seed: int
    generator: torch.Generator
    val_recall: Tensor | None

    def features(
        self,
        drawn: Literal["natural", "balanced"] = "natural",
        part: Literal["train", "validation"] = "train",
        view: Literal["eval", "weak", "strong"] = "eval",
    ) -> tuple[Tensor, Tensor]:
        """See ``lmd.methods.stage.Epoch.features``."""
        images = self.trainer.train if part == "train" else self.trainer.validation
        with self.clock("features"):
            if images is None or len(images) == 0:
                width = self.trainer.model.classifier.in_features
                empty = torch.empty(0, dtype=torch.long, device=self.trainer.device)
                return torch.empty(0, width, device=self.trainer.device), empty
            seed = int(torch.randint(2**62, (), generator=self.generator))
            return self.trainer.features(drawn, images, seed, view)


def views_seen(stage: Stage, protocol: Protocol) -> dict[str, str]:
    """Each view that the stage asks for, and the one that is made for it."""
    return {n: protocol.views if n == "label" else n for n in stage.views}


def train_batches(
    run: TrainerEpoch, stage: Stage, optimizer: Optimizer | None, checkpoint: Path
) -> dict[str, float]:
    """Train on the batches of one epoch and return the mean of every loss term.

    The error for a loss that is not finite names ``checkpoint``.
    """
    loader = _loader(run, stage)
    if loader is None or optimizer is None:
        return {}
    trainer = run.trainer
    losses = LossTerms(run.index, checkpoint)
    views, schedule = views_seen(stage, trainer.protocol), schedule_of(stage, trainer.protocol)
    with signals_held():
        raw = iter(loader)
    for b in range(len(loader)):
        with trainer.timings.of("waiting for batches"):
            batches = [_on_device(trainer, r, views) for r in next(raw)]
        set_lr(optimizer, schedule, run.index + b / len(loader), run.total)
        shared = sharing(len(batches[0].labels))
        with run.clock("steps"):
            try:
                with trainer.autocast(), shared:
                    terms = stage.step(optimizer, *batches)
            except Exception:
                losses.read()  # the cause may be a term that was not finite some steps ago
                raise
            losses.add(terms)
        trainer.display.step(b + 1, len(loader), losses.newest)
    with run.clock("steps"):
        return losses.means()


def _loader(run: TrainerEpoch, stage: Stage) -> "DataLoader[list[RawBatch]] | None":
    """The batches that the stage asks for in this epoch, if any."""
    asked = stage.class_weights(run)
    if not asked:
        return None
    trainer, workers = run.trainer, run.trainer.protocol.workers
    return training_batches(
        trainer.train,
        [None if w is None else w.double().cpu().numpy() for w in asked],
        # A view that has two names is made once.
        views=tuple(dict.fromkeys(views_seen(stage, trainer.protocol).values())),
        batch_size=trainer.protocol.batch_size,
        seed=run.seed,
        workers=default_workers(trainer.device) if workers is None else workers,
        share=(rank(), world()),
    )


def _on_device(trainer: "Trainer", raw: RawBatch, views: Mapping[str, str]) -> Batch:
    made, labels, seconds = raw
    trainer.timings.add("views", seconds)
    normal = {name: trainer.normalise(view) for name, view in made.items()}
    return Batch(
        {asked: normal[name] for asked, name in views.items()},
        labels.to(trainer.device, non_blocking=True),
        labels,
    )


class StageTraining:
    """A stage, its optimiser and the best model so far."""

    def __init__(self, trainer: "Trainer", stage: Stage, index: int, path: Path) -> None:
        self.trainer, self.stage, self.index, self.path = trainer, stage, index, path
        protocol = trainer.protocol
        self.epochs = stage.epochs or (protocol.stage2_epochs if index else protocol.epochs)
        self.lr = learning_rate(stage, index, protocol)
        self.schedule = schedule_of(stage, protocol)
        stage.clock = self.clock
        self.optimizer = make_optimizer(prepare(stage), self.lr, protocol)
        self.best: dict[str, Tensor] | None = None
        self.best_score = -1.0

    def clock(self, what: str) -> AbstractContextManager[None]:
        """Adds the time inside the context to this stage."""
        return self.trainer.timings.of(f"stage {self.index + 1} {what}")

    def run(self, saved: Checkpoint | None) -> None:
        """Train the remaining epochs, with a checkpoint after each."""
        first = self._restore(saved) if saved is not None else 0
        if first == self.epochs:  # trained by another run
            self._save(first)
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
        self.trainer.summaries[:] = progress["stages"]
        self.trainer.timings.seconds.update(progress["timings"])
        self.trainer.taken_from = self.trainer.taken_from or progress.get("taken_from")
        recall = progress["val_recall"]
        self.trainer.val_recall = None if recall is None else torch.tensor(recall).double()
        return int(progress["epoch"])

    def _epoch(self, epoch: int) -> None:
        trainer, started, spent = self.trainer, time.perf_counter(), processor_seconds()
        run = self._start(epoch)
        prepare(self.stage)
        lr = self.optimizer and set_lr(self.optimizer, self.schedule, epoch, self.epochs)
        name = f"stage {self.index + 1} {self.stage.name} {epoch + 1}/{self.epochs}"
        trainer.display.start(name, run.steps)
        with self.clock("start of epoch"):
            means = dict(self.stage.start_epoch(run) or {})
            # Different machines round differently; here they get the same values again.
            agree(list(self.stage.state_dict().values()))
        means |= train_batches(run, self.stage, self.optimizer, self.path)
        score = self._validate()
        if trainer.device.type == "cpu":
            # Unlike the seconds of the row, this does not grow with other work on the machine.
            key = processor_time(self.index + 1)
            trainer.timings.add(key, round(processor_seconds() - spent, 3))
        row: dict[str, Any] = {
            "stage": self.index + 1,
            "stage_name": self.stage.name,
            "epoch": epoch + 1,
            "lr": lr if self.stage.updates else None,
            "seconds": round(time.perf_counter() - started, 3),
            "val_bacc": score,
            **means,
        }
        trainer.history.append(row)
        trainer.summaries[self.index :] = [self._summary()]
        self._save(epoch + 1)
        shown = " ".join(f"{k} {v:.4g}" for k, v in means.items())
        found = "" if score is None else f"  validation BACC {100 * score:.1f}"
        trainer.display.say(f"{name}  {shown}{found}  {row['seconds']:.1f} s")

    def _start(self, epoch: int) -> TrainerEpoch:
        """Seed all random draws of this epoch."""
        trainer = self.trainer
        seed = derive_seed(trainer.protocol.seed, self.index, epoch)
        torch.manual_seed(seed)
        return TrainerEpoch(
            trainer,
            self.clock,
            epoch,
            self.epochs,
            steps=len(batches_of(np.arange(len(trainer.train)), trainer.protocol.batch_size)),
            seed=seed,
            generator=torch.Generator().manual_seed(seed),
            val_recall=trainer.val_recall,
        )

    def _validate(self) -> float | None:
        """The score on the validation part; keeps the best model so far."""
        with self.trainer.timings.of("validation"):
            score = self.trainer.validate()
        if score is not None and score > self.best_score:
            self.best_score = score
            if self.trainer.protocol.select == "best":
                self.best = clone_state(self.trainer.model)
        return score

    def _summary(self) -> dict[str, Any]:
        rows = [row for row in self.trainer.history if row["stage"] == self.index + 1]
        views = dict.fromkeys(views_seen(self.stage, self.trainer.protocol).values())
        updating = self.optimizer if self.stage.updates else None
        return {
            "name": self.stage.name,
            "epochs": len(rows),
            "seconds": round(sum(row["seconds"] for row in rows), 3),
            "lr": updating and updating.param_groups[0]["initial_lr"],
            "schedule": updating and self.schedule,
            "views": list(views) if self.optimizer else [],
            # Without validation images nothing was chosen: the stage fell back to its own values.
            "chosen": dict(self.stage.chosen()) if self.trainer.validation else {},
        }

    def _save(self, epochs_done: int) -> None:
        trainer = self.trainer
        if rank() > 0:
            return
        recall = trainer.val_recall
        with trainer.timings.of("checkpoint"):
            # The checkpoint comes first, so that every epoch of the history can be resumed.
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
                    "stages": trainer.summaries,
                    "timings": trainer.timings.seconds,
                    "val_recall": None if recall is None else recall.tolist(),
                },
            )
            Run(trainer.folder).write_history(trainer.history)
        if trainer.watch is not None:
            trainer.watch(trainer.history)


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
    train: Part
    validation: Part | None
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
        if not shared or not place:
            training.run(saved)
            return
        with ExitStack() as held:
            if rank() == 0:
                # Whichever run comes first trains the stage; the others wait here and take it over.
                held.enter_context(shared.claim(place))
            if saved is None and (saved := in_turn(partial(load_checkpoint, place))) is not None:
                self.taken_from = saved.progress["run"]
                self.display.say(f"stage 1 has been trained by {self.taken_from} and is reused")
            training.run(saved)
            shared.keep(training.path, place)

    def predict(self, images: Part) -> Tensor:
        """Logits ``(N, K)`` of the evaluation view, on the CPU."""
        return self._forward(self.model, images, self.model.classifier.out_features)

    def encode(self, images: Part) -> tuple[Tensor, Tensor]:
        """Features ``(N, C)`` and logits ``(N, K)`` of the evaluation view in float32, on the CPU.

        They are those of the shipped model.
        """

        def both(batch: Tensor) -> Tensor:
            features = self.model.features(batch)
            return torch.cat([features, self.model.classifier(features)], 1)

        widths = [self.model.classifier.in_features, self.model.classifier.out_features]
        outputs = self._forward(both, images, sum(widths), exact=True)
        features, logits = outputs.split(widths, dim=1)
        return features.contiguous(), logits.contiguous()

    def features(
        self,
        drawn: Literal["natural", "balanced"],
        images: Part,
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
        chosen = images if len(unique) == len(images) else images.take(unique)
        width = self.model.classifier.in_features
        found = self._forward(self.model.encoder, chosen, width, view, seed)
        labels = torch.from_numpy(images.labels[index]).to(self.device)
        return found.to(self.device)[torch.from_numpy(back).to(self.device)], labels

    def _forward(
        self,
        compute: Callable[[Tensor], Tensor],
        images: Part,
        width: int,
        view: str = "eval",
        seed: int = 0,
        *,
        exact: bool = False,
    ) -> Tensor:
        """Outputs ``(N, width)`` in eval mode; processes share the batches."""
        outputs = torch.zeros(len(images), width)
        size = max(self.protocol.batch_size, 64)
        precision = nullcontext() if exact else self.autocast()
        with evaluating(self.model), torch.no_grad(), precision:
            shared = evaluation_batches(images, size, (rank(), world()), view, seed)
            for rows, batch in shared:
                outputs[rows] = compute(self.normalise(batch)).float().cpu()
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
