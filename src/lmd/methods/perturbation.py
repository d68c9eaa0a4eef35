"""Perturbations that depend on the class, then a balanced classifier: CC-SAM and GCL.

CC-SAM is sharpness-aware per class in stage 1 and shifts features per class in stage 2: Zhou et
al., Class-Conditional Sharpness-Aware Minimization for Deep Long-Tailed Recognition, CVPR 2023, as
in the authors' code. Both stages need one extra gradient for each class in a batch.

GCL has Gaussian noise on the logits, the more the rarer the class: Li et al., Adjusting Logit in
Gaussian Form for Long-Tailed Visual Recognition, IEEE TAI 2024 (the angular form), and Long-Tailed
Visual Recognition via Gaussian Clouded Logit Adjustment, CVPR 2022 (the cosine form). Both forms
need a cosine classifier.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from lmd.methods.method import Method, NonNegative, Positive, RateFor64, Share, Stage2Epochs
from lmd.methods.stage import Batch, Epoch, Options, Rate, Stage, Stages, Task, Terms
from lmd.methods.supervised import ascent, cosine_classifier, image_weights
from lmd.model import Model


def draw_mixup(alpha: float, batch: int) -> tuple[float, Tensor]:
    """Draw a share λ ~ Beta(α, α) and a partner for each image ``(B,)``."""
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    return share, torch.randperm(batch)


def class_radius(
    gradient: Tensor, parameter_norm: Tensor, parameters: int, count: Tensor, rho: float
) -> Tensor:
    """``ρ · √‖θ‖ / √‖g‖ / √2 / (n_k − 1)^¼ / P^¼ · √P``: how far one tensor moves for class k.

    ``gradient`` is that of the tensor, ``parameter_norm ()`` and ``parameters`` (P) belong to the
    whole classifier. A class of one image would divide by zero, so it moves as far as one of two.
    Gradients below rounding error are raised to it: their root would move θ far away.
    """
    floor = torch.finfo(gradient.dtype).eps
    sharpness = (parameter_norm / gradient.norm().clamp_min(floor)).sqrt()
    rarity = (count - 1).clamp_min(1).pow(-0.25)
    radius: Tensor = rho * sharpness / 2**0.5 * rarity * parameters**0.25
    return radius


def by_class(features: Tensor, labels: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each class in ``labels (B,)`` with its features ``(n, C)`` and n times its label.

    The labels are read: on the CPU, that waits for no device.
    """
    for k in labels.unique().tolist():
        rows = (labels == k).nonzero().squeeze(1).to(features.device, non_blocking=True)
        yield k, features[rows], rows.new_full(rows.shape, k)


def flat_loss(
    classifier: nn.Module, features: Tensor, labels: Tensor, counts: Tensor, rho: float
) -> Tensor:
    """Cross-entropy at ``θ + ε_y``, mean over the images.

    ε_k climbs the mean loss of class k and is constant for the gradient, which reaches both θ and
    the features. ``(B, C)``, ``(B,)`` on the CPU, ``(K,)``.
    """
    theta = dict(classifier.named_parameters())
    norm = torch.stack([p.detach().norm() for p in theta.values()]).norm()
    size = sum(p.numel() for p in theta.values())
    losses = []
    for k, chosen, label in by_class(features, labels):
        probe = {name: p.detach().requires_grad_() for name, p in theta.items()}
        loss = F.cross_entropy(functional_call(classifier, probe, (chosen.detach(),)), label)
        gradients = torch.autograd.grad(loss, list(probe.values()))
        moved = {
            name: p + ascent([g], class_radius(g, norm, size, counts[k], rho))[0]
            for (name, p), g in zip(theta.items(), gradients, strict=True)
        }
        logits = functional_call(classifier, moved, (chosen,))
        losses.append(F.cross_entropy(logits, label, reduction="sum"))
    return torch.stack(losses).sum() / len(labels)


def shift_strengths(counts: Tensor) -> Tensor:
    """``ln(n_max / n_k + 0.01) / 2``: ``(K,) → (K,)``; about 0.005 for the largest class."""
    counts = counts.clamp_min(1)
    return (counts.max() / counts + 0.01).log() / 2


