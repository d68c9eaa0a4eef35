"""GCL: Gaussian noise on the logits, the more the rarer the class, then a balanced classifier.

Li et al., Adjusting Logit in Gaussian Form for Long-Tailed Visual Recognition, IEEE TAI 2024 (the
angular form), and Long-Tailed Visual Recognition via Gaussian Clouded Logit Adjustment, CVPR 2022
(the cosine form). Both need a cosine classifier.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.methods.method import Method, NonNegative, Positive, RateFor64, Stage2Epochs
from lmd.methods.stage import Batch, Options, Rate, Stage, Stages, Task, Terms
from lmd.methods.supervised import cosine_classifier, draw_mixup, image_weights
from lmd.model import Model

# Cosines ``(B, K)``, labels ``(B,)``, counts ``(K,)`` and noise ``(B, K)`` to clouded ``(B, K)``.
Cloud = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


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


def clouded_cosine(
    cosine: Tensor, labels: Tensor, counts: Tensor, noise: Tensor, margin: float, noise_mul: float
) -> Tensor:
    """Cosine form: ``c − ν |e| d − m · 1_y`` (CVPR 2022)."""
    target = F.one_hot(labels, cosine.shape[1])
    return cosine - noise_mul * noise.abs() * cloud_sizes(counts) - margin * target


def clouded_angle(
    cosine: Tensor,
    labels: Tensor,
    counts: Tensor,
    noise: Tensor,
    margin: float,
    epsilon: float,
    easy_margin: bool,
) -> Tensor:
    """Angular form: ``cos(θ + |½π ε d e| + m · 1_y)`` (TAI 2024).

    Where the widened angle exceeds π its cosine would rise again: there the logit is
    ``c − sin(π − m')`` with m' the widening, as in the authors' code. With the easy margin a
    cosine of at most 0 is kept as it is.
    """
    target = F.one_hot(labels, cosine.shape[1])
    widening = (torch.pi / 2 * epsilon * cloud_sizes(counts) * noise).abs() + margin * target
    # The gradient of the sine is infinite at ±1; a little inside it is merely steep.
    inside = cosine.clamp(-1 + 1e-6, 1 - 1e-6)
    sine = (1 - inside.square()).sqrt()
    widened = cosine * widening.cos() - sine * widening.sin()
    if easy_margin:
        return torch.where(cosine > 0, widened, cosine)
    fallback = cosine - (torch.pi - widening).sin()
    return torch.where(cosine > (torch.pi - widening).cos(), widened, fallback)


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
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
        cloud: Cloud,
        *,
        scale: float,
        gamma: float,
        mixup: float,
        part: nn.Module | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(part, **options)
        self.model, self.classifier = model, cosine_classifier(model, scale)
        self.cloud, self.scale, self.gamma, self.mixup = cloud, scale, gamma, mixup
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
        clouded = self.cloud(cosine, labels, self.counts, draw_noise(cosine))
        return focal_loss(self.scale * clouded, labels, self.gamma)


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

    The values of the loss come from the authors' scripts for Places-LT, which have the angular
    form: m = 0, ε = 0.5, s = 30 and the easy margin in both stages. Their scripts for CIFAR, which
    the budget of stage 2 is from, run the cosine form with mixup, α = 1, in both stages
    (``profile="cifar"``; ``"cosine"`` is the same without mixup). Mixup is off by default, since
    augmentation is the protocol's. ``profile="authors"`` adds CIFAR's to the angular form; in
    the scripts for Places-LT α is 0.2 in stage 1. With few classes a lower ``scale`` may help the
    tail.
    """

    if form == "angular":
        cloud = partial(clouded_angle, epsilon=epsilon, easy_margin=easy_margin)
    else:
        cloud = partial(clouded_cosine, noise_mul=noise_mul)
    first = partial(cloud, margin=margin)
    yield Clouded(model, task, first, scale=scale, gamma=0.0, mixup=mixup)
    yield Clouded(
        model,
        task,
        partial(cloud, margin=stage2_margin),
        scale=stage2_scale,
        gamma=stage2_gamma,
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
