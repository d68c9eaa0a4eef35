"""The plain stage that most methods are made of: one loss on one view, optionally averaged."""

import copy
from collections.abc import Callable, Mapping
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lmd.base.errors import LmdError
from lmd.methods.sam import sharp_backward, still_statistics
from lmd.methods.stage import Batch, Epoch, Options, Stage, Terms
from lmd.model import CosineClassifier, Model


def averaging_decay(t: int, limit: float, *, ramp: bool = True) -> float:
    """Decay of the t-th update, t from 0: ``min(1 - 1/(t+1), limit)``, or ``limit`` at once.

    >>> [averaging_decay(t, 0.6) for t in range(4)]
    [0.0, 0.5, 0.6, 0.6]
    """
    return min(1 - 1 / (t + 1), limit) if ramp else limit


def horizon_limit(horizon: float, total: int) -> float:
    """The decay that averages over a share ``horizon`` of ``total`` steps: ``1 - 1/(share · n)``.

    A horizon of less than one step is one step: nothing is averaged.

    >>> horizon_limit(0.1, 1000)
    0.99
    """
    return 1 - 1 / max(horizon * total, 1)


@torch.no_grad()
def follow(average: nn.Module, source: nn.Module, decay: float, *, buffers: bool = True) -> None:
    """``average ← decay · average + (1 - decay) · source``; buffers are copied, if at all.

    BatchNorm statistics are averages already.
    """
    parameters = [p.data for p in source.parameters()]
    get_ema_multi_avg_fn(decay)(list(average.parameters()), parameters, None)
    if buffers:
        for copy_of, buffer in zip(average.buffers(), source.buffers(), strict=True):
            copy_of.copy_(buffer)


class RunningAverage(nn.Module):
    """``model`` is an averaged copy of a module; all state is in it and in ``inside``.

    ``exchange`` puts the average into the module itself, where validation, checkpoints and the
    shipped model find it, and keeps the module's own weights until ``restore``.
    """

    inside: Tensor

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(source)
        self.register_buffer("inside", torch.tensor(False))

    def restore(self, source: nn.Module) -> None:
        """Give the module its own weights back, if the average is in it."""
        if self.inside:
            self.exchange(source)

    @torch.no_grad()
    def exchange(self, source: nn.Module) -> None:
        """Swap the average and the weights of the module."""
        averages = [*self.model.parameters(), *self.model.buffers()]
        weights = [*source.parameters(), *source.buffers()]
        for average, weight in zip(averages, weights, strict=True):
            value = average.clone()
            average.copy_(weight)
            weight.copy_(value)
        self.inside.logical_not_()


Criterion = Callable[[Tensor, Tensor], Tensor]
View = Literal["label", "weak", "strong", "both"]


class PerClass(nn.Module):
    """``loss(logits, labels, values, **settings)``; ``values (K,)`` move with the model."""

    values: Tensor

    def __init__(self, loss: Callable[..., Tensor], values: Tensor, **settings: float) -> None:
        super().__init__()
        self.loss, self.settings = loss, settings
        self.register_buffer("values", values, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of ``(B, K)`` and ``(B,)``."""
        return self.loss(logits, labels, self.values, **self.settings)


def cosine_classifier(
    model: Model, scale: float, remedy: str = "build it with head='cosine'"
) -> CosineClassifier:
    """Return the classifier of the model, with ``scale`` inside: the loss is of its cosines.

    What ships contains the scale: without it the softmax is nearly uniform.
    """
    classifier = model.classifier
    if not isinstance(classifier, CosineClassifier):
        raise LmdError(
            "this loss is of cosines, so the model needs a cosine classifier; it has "
            f"{type(classifier).__name__}: {remedy}"
        )
    classifier.scale.fill_(scale)
    return classifier


def both_views(model: Model, criterion: Criterion, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the criterion on the weak and on the strong view.

    Evaluation sees undistorted images, so BatchNorm's running statistics are of the weak view.
    """
    weak = criterion(model(batch.views["weak"]), batch.labels)
    with still_statistics(model):
        strong = criterion(model(batch.views["strong"]), batch.labels)
    return weak, strong


class Supervised(Stage):
    """``criterion(logits (B, K), labels (B,))`` on one view, by default the protocol's.

    ``view="both"`` takes half the loss of the weak and half of the strong view; BatchNorm's running
    statistics are of the weak one. ``draw(epoch)`` makes the weights of each epoch from validation,
    in place of ``weights``. A criterion that is a module may hold buffers: they are in the
    checkpoint. ``average`` is the horizon of a running average of the weights, as a share of all
    steps; the average is what is validated and shipped. With ``rho``, the update is the gradient at
    the worst point within this radius (sharpness-aware minimisation, ``lmd.methods.sam``).
    """

    def __init__(
        self,
        model: Model,
        criterion: Criterion = F.cross_entropy,
        *,
        part: nn.Module | None = None,
        draw: Callable[[Epoch], Tensor | None] | None = None,
        view: View = "label",
        average: float | None = None,
        rho: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        # The average is not trained: it follows.
        super().__init__(model if part is None and average is not None else part, **options)
        self.model, self.criterion, self.draw, self.view = model, criterion, draw, view
        self.needs_validation = draw is not None
        self.horizon, self.rho = average, rho
        self.average = None if average is None else RunningAverage(model)
        self.done = self.left = self.total = 0  # steps: of the stage, of the epoch, in all

    @property
    def name(self) -> str:
        """A sharpness-aware stage is called flat."""
        return "Supervised" if self.rho is None else "Flat"

    def view_names(self) -> tuple[str, ...]:
        """The view, or both."""
        return ("weak", "strong") if self.view == "both" else (self.view,)

    def class_weights(self, epoch: Epoch) -> list[Tensor | None]:
        """One stream."""
        return [self.weights if self.draw is None else self.draw(epoch)]

    def start_epoch(self, epoch: Epoch, optimizer: Optimizer | None) -> Mapping[str, float] | None:
        """Continue from the trained weights where the average was validated."""
        if self.average is not None:
            self.average.restore(self.model)
        self.done, self.left = epoch.index * epoch.steps, epoch.steps
        self.total = epoch.total * epoch.steps
        return None

    def loss(self, *batches: Batch) -> Terms:
        """The criterion on the logits of the view, or half of it on each of two."""
        (batch,) = batches
        if self.view != "both":
            return {"loss": self.criterion(self.model(batch.views[self.view]), batch.labels)}
        weak, strong = both_views(self.model, self.criterion, batch)
        return {"loss": (weak + strong) / 2, "weak": weak, "strong": strong}

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update; the average follows, and replaces the weights at the end of the epoch."""
        terms = self._update(optimizer, *batches)
        if self.average is not None and self.horizon is not None:
            decay = averaging_decay(self.done, horizon_limit(self.horizon, self.total))
            follow(self.average.model, self.model, decay)
            self.done, self.left = self.done + 1, self.left - 1
            if self.left == 0:
                self.average.exchange(self.model)
        return terms

    def _update(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        if self.rho is None:
            return super().step(optimizer, *batches)
        optimizer.zero_grad(set_to_none=True)
        terms: Terms = self(*batches)
        self.backward(terms["loss"])
        flat = sharp_backward(self, self.model, optimizer, self.rho, *batches)
        optimizer.step()
        return {**terms, "flat": flat["loss"]}
