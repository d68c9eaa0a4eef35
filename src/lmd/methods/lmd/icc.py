"""Iterative Classifier Calibration: stage 2 of LMD (LMD paper, Eq. 6-12, Algorithm 1).

One EM iteration is one epoch. The M step (before the batches) estimates a Gaussian for each class
and calibrates the classifier on virtual features; the E step (the batches) tunes the encoder
through the frozen classifier, with Feature Distribution Consistency.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.base.errors import LmdError
from lmd.methods.linear import log_priors
from lmd.methods.lmd import vfc
from lmd.methods.lmd.gaussians import (
    MOST_VIRTUAL_FEATURES,
    ClassGaussians,
    Distance,
    discriminant,
    level_scale,
    pooled_covariance,
    shrunk_moments,
)
from lmd.methods.lmd.rrl import Sampling, sampling_weights
from lmd.methods.method import BelowOne, Count, Needs, NonNegative, Positive, Settings, Share
from lmd.methods.stage import Batch, Epoch, ParameterGroups, Stage, Task, Terms
from lmd.methods.supervised import NORMS
from lmd.model import Model

Chosen = Literal["validation"]

E_STEP, WITH_FDC = Needs(icc=True), Needs(icc=True, fdc=True)
WITH_ARGMIN, WITH_SGD = Needs(m_step="argmin"), Needs(m_step="sgd")
WITH_DIFFERENCE = Needs(icc=True, fdc=True, fdc_form="difference")


class ICCSettings(Settings):
    """Settings of stage 2; the rows refer to ``docs/paper-vs-code.md``.

    Without ``icc`` there is one M step and no E step.
    """

    iterations: Annotated[Count | None, "EM iterations (J); null: stage2_epochs.", E_STEP] = None
    levels: Annotated[int, Field(ge=0), "Inner levels of the encoder as features (row 31)."] = 5
    classifier: Annotated[
        Literal["averaged", "kept", "fresh"],
        "Average with stage 1's classifier, correct it, or drop it (row 32).",
    ] = "fresh"
    m_views: Annotated[Literal["eval", "all"], "Views for the moments (row 33)."] = "all"
    mean_images: Annotated[NonNegative, "Images that pull means to the centre (row 34)."] = 30.0
    covariance_images: Annotated[
        NonNegative, "Images that pull a covariance to the pooled one (row 34)."
    ] = 0.0
    mean_error: Annotated[bool, "Add the uncertainty of the mean (row 34)."] = False
    m_sampling: Annotated[Sampling, "How the M step draws images (row 11)."] = "balanced"
    m_drop_partial: Annotated[Count | None, "Drop partial batches of this size (row 11)."] = None
    ridge: Annotated[NonNegative, "Added to the diagonal of each covariance (row 12)."] = 1e-2
    virtual_moments: Annotated[
        Literal["ema", "raw"],
        "draw from averaged or new moments (row 12).",
        Needs(icc=True, vfc=True),
    ] = "ema"
    moments_decay: Annotated[Share, "largest decay of averaged moments (row 13).", E_STEP] = 0.0
    virtual_features: Annotated[
        Count, "virtual features of each class; argmin: at most 4096 (row 14).", Needs(vfc=True)
    ] = 50_000
    m_step: Annotated[Literal["argmin", "sgd"], "Solve it, or one pass of SGD (row 15)."] = "argmin"
    shrinkage: Annotated[
        Share | Chosen,
        "shrinkage to the pooled covariance (row 15).",
        Needs(vfc=True, m_step="argmin"),
    ] = "validation"
    weight_penalty: Annotated[
        NonNegative | Chosen, "penalty on weights, in units of the variance (row 15).", WITH_ARGMIN
    ] = "validation"
    m_lr: Annotated[NonNegative, "learning rate of the M step (row 15).", WITH_SGD] = 1e-5
    m_momentum: Annotated[BelowOne, "momentum of the M step (row 15).", WITH_SGD] = 0.9
    m_weight_decay: Annotated[NonNegative, "weight decay of the M step (row 15).", WITH_SGD] = 1e-4
    m_batch: Annotated[Count, "batch size of the M step (row 15).", WITH_SGD] = 352
    e_sampling: Annotated[Sampling, "how the E step draws images.", E_STEP] = "natural"
    e_tau: Annotated[
        NonNegative, "its label loss sees z + e_tau ln(prior); 0 is plain (row 26).", E_STEP
    ] = 1.0
    e_statistics: Annotated[bool, "E steps update BatchNorm statistics (row 35).", E_STEP] = False
    label_loss: Annotated[Literal["ce", "gce"], "plain or generalised (row 16).", E_STEP] = "ce"
    label_gradient: Annotated[bool, "the label loss reaches the encoder (row 16).", E_STEP] = True
    lambda_e: Annotated[NonNegative, "weight of feature distribution consistency.", WITH_FDC] = 0.1
    fdc_form: Annotated[
        Literal["difference", "bounded"], "Psi - Phi, or bounded cross-entropy (row 36).", WITH_FDC
    ] = "bounded"
    fdc_temperature: Annotated[
        Positive, "temperature (row 36).", Needs(icc=True, fdc=True, fdc_form="bounded")
    ] = 10.0
    fdc_sign: Annotated[Literal[1, -1], "-1 changes its sign (row 17).", WITH_DIFFERENCE] = 1
    distance: Annotated[Distance, "kind of distance (row 18).", WITH_DIFFERENCE] = "mahalanobis"
    encoder_lr: Annotated[NonNegative, "learning rate of the encoder (row 20).", E_STEP] = 1e-3
    encoder_weight_decay: Annotated[
        NonNegative | None, "the encoder's weight decay; null: the protocol's (row 20).", E_STEP
    ] = None
    last_e_step: Annotated[bool, "the last iteration has an E step (row 21).", E_STEP] = False


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


def attraction_and_repulsion(
    features: Tensor, labels: Tensor, gaussians: ClassGaussians, distance: Distance = "mahalanobis"
) -> tuple[Tensor, Tensor]:
    """Psi and Phi: mean distance to the own class and to the others (LMD paper, Eq. 10-11).

    ``features (B, C)``, ``labels (B,)``; differentiable once with respect to the features.
    """
    own, total = gaussians.own_and_total(features, labels, distance)
    return own.mean(), (total - own).mean() / (len(gaussians.mean) - 1)


def gce_loss(logits: Tensor, labels: Tensor, q: float = 0.7) -> Tensor:
    """Generalised cross-entropy, mean of ``(1 - p_y^q) / q``; logits ``(B, K)``."""
    # By its logarithm, because p may underflow, and the gradient of a power of zero is infinite.
    log_p = logits.log_softmax(1).gather(1, labels[:, None])
    return (-torch.expm1(q * log_p) / q).mean()


class ICC(Stage):
    """M step: the classifier on virtual features. E step: the encoder under FDC.

    The E step minimises ``lambda_e (Psi - Phi) + L_CE`` over the encoder. ``e_step=False``
    calibrates once and does not train the encoder; ``vfc=False`` calibrates on real features;
    ``fdc=False`` sets ``lambda_e = 0``. ``shrinkage`` and ``weight_penalty`` are chosen in the
    first iteration where they are ``"validation"``.
    """

    class_counts: Tensor
    anchor: Tensor
    anchor_bias: Tensor
    scale: Tensor
    fdc_weight: Tensor
    fdc_bias: Tensor
    iteration: Tensor
    regularisers: Tensor
    weight_velocity: Tensor
    bias_velocity: Tensor

    def __init__(
        self,
        model: Model,
        task: Task,
        settings: ICCSettings,
        *,
        vfc: bool = True,
        fdc: bool = True,
        e_step: bool = True,
    ) -> None:
        # Virtual features are drawn alike for every class; real ones as the M step samples them.
        super().__init__(balanced=vfc or settings.m_sampling == "balanced")
        self.settings, self.model = settings, model
        self.vfc, self.e_step = vfc, e_step
        self.name = "ICC" if e_step else "Calibration"  # without an E step nothing is iterated
        self.lambda_e = settings.lambda_e if fdc else 0.0
        self.epochs = settings.iterations if e_step else 1
        self.gaussians = ClassGaussians(
            *model.classifier.weight.shape, ridge=settings.ridge, decay=settings.moments_decay
        )
        self.register_buffer("class_counts", task.class_counts.clone(), persistent=False)
        self.register_buffer("iteration", torch.tensor(0))
        # The classifier that the M step corrects, and the scale on which it sees the features.
        weight = model.classifier.weight.detach()
        self.register_buffer("anchor", weight.clone())
        self.register_buffer("anchor_bias", self._bias().detach().clone())
        self.register_buffer("scale", torch.ones_like(weight[0]))
        self.register_buffer("fdc_weight", torch.zeros_like(weight))
        self.register_buffer("fdc_bias", torch.zeros_like(weight[:, 0]))
        # Shrinkage and penalty in use; -1 until the first M step has chosen them.
        self.register_buffer("regularisers", torch.full((2,), -1.0, dtype=torch.float64))
        self.register_buffer("weight_velocity", torch.zeros_like(weight))
        self.register_buffer("bias_velocity", torch.zeros_like(weight[:, 0]))

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

    def class_weights(self, epoch: Epoch) -> list[Tensor | None]:
        """The stream of the E step; none where there is no E step in this iteration."""
        last = epoch.index == epoch.total - 1
        if not self.e_step or (last and not self.settings.last_e_step):
            return []
        return [sampling_weights(self.settings.e_sampling, self.class_counts)]

    @torch.no_grad()
    def start_epoch(self, epoch: Epoch) -> Mapping[str, float]:
        """The M step: features, moments, virtual features, classifier."""
        settings, gaussians = self.settings, self.gaussians
        features, labels = self._draw(epoch)
        gaussians.update(features, labels, int(self.iteration), self._shrink)
        if settings.virtual_moments == "raw":
            # Those of this iteration alone, but for a class that was not drawn.
            gaussians = ClassGaussians(*gaussians.mean.shape, ridge=gaussians.ridge, decay=0.0)
            gaussians.to(self.gaussians.mean).load_state_dict(self.gaussians.state_dict())
            gaussians.update(features, labels, int(self.iteration), self._shrink)
        solve = self._sgd_pass if settings.m_step == "sgd" else self._argmin
        numbers = solve(epoch, gaussians, features, labels)
        if self.lambda_e and settings.fdc_form == "bounded":
            pooled = pooled_covariance(self.gaussians.covariance, self.class_counts)
            weight, bias = discriminant(self.gaussians.mean, pooled, settings.fdc_temperature)
            self.fdc_weight.copy_(weight)
            self.fdc_bias.copy_(bias)
        elif self.lambda_e and self.class_weights(epoch):
            self.gaussians.forms(settings.distance)  # here, so that no step waits for them
        if not settings.e_statistics:
            for module in self.model.encoder.modules():
                if isinstance(module, NORMS):
                    module.eval()
        self.iteration += 1
        return numbers

    def _shrink(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        settings, counts = self.settings, self.class_counts
        if settings.m_views == "all":
            # The views of a single image have a spread, but not the spread of a class.
            pooled = pooled_covariance(covariance, counts)
            covariance = torch.where((counts == 1)[:, None, None], pooled, covariance)
        names = {"mean_images", "covariance_images", "mean_error"}
        return shrunk_moments(mean, covariance, counts, **settings.model_dump(include=names))

    def _draw(self, epoch: Epoch) -> tuple[Tensor, Tensor]:
        """The features of the M step, scaled, on the device of the moments."""
        settings, first = self.settings, not int(self.iteration)
        views: tuple[Literal["eval", "weak", "strong"], ...] = ("eval", "weak", "strong")
        views = views if settings.m_views == "all" else views[:1]
        parts = [epoch.features(settings.m_sampling, view=view) for view in views]
        features, labels = torch.cat([f for f, _ in parts]), torch.cat([y for _, y in parts])
        if settings.m_drop_partial and len(labels) > settings.m_drop_partial:
            # The draws are independent, so it does not matter which of them are dropped.
            whole = len(labels) - len(labels) % settings.m_drop_partial
            rows = torch.randperm(len(labels), generator=epoch.generator)[:whole].to(labels.device)
            features, labels = features[rows], labels[rows]
        present = torch.bincount(labels, minlength=len(self.class_counts)) > 0
        if first and not present.all():
            # If the first draw missed a class, take all its images.
            more, more_labels = epoch.features()
            missed = ~present[more_labels]
            features = torch.cat([features, more[missed]])
            labels = torch.cat([labels, more_labels[missed]])
        if first and settings.m_step == "argmin":
            self.scale.copy_(level_scale(features, self.model.widths))
        features = features.to(self.gaussians.mean) * self.scale
        return features, labels.to(self.gaussians.mean.device)

    def _sgd_pass(
        self, epoch: Epoch, gaussians: ClassGaussians, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """The paper's M step: one pass of SGD over R K virtual features."""
        from lmd.methods.lmd.descent import SGD, pays, sgd_pass, virtual_pass

        settings, weight = self.settings, self.model.classifier.weight.detach()
        velocity = self.weight_velocity, self.bias_velocity
        rates = settings.m_lr, settings.m_momentum, settings.m_weight_decay
        sgd = SGD(weight, self._bias().detach(), velocity, *rates)
        drawn = settings.virtual_features, settings.m_batch, epoch.generator
        if self.vfc and pays(weight.shape[0], weight.shape[1], settings.m_batch):
            return {"m_loss": virtual_pass(gaussians, *drawn, sgd)}
        if self.vfc:
            batches = gaussians.batches(*drawn)
        else:
            order = torch.randperm(len(labels), generator=epoch.generator).to(labels.device)
            batches = ((features[rows], labels[rows]) for rows in order.split(settings.m_batch))
        return {"m_loss": sgd_pass(batches, sgd)}

    def _argmin(
        self, epoch: Epoch, gaussians: ClassGaussians, features: Tensor, labels: Tensor
    ) -> dict[str, float]:
        """The argmin of the M step's loss, from the classifier of the iteration before."""
        classifier, settings = self.model.classifier, self.settings
        if self.vfc:
            draws = min(settings.virtual_features, vfc.enough_draws(len(self.class_counts)))
            problem = vfc.virtual_features(gaussians, self.class_counts, draws, epoch.generator)
        else:
            problem = vfc.real_features(features, labels)
        # The problem is solved for scaled features; the classifier is for features as they are.
        guess = classifier.weight.detach() / self.scale, self._bias().detach()
        anchor = self.anchor / self.scale if settings.classifier == "kept" else None
        if (self.regularisers < 0).any():
            pair = self._choose_regularisers(epoch, problem, guess, anchor)
            self.regularisers.copy_(torch.tensor(pair, dtype=torch.float64))
        shrinkage, penalty = self.regularisers.tolist()
        with torch.enable_grad():
            strength = problem.variance * penalty
            solution = problem.solve(*guess, strength, anchor, shrinkage=shrinkage)
        weight, bias = solution.weight.to(self.scale) * self.scale, solution.bias.to(self.scale)
        if settings.classifier == "averaged":
            weight, bias = (weight + self.anchor) / 2, (bias + self.anchor_bias) / 2
        classifier.weight.copy_(weight)
        self._bias().copy_(bias)
        return {
            "m_loss": solution.loss,
            "m_grad_norm": solution.grad_norm,
            "m_evaluations": float(solution.evaluations),
            "shrinkage": shrinkage,
            "weight_penalty": penalty,
        }

    def chosen(self) -> Mapping[str, float]:
        """Shrinkage and weight penalty, unless they were set or are not used."""
        if self.settings.m_step == "sgd":
            return {}
        values = zip(("shrinkage", "weight_penalty"), self.regularisers.tolist(), strict=True)
        return {key: v for key, v in values if getattr(self.settings, key) == "validation"}

    def _choose_regularisers(
        self, epoch: Epoch, problem: vfc.Problem, guess: vfc.Guess, anchor: Tensor | None
    ) -> tuple[float, float]:
        """Shrinkage and penalty: as set, chosen on validation, or the middle ones without it."""
        shrinkage, penalty = self.settings.shrinkage, self.settings.weight_penalty
        tried = vfc.SHRINKAGES if self.vfc else (0.0,)
        shrinkages = tried if isinstance(shrinkage, str) else (shrinkage,)
        penalties = vfc.PENALTIES if isinstance(penalty, str) else (penalty,)
        if len(shrinkages) * len(penalties) > 1:
            features, labels = epoch.features(part="validation")
            if len(labels):
                validation = features.to(self.scale) * self.scale, labels
                with torch.enable_grad():
                    return vfc.choose(problem, guess, validation, shrinkages, penalties, anchor)
        return shrinkages[len(shrinkages) // 2], penalties[len(penalties) // 2]

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """The E step: terms ``loss``, ``ce`` (or ``gce``) and FDC's."""
        with self.clock("student"):
            features = self.model.features(batch.views["label"])
        settings = self.settings
        logits = self.model.classifier(features if settings.label_gradient else features.detach())
        logits = logits + settings.e_tau * log_priors(self.class_counts)
        criterion = F.cross_entropy if settings.label_loss == "ce" else gce_loss
        label = criterion(logits, batch.labels)
        terms: dict[str, Tensor] = {settings.label_loss: label}
        if not self.lambda_e:
            # Without a label gradient no loss reaches the encoder, which then does not move.
            idle = 0 if settings.label_gradient else 0 * features.sum()
            return {"loss": label + idle} | terms
        # Differences of large distances: never in half precision.
        with self.clock("losses"), torch.autocast(features.device.type, enabled=False):
            z = features.to(self.gaussians.mean.dtype) * self.scale
            if settings.fdc_form == "bounded":
                fdc = F.cross_entropy(F.linear(z, self.fdc_weight, self.fdc_bias), batch.labels)
                terms["fdc"] = fdc
            else:
                labels = batch.host_labels  # they are grouped by class
                psi, phi = attraction_and_repulsion(z, labels, self.gaussians, settings.distance)
                terms |= {"psi": psi, "phi": phi}
                fdc = settings.fdc_sign * (psi - phi)
            loss = label + self.lambda_e * fdc
        return {"loss": loss} | terms
