"""Training of one stage, from its first epoch or from a checkpoint."""

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lmd.base.distributed import agree, rank
from lmd.base.seeds import derive_seed
from lmd.contract.stage import Stage, prepare
from lmd.data.loaders import batches_of
from lmd.runfolder.folder import RunFolder
from lmd.runfolder.times import processor_time
from lmd.training.checkpoint import Checkpoint, clone_state, save_checkpoint
from lmd.training.descent import learning_rate, make_optimizer, schedule_of, set_lr
from lmd.training.epoch import EpochRun, train_batches, views_seen
from lmd.training.measuring import processor_seconds
from lmd.training.sharing import averaged

if TYPE_CHECKING:
    from lmd.training.trainer import Trainer


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
            means = dict(self.stage.start_epoch(run, self.optimizer) or {})
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

    def _start(self, epoch: int) -> EpochRun:
        """Seed all random draws of this epoch."""
        trainer = self.trainer
        seed = derive_seed(trainer.protocol.seed, self.index, epoch)
        torch.manual_seed(seed)
        return EpochRun(
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
            RunFolder(trainer.folder).write_history(trainer.history)
        if trainer.watch is not None:
            trainer.watch(trainer.history)
