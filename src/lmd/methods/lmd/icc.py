"""Iterative Classifier Calibration: stage 2 of LMD (LMD paper, Eq. 6-12, Algorithm 1).

One EM iteration is one epoch. The M step (before the batches) estimates a Gaussian for each class
and calibrates the classifier on virtual features; the E step (the batches) tunes the encoder
through the frozen classifier, with Feature Distribution Consistency.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lmd.base.errors import LmdError
from lmd.contract.settings import BelowOne, Count, NonNegative, Settings, Share
from lmd.contract.stage import Batch, ParameterGroups, Run, Stage, Task, Terms
from lmd.contract.weighting import image_weights
from lmd.methods.lmd.calibrate import enough_draws, sgd_pass
from lmd.methods.lmd.e_step import attraction_and_repulsion, gce_loss
from lmd.methods.lmd.gaussians import MOST_VIRTUAL_FEATURES, ClassGaussians, Distance
from lmd.methods.lmd.selection import (
    FALLBACK_PENALTY,
    FALLBACK_SHRINKAGE,
    PENALTIES,
    SHRINKAGES,
    Problem,
    RealFeatures,
    VirtualFeatures,
    choose,
)
from lmd.methods.lmd.virtual_pass import pays, virtual_pass
from lmd.model import Model

Sampling = Literal["natural", "balanced"]
Moments = Literal["ema", "raw"]
MStep = Literal["argmin", "sgd"]
LabelLoss = Literal["ce", "gce"]
Chosen = Literal["validation"]


class ICCSettings(Settings):
    """Settings of stage 2; the rows are those of ``docs/paper-vs-code.md``."""

    iterations: Annotated[Count | None, "EM iterations; none: the protocol's epochs."] = None
    m_sampling: Annotated[Sampling, "How the M step draws images (row 11)."] = "balanced"
    m_drop_partial: Annotated[Count | None, "Drop partial batches of this size (row 11)."] = None
    ridge: Annotated[NonNegative, "Added to the diagonal of each covariance (row 12)."] = 1e-2
    virtual_moments: Annotated[Moments, "Draw from averaged or new moments (row 12)."] = "ema"
    moments_decay: Annotated[Share, "Largest decay of the averaged moments (row 13)."] = 0.999
    virtual_features: Annotated[Count, "Virtual features of each class (row 14)."] = 50_000
    m_step: Annotated[MStep, "Solve the M step, or make one pass of SGD (row 15)."] = "argmin"
    shrinkage: Annotated[
        Share | Chosen, "Shrinkage towards the pooled covariance; argmin only (row 15)."
    ] = "validation"
    weight_penalty: Annotated[
        NonNegative | Chosen, "Penalty on the classifier's weights; argmin only (row 15)."
    ] = "validation"
    m_lr: Annotated[NonNegative, "Learning rate of the M step; sgd only (row 15)."] = 1e-5
    m_momentum: Annotated[BelowOne, "Momentum of the M step; sgd only (row 15)."] = 0.9
    m_weight_decay: Annotated[NonNegative, "Weight decay of the M step; sgd only (row 15)."] = 1e-4
    m_batch: Annotated[Count, "Batch size of the M step; sgd only (row 15)."] = 352
    e_sampling: Annotated[Sampling, "How the E step draws images."] = "natural"
    label_loss: Annotated[LabelLoss, "Plain or generalised cross-entropy (row 16)."] = "ce"
    label_gradient: Annotated[bool, "Whether the label loss reaches the encoder (row 16)."] = True
    lambda_e: Annotated[NonNegative, "Weight of feature distribution consistency."] = 1e-4
    fdc_sign: Annotated[Literal[1, -1], "1 is Psi - Phi, -1 the opposite (row 17)."] = 1
    distance: Annotated[Distance, "Mahalanobis, or the printed formula (row 18)."] = "mahalanobis"
    encoder_lr: Annotated[NonNegative, "Learning rate of the encoder (row 20)."] = 1e-6
    encoder_weight_decay: Annotated[
        NonNegative | None, "Weight decay of the encoder; none: the protocol's (row 20)."
    ] = None
    last_e_step: Annotated[bool, "Whether the last iteration has an E step (row 21)."] = True


def check_model(model: Model, settings: ICCSettings) -> None:
    """The M step solves for the weight and bias of a linear classifier of two or more classes."""
    classifier = model.classifier
    if not isinstance(classifier, nn.Linear) or classifier.bias is None:
        raise LmdError(
            "model.classifier: LMD needs a linear classifier with a bias, but this is "
            f"{classifier!r}; make the model with head='linear'"
        )
    classes = classifier.out_features
    if classes < 2:
        raise LmdError(
            f"model.classifier: LMD needs at least 2 classes, but the classifier has {classes}"
        )
    most = (MOST_VIRTUAL_FEATURES - 1) // classes
    if settings.virtual_features > most:
        raise LmdError(
            f"setting 'virtual_features' must be at most {most} with {classes} classes; "
            f"it is {settings.virtual_features}"
        )


class ICC(Stage):
    """EM; the E step minimises ``lambda_e (Psi - Phi) + L_CE`` over the encoder.

    ``e_step=False`` calibrates once and does not train the encoder; ``vfc=False`` calibrates on
    real features; ``fdc=False`` sets ``lambda_e = 0``. ``shrinkage`` and ``weight_penalty`` are
    chosen in the first iteration where they are ``"validation"``.
    """

    views: ClassVar[tuple[str, ...]] = ("weak",)
    class_counts: Tensor
    iteration: Tensor
    regularisers: Tensor
    weight_velocity: Tensor
    bias_velocity: Tensor

    def __init__(
        self,
        model: Model,
        task: Task,
        settings: ICCSettings | None = None,
        *,
        vfc: bool = True,
        fdc: bool = True,
        e_step: bool = True,
    ) -> None:
        super().__init__()
        self.settings = settings = settings or ICCSettings()
        check_model(model, settings)
        self.model = model
        self.vfc, self.e_step = vfc, e_step
        self.lambda_e = settings.lambda_e if fdc else 0.0
        self.epochs = settings.iterations if e_step else 1
        self.gaussians = ClassGaussians(
            len(task.class_counts),
            task.feature_dim,
            ridge=settings.ridge,
            decay=settings.moments_decay,
        )
        self.register_buffer("class_counts", task.class_counts.clone(), persistent=False)
        self.register_buffer("iteration", torch.tensor(0))
        # Shrinkage and penalty in use; -1 until the first M step has chosen them.
        self.register_buffer("regularisers", torch.full((2,), -1.0, dtype=torch.float64))
        self.register_buffer("weight_velocity", torch.zeros_like(model.classifier.weight))
        self.register_buffer("bias_velocity", torch.zeros_like(self._bias()))

    def _bias(self) -> Tensor:
        assert isinstance(self.model.classifier, nn.Linear)
        return self.model.classifier.bias

    def trainable(self) -> ParameterGroups:
        """The encoder, with a learning rate of its own; the M step moves the classifier itself."""
        if not self.e_step:
            return []
        group = {"params": list(self.model.encoder.parameters()), "lr": self.settings.encoder_lr}
        if self.settings.encoder_weight_decay is not None:
            group["weight_decay"] = self.settings.encoder_weight_decay
        return [group]

    def class_weights(self, run: Run) -> list[Tensor | None]:
        """The stream of the E step; none where there is no E step in this iteration."""
        last = run.epoch == run.epochs - 1
        if not self.e_step or (last and not self.settings.last_e_step):
            return []
        balanced = self.settings.e_sampling == "balanced"
        return [image_weights(self.class_counts) if balanced else None]

    @torch.no_grad()
    def start_epoch(self, run: Run, optimizer: Optimizer | None) -> Mapping[str, float]:
        """The M step: features, moments, virtual features, classifier."""
        features, labels = self._draw(run)
        self.gaussians.update(features, labels, int(self.iteration))
        drawn_from = self.gaussians
        if self.settings.virtual_moments == "raw":
            drawn_from = ClassGaussians(*self.gaussians.mean.shape, ridge=self.gaussians.ridge)
            drawn_from.to(self.gaussians.mean).fit(features, labels)
        solve = self._sgd_pass if self.settings.m_step == "sgd" else self._argmin
        numbers = solve(run, drawn_from, features, labels)
        self.iteration += 1
        return numbers

    def _draw(self, run: Run) -> tuple[Tensor, Tensor]:
        """The features of the M step, on the device of the moments."""
        features, labels = run.features(drawn=self.settings.m_sampling)
        if self.settings.m_drop_partial and len(labels) > self.settings.m_drop_partial:
            # The draws are independent, so it does not matter which of them are dropped.
            kept = len(labels) - len(labels) % self.settings.m_drop_partial
            rows = torch.randperm(len(labels), generator=run.generator)[:kept].to(labels.device)
            features, labels = features[rows], labels[rows]
        present = torch.bincount(labels, minlength=len(self.class_counts)) > 0
        if not int(self.iteration) and not present.all():
            # If the first draw missed a class, take all its images.
            more, more_labels = run.features(drawn="natural")
            missed = ~present[more_labels]
            features = torch.cat([features, more[missed]])
            labels = torch.cat([labels, more_labels[missed]])
        return features.to(self.gaussians.mean), labels.to(self.gaussians.mean.device)

    def _sgd_pass(
        self, run: Run, gaussians: ClassGaussians, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """The paper's M step: one pass of SGD over R K virtual features."""
        given = self.settings
        weight, velocity = self.model.classifier.weight, (self.weight_velocity, self.bias_velocity)
        moved = weight.detach(), self._bias().detach(), velocity
        lr, momentum, decay = given.m_lr, given.m_momentum, given.m_weight_decay
        drawn = given.virtual_features, given.m_batch, run.generator
        if self.vfc and pays(weight.shape[0], weight.shape[1], given.m_batch):
            loss = virtual_pass(
                gaussians, *drawn, *moved, lr=lr, momentum=momentum, weight_decay=decay
            )
            return {"m_loss": loss}
        if self.vfc:
            batches = gaussians.batches(*drawn)
        else:
            order = torch.randperm(len(labels), generator=run.generator).to(labels.device)
            batches = ((features[rows], labels[rows]) for rows in order.split(given.m_batch))
        loss = sgd_pass(batches, *moved, lr=lr, momentum=momentum, weight_decay=decay)
        return {"m_loss": loss}

    def _argmin(
        self, run: Run, gaussians: ClassGaussians, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """The argmin of the M step's loss, from the classifier of the iteration before."""
        weight, bias = self.model.classifier.weight, self._bias()
        problem: Problem = RealFeatures.of(features, labels)
        if self.vfc:
            draws = min(self.settings.virtual_features, enough_draws(len(self.class_counts)))
            problem = VirtualFeatures.of(gaussians, self.class_counts, draws, run.generator)
        if (self.regularisers < 0).any():
            found = self._choose_regularisers(run, problem)
            self.regularisers.copy_(torch.tensor(found, dtype=torch.float64))
        shrinkage, penalty = self.regularisers.tolist()
        with torch.enable_grad():
            solution = problem.shrunk(shrinkage).solve(weight.detach(), bias.detach(), penalty)
        weight.copy_(solution.weight)
        bias.copy_(solution.bias)
        return {
            "m_loss": solution.loss,
            "m_grad_norm": solution.grad_norm,
            "m_evaluations": float(solution.evaluations),
            "shrinkage": shrinkage,
            "weight_penalty": penalty,
        }

    def chosen(self) -> Mapping[str, float]:
        """Shrinkage and weight penalty, unless they were given or are not used."""
        if self.settings.m_step == "sgd":
            return {}
        asked = self.settings.model_dump(include={"shrinkage", "weight_penalty"})
        values = zip(asked.items(), self.regularisers.tolist(), strict=True)
        return {key: value for (key, given), value in values if given == "validation"}

    def _choose_regularisers(self, run: Run, problem: Problem) -> tuple[float, float]:
        """Shrinkage and penalty: as given, chosen on validation, or the fallbacks without one."""
        unit = problem.variance
        shrinkages = SHRINKAGES if self.vfc else (0.0,)
        penalties = tuple(unit * p for p in PENALTIES)
        fallback = (FALLBACK_SHRINKAGE if self.vfc else 0.0, unit * FALLBACK_PENALTY)
        shrinkage, penalty = self.settings.shrinkage, self.settings.weight_penalty
        if not isinstance(shrinkage, str):
            shrinkages, fallback = (shrinkage,), (shrinkage, fallback[1])
        if not isinstance(penalty, str):
            penalties, fallback = (penalty,), (fallback[0], penalty)
        if len(shrinkages) * len(penalties) == 1:
            return fallback
        features, labels = run.features(drawn="natural", part="validation")
        if not len(labels):
            return fallback
        weight, bias = self.model.classifier.weight.detach(), self._bias().detach()
        with torch.enable_grad():
            return choose(problem, weight, bias, (features, labels), shrinkages, penalties)

    def loss(self, *batches: Batch) -> Terms:
        """The E step: terms ``loss``, ``ce`` (or ``gce``) and, with FDC, ``psi`` and ``phi``."""
        (batch,) = batches
        with self.clock("student"):
            features = self.model.features(batch.views["weak"])
        reach = self.settings.label_gradient
        logits = self.model.classifier(features if reach else features.detach())
        name = self.settings.label_loss
        criterion = F.cross_entropy if name == "ce" else gce_loss
        label = criterion(logits, batch.labels)
        if not self.lambda_e:
            # Without a label gradient no loss reaches the encoder, which then does not move.
            idle = 0 if reach else 0 * features.sum()
            return {"loss": label + idle, name: label}
        # Differences of large distances: never in half precision.
        with self.clock("losses"), torch.autocast(features.device.type, enabled=False):
            z = features.to(self.gaussians.mean.dtype)
            distance = self.settings.distance
            psi, phi = attraction_and_repulsion(z, batch.labels, self.gaussians, distance)
            loss = label + self.lambda_e * self.settings.fdc_sign * (psi - phi)
        return {"loss": loss, name: label, "psi": psi, "phi": phi}
