"""One epoch: what a stage may use, and training on its batches."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lmd.base.distributed import rank, world
from lmd.contract.stage import Batch, Stage
from lmd.data.loaders import RawBatch, default_workers, signals_held, training_batches
from lmd.protocol import Protocol
from lmd.training.descent import schedule_of, set_lr
from lmd.training.losses import LossTerms
from lmd.training.sharing import sharing

if TYPE_CHECKING:
    from lmd.training.trainer import Trainer


@dataclass
class EpochRun:
    """The contract's ``Run`` for one epoch; ``seed`` decides its batches."""

    trainer: "Trainer"
    clock: Callable[[str], AbstractContextManager[None]]
    epoch: int
    epochs: int
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
        """See ``lmd.contract.stage.Run.features``."""
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
    return {n: protocol.views if n == "label" else n for n in stage.view_names()}


def train_batches(
    run: EpochRun, stage: Stage, optimizer: Optimizer | None, checkpoint: Path
) -> dict[str, float]:
    """Train on the batches of one epoch and return the mean of every loss term.

    The error for a loss that is not finite names ``checkpoint``.
    """
    loader = _loader(run, stage)
    if loader is None or optimizer is None:
        return {}
    trainer = run.trainer
    losses = LossTerms(run.epoch, checkpoint)
    views, schedule = views_seen(stage, trainer.protocol), schedule_of(stage, trainer.protocol)
    with signals_held():
        raw = iter(loader)
    for b in range(len(loader)):
        with trainer.timings.of("waiting for batches"):
            batches = [_on_device(trainer, r, views) for r in next(raw)]
        set_lr(optimizer, schedule, run.epoch + b / len(loader), run.epochs)
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


def _loader(run: EpochRun, stage: Stage) -> "DataLoader[list[RawBatch]] | None":
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
    )
