"""Iterative Classifier Calibration: stage 2 of LMD (LMD paper, Eq. 6-12, Algorithm 1).

One EM iteration is one epoch. The M step (before the batches) estimates a Gaussian for each class
and calibrates the classifier on virtual features; the E step (the batches) tunes the encoder
through the frozen classifier, with Feature Distribution Consistency.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lmd.contract.stage import Batch, ParameterGroups, Run, Stage, Task, Terms
from lmd.methods.lmd.calibrate import enough_draws, sgd_pass
from lmd.methods.lmd.checks import between, linear_classifier, one_of
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
Regulariser = float | Literal["validation"]


def attraction_and_repulsion(
    features: Tensor, labels: Tensor, gaussians: ClassGaussians, distance: Distance = "mahalanobis"
) -> tuple[Tensor, Tensor]:
    """Psi and Phi: mean distance to the own class and to the others (LMD paper, Eq. 10-11).

    ``features (B, C)``, ``labels (B,)``; differentiable once with respect to the features.
    """
    own, total = gaussians.own_and_total(features, labels, distance)
    return own.mean(), (total - own).mean() / (len(gaussians.mean) - 1)


def fdc_loss(
    features: Tensor, labels: Tensor, gaussians: ClassGaussians, distance: Distance = "mahalanobis"
) -> Tensor:
    """Feature Distribution Consistency, Psi - Phi (LMD paper, Eq. 10-12), of ``(B, C)``."""
    psi, phi = attraction_and_repulsion(features, labels, gaussians, distance)
    return psi - phi


def gce_loss(logits: Tensor, labels: Tensor, q: float = 0.7) -> Tensor:
    """Generalised cross-entropy, mean of ``(1 - p_y^q) / q``; logits ``(B, K)``."""
    p = logits.softmax(1).gather(1, labels[:, None])
    return ((1 - p**q) / q).mean()


class ICC(Stage):
    """EM with the encoder's ``lambda_e (Psi - Phi) + L_CE`` as its E step.

    ``e_step=False`` calibrates once and leaves the encoder alone; ``vfc=False`` calibrates on the
    real features as drawn. ``shrinkage`` and ``weight_penalty`` belong to ``m_step="argmin"``;
    with ``"validation"`` they are chosen at the first iteration. See ``lmd`` for the settings.
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
        *,
        vfc: bool = True,
        e_step: bool = True,
        iterations: int | None = None,
        m_sampling: Sampling = "balanced",
        m_drop_partial: int | None = None,
        ridge: float = 1e-2,
        moments_decay: float = 0.999,
        virtual_moments: Literal["ema", "raw"] = "ema",
        virtual_features: int = 50_000,
        m_step: Literal["argmin", "sgd"] = "argmin",
        shrinkage: Regulariser = "validation",
        weight_penalty: Regulariser = "validation",
        m_lr: float = 1e-5,
        m_momentum: float = 0.9,
        m_weight_decay: float = 1e-4,
        m_batch: int = 352,
        e_sampling: Sampling = "natural",
        label_loss: Literal["ce", "gce"] = "ce",
        label_gradient: bool = True,
        lambda_e: float = 1e-4,
        fdc_sign: int = 1,
        distance: Distance = "mahalanobis",
        encoder_lr: float = 1e-6,
        encoder_weight_decay: float | None = None,
        last_e_step: bool = True,
    ) -> None:
        super().__init__()
        linear_classifier(model)
        one_of("m_sampling", m_sampling, get_args(Sampling))
        one_of("e_sampling", e_sampling, get_args(Sampling))
        one_of("virtual_moments", virtual_moments, ("ema", "raw"))
        one_of("m_step", m_step, ("argmin", "sgd"))
        one_of("label_loss", label_loss, ("ce", "gce"))
        one_of("distance", distance, get_args(Distance))
        most = (MOST_VIRTUAL_FEATURES - 1) // len(task.class_counts)
        between("virtual_features", virtual_features, 1, most)
        between("ridge", ridge, 0)
        between("iterations", iterations, 1)
        for name, value in (("shrinkage", shrinkage), ("weight_penalty", weight_penalty)):
            if isinstance(value, str):
                one_of(name, value, ("validation",))
            else:
                between(name, value, 0, 1 if name == "shrinkage" else float("inf"))
        self.model = model
        self.vfc, self.e_step = vfc, e_step
        self.epochs = iterations if e_step else 1
        self.m_sampling, self.m_drop_partial = m_sampling, m_drop_partial
        self.virtual_moments, self.virtual_features = virtual_moments, virtual_features
        self.m_step, self.shrinkage, self.weight_penalty = m_step, shrinkage, weight_penalty
        self.m_lr, self.m_momentum, self.m_weight_decay = m_lr, m_momentum, m_weight_decay
        self.m_batch, self.e_sampling = m_batch, e_sampling
        self.label_loss, self.label_gradient = label_loss, label_gradient
        self.lambda_e, self.fdc_sign, self.distance = lambda_e, fdc_sign, distance
        self.encoder_lr, self.encoder_weight_decay = encoder_lr, encoder_weight_decay
        self.last_e_step = last_e_step
        self.gaussians = ClassGaussians(
            len(task.class_counts), task.feature_dim, ridge=ridge, decay=moments_decay
        )
        self.register_buffer("class_counts", task.class_counts.clone(), persistent=False)
        self.register_buffer("iteration", torch.tensor(0))
        # Shrinkage and penalty in use; -1 until the first M step has settled them.
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
        group = {"params": list(self.model.encoder.parameters()), "lr": self.encoder_lr}
        if self.encoder_weight_decay is not None:
            group["weight_decay"] = self.encoder_weight_decay
        return [group]

    def class_weights(self, run: Run) -> list[Tensor | None]:
        """The stream of the E step; none where there is no E step in this iteration."""
        last = run.epoch == run.epochs - 1
        if not self.e_step or (last and not self.last_e_step):
            return []
        if self.e_sampling == "balanced":
            return [1 / self.class_counts.clamp(min=1).float()]
        return [None]

    @torch.no_grad()
    def start_epoch(self, run: Run, optimizer: Optimizer | None) -> Mapping[str, float]:
        """The M step: features, moments, virtual features, classifier."""
        features, labels = self._draw(run)
        self.gaussians.update(features, labels, int(self.iteration))
        drawn_from = self.gaussians
        if self.virtual_moments == "raw":
            drawn_from = ClassGaussians(*self.gaussians.mean.shape, ridge=self.gaussians.ridge)
            drawn_from.to(self.gaussians.mean).fit(features, labels)
        solve = self._descend if self.m_step == "sgd" else self._reach
        numbers = solve(run, drawn_from, features, labels)
        self.iteration += 1
        return numbers

    def _draw(self, run: Run) -> tuple[Tensor, Tensor]:
        """The features of the M step, on the device of the moments."""
        features, labels = run.features(drawn=self.m_sampling)
        if self.m_drop_partial and len(labels) > self.m_drop_partial:
            # The draws are independent, so a partial batch is any so many of them.
            kept = len(labels) - len(labels) % self.m_drop_partial
            rows = torch.randperm(len(labels), generator=run.generator)[:kept].to(labels.device)
            features, labels = features[rows], labels[rows]
        present = torch.bincount(labels, minlength=len(self.class_counts)) > 0
        if not int(self.iteration) and not present.all():
            # A first draw that missed a class: take its images as they are.
            more, more_labels = run.features(drawn="natural")
            missed = ~present[more_labels]
            features = torch.cat([features, more[missed]])
            labels = torch.cat([labels, more_labels[missed]])
        return features.to(self.gaussians.mean), labels.to(self.gaussians.mean.device)

    def _descend(
        self, run: Run, gaussians: ClassGaussians, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """The paper's M step: one pass of SGD over R K virtual features."""
        weight, bias = self.model.classifier.weight.detach(), self._bias().detach()
        velocity = self.weight_velocity, self.bias_velocity
        lr, momentum, decay = self.m_lr, self.m_momentum, self.m_weight_decay
        if self.vfc:
            drawn = self.virtual_features, self.m_batch, run.generator
            if pays(weight.shape[0], weight.shape[1], self.m_batch):
                moved = weight, bias, velocity
                loss = virtual_pass(
                    gaussians, *drawn, *moved, lr=lr, momentum=momentum, weight_decay=decay
                )
                return {"m_loss": loss}
            batches = gaussians.batches(*drawn)
        else:
            order = torch.randperm(len(labels), generator=run.generator).to(labels.device)
            batches = ((features[rows], labels[rows]) for rows in order.split(self.m_batch))
        loss = sgd_pass(
            batches, weight, bias, velocity, lr=lr, momentum=momentum, weight_decay=decay
        )
        return {"m_loss": loss}

    def _reach(
        self, run: Run, gaussians: ClassGaussians, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """The argmin of the M step's loss, from the classifier of the iteration before."""
        weight, bias = self.model.classifier.weight, self._bias()
        problem: Problem = RealFeatures.of(features, labels)
        if self.vfc:
            draws = min(self.virtual_features, enough_draws(len(self.class_counts)))
            problem = VirtualFeatures.of(gaussians, self.class_counts, draws, run.generator)
        if (self.regularisers < 0).any():
            self.regularisers.copy_(torch.tensor(self._settle(run, problem), dtype=torch.float64))
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
        if self.m_step == "sgd":
            return {}
        asked = {"shrinkage": self.shrinkage, "weight_penalty": self.weight_penalty}
        values = zip(asked.items(), self.regularisers.tolist(), strict=True)
        return {key: value for (key, given), value in values if given == "validation"}

    def _settle(self, run: Run, problem: Problem) -> tuple[float, float]:
        """Shrinkage and penalty: as given, chosen on validation, or the fallbacks without one."""
        unit = problem.variance
        shrinkages = SHRINKAGES if self.vfc else (0.0,)
        penalties = tuple(unit * p for p in PENALTIES)
        fallback = (FALLBACK_SHRINKAGE if self.vfc else 0.0, unit * FALLBACK_PENALTY)
        if not isinstance(self.shrinkage, str):
            shrinkages, fallback = (self.shrinkage,), (self.shrinkage, fallback[1])
        if not isinstance(self.weight_penalty, str):
            penalties, fallback = (self.weight_penalty,), (fallback[0], self.weight_penalty)
        if len(shrinkages) * len(penalties) == 1:
            return fallback
        features, labels = run.features(drawn="natural", part="validation")
        if not len(labels):
            return fallback
        weight, bias = self.model.classifier.weight.detach(), self._bias().detach()
        with torch.enable_grad():
            return choose(
                problem,
                weight,
                bias,
                (features, labels),
                shrinkages=shrinkages,
                penalties=penalties,
            )

    def loss(self, *batches: Batch) -> Terms:
        """The E step: terms ``loss``, ``ce`` (or ``gce``) and, with FDC, ``psi`` and ``phi``."""
        (batch,) = batches
        with self.clock("student"):
            features = self.model.features(batch.views["weak"])
        logits = self.model.classifier(features if self.label_gradient else features.detach())
        criterion = F.cross_entropy if self.label_loss == "ce" else gce_loss
        label = criterion(logits, batch.labels)
        if not self.lambda_e:
            # Neither loss reaches the encoder without a label gradient: it stays where it is.
            idle = 0 if self.label_gradient else 0 * features.sum()
            return {"loss": label + idle, self.label_loss: label}
        # Differences of large distances: never in half precision.
        with self.clock("losses"), torch.autocast(features.device.type, enabled=False):
            psi, phi = attraction_and_repulsion(
                features.to(self.gaussians.mean.dtype), batch.labels, self.gaussians, self.distance
            )
            loss = label + self.lambda_e * self.fdc_sign * (psi - phi)
        return {"loss": loss, self.label_loss: label, "psi": psi, "phi": phi}
