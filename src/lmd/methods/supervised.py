"""What most methods are made of: weights from class counts, and a stage with one loss on one view.

A class without training images has weight 0, and counts as one image in a logarithm.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lmd.base.errors import LmdError
from lmd.methods.linear import log_priors
from lmd.methods.method import NonNegative, RateFor512, Settings, Share, Stage2Epochs
from lmd.methods.stage import Batch, Epoch, Options, Rate, Stage, Terms
from lmd.model import CosineClassifier, Model

Criterion = Callable[[Tensor, Tensor], Tensor]
View = Literal["label", "weak", "strong", "both"]
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def class_balanced_weights(counts: Tensor, beta: float) -> Tensor:
    """Return ``(1 - β) / (1 - β^n)``, rescaled to mean 1 over the classes that have images.

    Cui et al., Class-balanced loss based on effective number of samples, CVPR 2019, Eq. 4;
    ``(K,) → (K,)``. β = 0 weighs all classes alike; with β = 0.9999 and fewer than about 1000
    images per class the weights are nearly ``1 / n``.

    >>> class_balanced_weights(torch.tensor([7, 7, 7]), 0.99)
    tensor([1., 1., 1.])
    """
    counts = _floating(counts)
    # expm1 of n·ln β: in single precision 1 - β^n would lose four digits at n = 1, β = 0.9999.
    log_beta = math.log(beta) if beta > 0 else -math.inf
    effective_number = -torch.expm1(counts.clamp(min=1) * log_beta) / (1 - beta)
    weights = torch.where(counts > 0, 1 / effective_number, 0)
    return weights * ((weights > 0).sum() / weights.sum())


def balances_by(beta: float) -> bool:
    """Return whether ``class_balanced_weights`` balance the classes of most training parts.

    They do so for classes of up to ``1 / (1 - β)`` images. With β = 0.99 that is a hundred, fewer
    than frequent classes have.
    """
    return beta > 0.99


def image_weights(counts: Tensor, q: float = 1.0) -> Tensor:
    """Return the weight ``n^-q`` of one image of each class: ``(K,) → (K,)``.

    Classes are drawn with probability ``∝ n^(1-q)`` (Kang et al., Decoupling representation and
    classifier, ICLR 2020, Eq. 1 with q for 1 - q): q = 0 is instance, ½ square-root and 1
    class-balanced sampling.
    """
    counts = _floating(counts)
    return torch.where(counts > 0, counts.clamp(min=1) ** -q, 0)


def _floating(counts: Tensor) -> Tensor:
    return counts if counts.is_floating_point() else counts.to(torch.get_default_dtype())


def balanced_softmax_loss(
    logits: Tensor, labels: Tensor, counts: Tensor, tau: float = 1.0
) -> Tensor:
    """Cross-entropy of ``z + τ ln π``; equal counts or τ = 0 are plain cross-entropy.

    Ren et al., NeurIPS 2020, Eq. 3 (τ = 1; ``ln n`` and ``ln π`` differ by a constant), and Menon
    et al., ICLR 2021, Eq. 10; logits ``(B, K)``, labels ``(B,)``, counts ``(K,)``.
    """
    return F.cross_entropy(logits + tau * log_priors(counts), labels)


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


class Views(Settings):
    """What a plain stage sees, and whether its weights are averaged."""

    view: Annotated[View, "Augmentation for the loss; label: the protocol's."] = "label"
    average: Annotated[Share | None, "Average the weights over this share of the steps."] = None


class Retraining(Settings):
    """The budget of a classifier that is trained alone, as in cRT (Kang et al., ICLR 2020)."""

    classifier_epochs: Stage2Epochs = 10
    classifier_lr: RateFor512 = 0.2
    classifier_weight_decay: Annotated[NonNegative, "Weight decay of stage 2."] = 5e-4

    def options(self, **others: Unpack[Options]) -> Options:
        """Return the budget and ``others`` as a stage takes them; the rate follows a cosine."""
        return {
            **others,
            "epochs": self.classifier_epochs,
            "lr": Rate(self.classifier_lr, 512),
            "weight_decay": self.classifier_weight_decay,
            "schedule": "cosine",
        }


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
        for target, buffer in zip(average.buffers(), source.buffers(), strict=True):
            target.copy_(buffer)


class RunningAverage(nn.Module):
    """``model`` is an averaged copy of a module; all state is in it and in ``inside``.

    ``exchange`` puts the average into the module itself, where validation, checkpoints and the
    shipped model find it, and keeps the module's own weights until the next one.
    """

    inside: Tensor

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(source)
        self.register_buffer("inside", torch.tensor(False))

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


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Within it, layers in train mode normalise by the batch and keep their running statistics.

    Batches at weights that are never shipped, or of distorted images, must not enter the averages
    that evaluation uses.
    """
    norms = [m for m in module.modules() if isinstance(m, NORMS) and m.training]
    tracking = [norm for norm in norms if norm.track_running_stats]
    for norm in tracking:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True