def shifted_loss(
    classifier: nn.Module, features: Tensor, labels: Tensor, strengths: Tensor
) -> Tensor:
    """``a_y · CE`` at features moved against their class, mean over the images.

    The features of class k move by ``a_k · ∇_f / ‖∇_f‖``, one norm over all of them. ``(B, C)``,
    ``(B,)`` on the CPU, ``(K,)``.
    """
    losses = []
    for k, chosen, label in by_class(features, labels):
        start = chosen.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(classifier(start), label), start)
        moved = chosen + ascent([gradient], strengths[k])[0]
        losses.append(strengths[k] * F.cross_entropy(classifier(moved), label, reduction="sum"))
    return torch.stack(losses).sum() / len(labels)


class ClassConditional(Stage):
    """``(1 − λ) · CE + λ ·`` the flat loss of the classifier, on the images as they come.

    With mixup the cross-entropy has mixed labels and the flat term the label of the larger share.
    """

    counts: Tensor

    def __init__(
        self, model: Model, task: Task, *, rho: float, flat_ratio: float, mixup: float
    ) -> None:
        super().__init__()
        self.model, self.rho, self.flat_ratio, self.mixup = model, rho, flat_ratio, mixup
        self.register_buffer("counts", task.class_counts, persistent=False)

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Cross-entropy and flat loss on the same features."""
        images, labels = batch.views["label"], batch.labels
        if self.mixup > 0:
            share, order = draw_mixup(self.mixup, len(labels))
            # Which of a pair comes first does not matter: an image keeps the larger share.
            share = max(share, 1 - share)
            features = self.model.features(share * images + (1 - share) * images[order])
            logits = self.model.classifier(features)
            ce = share * F.cross_entropy(logits, labels)
            ce = ce + (1 - share) * F.cross_entropy(logits, labels[order])
        else:
            features = self.model.features(images)
            ce = F.cross_entropy(self.model.classifier(features), labels)
        classifier = self.model.classifier
        flat = flat_loss(classifier, features, batch.host_labels, self.counts, self.rho)
        loss = (1 - self.flat_ratio) * ce + self.flat_ratio * flat
        return {"loss": loss, "ce": ce, "flat": flat}


class Shifted(Stage):
    """The classifier alone, class-balanced: ``α ·`` the shifted loss ``+ (1 − α) · CE``.

    α grows with the epochs up to a limit.
    """

    strengths: Tensor
    alpha: Tensor

    def __init__(self, model: Model, task: Task, limit: float, **options: Unpack[Options]) -> None:
        super().__init__(model.classifier, **options)
        self.model, self.limit = model, limit
        self.register_buffer("strengths", shift_strengths(task.class_counts), persistent=False)
        self.register_buffer("alpha", torch.tensor(0.0))

    def start_epoch(self, epoch: Epoch) -> Mapping[str, float]:
        """``α = min((t + 1) / T, limit)``."""
        self.alpha.fill_(min((epoch.index + 1) / epoch.total, self.limit))
        return {"alpha": float(self.alpha)}

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Cross-entropy and shifted loss on the same features."""
        classifier = self.model.classifier
        features = self.model.features(batch.views["label"])
        ce = F.cross_entropy(classifier(features), batch.labels)
        shifted = shifted_loss(classifier, features, batch.host_labels, self.strengths)
        return {"loss": self.alpha * shifted + (1 - self.alpha) * ce, "ce": ce, "shifted": shifted}


def cc_sam(
    model: Model,
    task: Task,
    *,
    rho: Annotated[NonNegative, "Radius of the classifier's perturbation in stage 1."] = 1e-6,
    flat_ratio: Annotated[Share, "Share of the flat loss in the loss of stage 1."] = 0.3,
    limit: Annotated[Share, "Largest share of the shifted loss in stage 2."] = 1.0,
    mixup: Annotated[NonNegative, "α of mixup in stage 1; 0 is off."] = 0.0,
    classifier_epochs: Stage2Epochs = 30,
    classifier_lr: RateFor64 = 0.01,
) -> Stages:
    """Class-conditional sharpness-aware stage 1, then the classifier on shifted features.

    The values are those of the authors' code for CIFAR-10-LT (``flat_ratio`` is 0.5 there for a
    hundred classes, ``limit`` 0.3). ``mixup`` is off, since augmentation is the protocol's; theirs
    is 1 (``profile="authors"``). The classifier of stage 1 is kept. A ``rho`` of 1e-6 moves the
    classifier by about as much, so stage 1 is cross-entropy in effect, as it is in their code.
    """
    yield ClassConditional(model, task, rho=rho, flat_ratio=flat_ratio, mixup=mixup)
    weights, lr = image_weights(task.class_counts), Rate(classifier_lr, 64)
    yield Shifted(model, task, limit, weights=weights, epochs=classifier_epochs, lr=lr)