def loss_of_views(model: Model, criterion: Criterion, batch: Batch, view: View) -> Terms:
    """Return the criterion on one view, or half of it on the weak and half on the strong one.

    Evaluation sees undistorted images, so BatchNorm's running statistics are of the weak view.
    """
    if view != "both":
        return {"loss": criterion(model(batch.views[view]), batch.labels)}
    weak = criterion(model(batch.views["weak"]), batch.labels)
    with still_statistics(model):
        strong = criterion(model(batch.views["strong"]), batch.labels)
    return {"loss": (weak + strong) / 2, "weak": weak, "strong": strong}


def ascent(gradients: Sequence[Tensor], radius: float | Tensor) -> list[Tensor]:
    """Return ``radius · g / ‖g‖`` with one norm over all gradients; 0 for a gradient of 0.

    Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021,
    Eq. 2.

    >>> ascent([torch.tensor([3.0]), torch.tensor([4.0])], radius=0.5)
    [tensor([0.3000]), tensor([0.4000])]
    """
    norm = torch.stack([g.norm() for g in gradients]).norm()
    factor = torch.where(norm > 0, radius / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0)
    return [g * factor for g in gradients]


@contextmanager
def perturbed(parameters: Sequence[Tensor], offsets: Sequence[Tensor]) -> Iterator[None]:
    """Within it, the parameters have these offsets; afterwards every bit is as it was."""
    saved = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter, offset in zip(parameters, offsets, strict=True):
            parameter.add_(offset)
    torch.clear_autocast_cache()  # it may hold half-precision copies of the values from before
    yield
    with torch.no_grad():
        for parameter, value in zip(parameters, saved, strict=True):
            parameter.copy_(value)
    torch.clear_autocast_cache()


def sharp_step(
    stage: Stage, model: nn.Module, optimizer: Optimizer, radius: float, up: Tensor, *batches: Batch
) -> Terms:
    """Update with the gradient at the point within ``radius`` of the model where ``up`` is worst.

    BatchNorm statistics stay: they come from the pass at the weights themselves.
    """
    optimizer.zero_grad(set_to_none=True)
    stage.backward(up)
    moved = [p for p in model.parameters() if p.grad is not None]
    offsets = ascent([p.grad for p in moved if p.grad is not None], radius)
    optimizer.zero_grad(set_to_none=True)
    with perturbed(moved, offsets):
        with still_statistics(model):
            terms = stage.loss(*batches)
        stage.backward(terms["loss"])
    optimizer.step()
    return terms


class Supervised(Stage):
    """``criterion(logits (B, K), labels (B,))`` on one view, by default the protocol's.

    ``view="both"`` takes half the loss of the weak and half of the strong view; BatchNorm's running
    statistics are of the weak one. ``draw(epoch)`` makes the weights of each epoch from validation,
    in place of ``weights``. A criterion that is a module may hold buffers: they are in the
    checkpoint. ``average`` is the horizon of a running average of the weights, as a share of all
    steps; the average is what is validated and shipped. With ``rho``, the update is the gradient at
    the worst point within this radius (sharpness-aware minimisation, ``sharp_step``).
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
        self.views = ("weak", "strong") if view == "both" else (view,)
        self.name = "Supervised" if rho is None else "Flat"
        self.needs_validation = draw is not None
        self.horizon, self.rho = average, rho
        self.average = None if average is None else RunningAverage(model)
        self.done = self.left = self.total = 0  # steps: of the stage, of the epoch, in all

    def class_weights(self, epoch: Epoch) -> list[Tensor | None]:
        """One stream."""
        return [self.weights if self.draw is None else self.draw(epoch)]

    def start_epoch(self, epoch: Epoch) -> None:
        """Continue from the trained weights where the average was validated."""
        if self.average is not None and self.average.inside:
            self.average.exchange(self.model)
        self.done, self.left = epoch.index * epoch.steps, epoch.steps
        self.total = epoch.total * epoch.steps

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """The criterion on the logits of the view, or half of it on each of two."""
        return loss_of_views(self.model, self.criterion, batch, self.view)

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update; the average follows, and replaces the weights at the end of the epoch."""
        if self.rho is None:
            terms = super().step(optimizer, *batches)
        else:
            terms = self.loss(*batches)
            flat = sharp_step(self, self.model, optimizer, self.rho, terms["loss"], *batches)
            terms = {**terms, "flat": flat["loss"]}
        if self.average is not None and self.horizon is not None:
            limit = horizon_limit(self.horizon, self.total)
            follow(self.average.model, self.model, min(1 - 1 / (self.done + 1), limit))
            self.done, self.left = self.done + 1, self.left - 1
            if self.left == 0:
                self.average.exchange(self.model)
        return terms


def draw_mixup(alpha: float, batch: int) -> tuple[float, Tensor]:
    """Draw a share λ ~ Beta(α, α) and a partner for each image ``(B,)``."""
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    return share, torch.randperm(batch)