# A loss of cosines ``(B, K)``, labels ``(B,)``, counts ``(K,)`` and noise ``(B, K)``.
Criterion = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def cloud_sizes(counts: Tensor) -> Tensor:
    """``ln(n_max / n_k) / ln(n_max / n_min)``: ``(K,) → (K,)``, 0 for the largest class, 1 for the
    smallest; all 0 where the classes are balanced.
    """
    log = counts.clamp_min(1).log()
    size = log.max() - log
    largest = size.max()
    return size / torch.where(largest > 0, largest, 1)


def draw_noise(like: Tensor) -> Tensor:
    """Normal noise of standard deviation 1/3, clamped to [-1, 1], one for each logit."""
    return (torch.randn_like(like) / 3).clamp(-1, 1)


def gcl_loss(
    cosine: Tensor,
    labels: Tensor,
    counts: Tensor,
    noise: Tensor,
    margin: float,
    scale: float,
    noise_mul: float,
    gamma: float,
) -> Tensor:
    """Cosine form: focal cross-entropy of ``s · (c − ν |e| d − m · 1_y)`` (CVPR 2022).

    ``(B, K)``, ``(B,)``, ``(K,)``, ``(B, K)``. With γ = 0 it is plain cross-entropy.
    """
    target = F.one_hot(labels, cosine.shape[1])
    clouded = cosine - noise_mul * noise.abs() * cloud_sizes(counts) - margin * target
    return _focal(scale * clouded, labels, gamma)


def gcl_angular_loss(
    cosine: Tensor,
    labels: Tensor,
    counts: Tensor,
    noise: Tensor,
    *,
    margin: float,
    scale: float,
    epsilon: float,
    gamma: float,
    easy_margin: bool = False,
) -> Tensor:
    """Angular form: focal cross-entropy of ``s · cos(θ + |½π ε d e| + m · 1_y)`` (TAI 2024).

    Where the widened angle exceeds π its cosine would rise again: there the logit is
    ``c − sin(π − m')`` with m' the widening, as in the authors' code. With the easy margin a
    cosine of at most 0 is kept as it is. ``(B, K)``, ``(B,)``, ``(K,)``, ``(B, K)``.
    """
    target = F.one_hot(labels, cosine.shape[1])
    widening = (torch.pi / 2 * epsilon * cloud_sizes(counts) * noise).abs() + margin * target
    # The gradient of the sine is infinite at ±1; a little inside it is merely steep.
    inside = cosine.clamp(-1 + 1e-6, 1 - 1e-6)
    sine = (1 - inside.square()).sqrt()
    widened = cosine * widening.cos() - sine * widening.sin()
    if easy_margin:
        logits = torch.where(cosine > 0, widened, cosine)
    else:
        fallback = cosine - (torch.pi - widening).sin()
        logits = torch.where(cosine > (torch.pi - widening).cos(), widened, fallback)
    return _focal(scale * logits, labels, gamma)


def _focal(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Mean of ``(1 − p_y)^γ · CE`` whose modulator has no gradient: ``(B, K)``, ``(B,)``."""
    ce = F.cross_entropy(logits, labels, reduction="none")
    return ((-torch.expm1(-ce.detach())) ** gamma * ce).mean()


class Clouded(Stage):
    """One stage of GCL: noise in the training loss only, the scale written into the classifier."""

    counts: Tensor

    def __init__(
        self,
        model: Model,
        task: Task,
        criterion: Criterion,
        *,
        scale: float,
        mixup: float,
        part: nn.Module | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(part, **options)
        self.model, self.classifier = model, cosine_classifier(model, scale)
        self.criterion, self.mixup = criterion, mixup
        self.register_buffer("counts", task.class_counts, persistent=False)

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """The GCL loss with fresh noise."""
        images, labels = batch.views["label"], batch.labels
        if self.mixup > 0:
            share, order = draw_mixup(self.mixup, len(labels))
            images = share * images + (1 - share) * images[order]
        cosine = self.classifier.cosine(self.model.features(images))
        loss = self._clouded(cosine, labels)
        if self.mixup > 0:
            loss = share * loss + (1 - share) * self._clouded(cosine, labels[order])
        return {"loss": loss}

    def _clouded(self, cosine: Tensor, labels: Tensor) -> Tensor:
        return self.criterion(cosine, labels, self.counts, draw_noise(cosine))


def gcl(
    model: Model,
    task: Task,
    *,
    form: Annotated[
        Literal["angular", "cosine"], "Where the noise acts: on the angle or on the cosine."
    ] = "angular",
    epsilon: Annotated[NonNegative, "Strength of the noise in the angular form."] = 0.5,
    easy_margin: Annotated[bool, "Leave cosines up to 0 alone; angular form only."] = True,
    noise_mul: Annotated[NonNegative, "Strength of the noise in the cosine form."] = 0.5,
    margin: Annotated[NonNegative, "Margin of the true class in stage 1."] = 0.0,
    scale: Annotated[Positive, "Scale of the cosine classifier in stage 1."] = 30.0,
    stage2_margin: Annotated[NonNegative, "Margin of the true class in stage 2."] = 0.0,
    stage2_scale: Annotated[Positive, "Scale in stage 2, which ships."] = 30.0,
    stage2_gamma: Annotated[NonNegative, "Down-weighting of easy images in stage 2 (γ)."] = 1.0,
    mixup: Annotated[NonNegative, "α of mixup in stage 1; 0 is off."] = 0.0,
    stage2_mixup: Annotated[NonNegative, "α of mixup in stage 2; 0 is off."] = 0.0,
    classifier_epochs: Stage2Epochs = 30,
    classifier_lr: RateFor64 = 0.002,
) -> Stages:
    """Clouded logits in stage 1; the same classifier, class-balanced and focal, in stage 2.

    The values of the loss are those of the authors' scripts for Places-LT, which have the angular
    form: m = 0, ε = 0.5, s = 30 and the easy margin in both stages. Their scripts for CIFAR, which
    the budget of stage 2 is from, run the cosine form with mixup, α = 1, in both stages
    (``profile="cifar"``; ``"cosine"`` is the same without mixup). Mixup is off by default, since
    augmentation is the protocol's. ``profile="authors"`` adds that of CIFAR to the angular form; in
    the scripts for Places-LT α is 0.2 in stage 1. With few classes a lower ``scale`` may help the
    tail.
    """

    def criterion(margin: float, scale: float, gamma: float) -> Criterion:
        if form == "angular":
            loss = partial(gcl_angular_loss, epsilon=epsilon, easy_margin=easy_margin)
        else:
            loss = partial(gcl_loss, noise_mul=noise_mul)
        return partial(loss, margin=margin, scale=scale, gamma=gamma)

    yield Clouded(model, task, criterion(margin, scale, 0.0), scale=scale, mixup=mixup)
    second = criterion(stage2_margin, stage2_scale, stage2_gamma)
    yield Clouded(
        model,
        task,
        second,
        scale=stage2_scale,
        mixup=stage2_mixup,
        part=model.classifier,
        weights=image_weights(task.class_counts),
        epochs=classifier_epochs,
        lr=Rate(classifier_lr, 64),
        schedule="cosine",
    )


_COSINE = {"form": "cosine", "stage2_margin": 0.1, "stage2_scale": 20.0}
METHODS = (
    Method(
        "cc_sam",
        "CC-SAM",
        cc_sam,
        "Zhou et al., CVPR 2023",
        ("class-conditional SAM", "class-balanced classifier on shifted features"),
        note="Without the mixup that the authors use on CIFAR: augmentation is the protocol's.",
        profiles={"authors": {"mixup": 1.0}},
    ),
    Method(
        "gcl",
        "GCL",
        gcl,
        "Li et al., IEEE TAI 2024",
        ("Gaussian clouded logits", "class-balanced classifier"),
        head="cosine",
        note="The angular form with the values of its authors' scripts for Places-LT, without "
        "their mixup: augmentation is the protocol's.",
        profiles={
            "authors": {"mixup": 1.0, "stage2_mixup": 1.0},
            "cosine": _COSINE,
            "cifar": {**_COSINE, "mixup": 1.0, "stage2_mixup": 1.0},
        },
    ),
)
