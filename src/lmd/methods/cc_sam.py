"""CC-SAM: sharpness-aware per class in stage 1, features shifted per class in stage 2.

Zhou et al., Class-Conditional Sharpness-Aware Minimization for Deep Long-Tailed Recognition, CVPR
2023, as in the authors' code. Both stages need one extra gradient for each class in a batch.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from lmd.methods.method import Method, NonNegative, RateFor64, Share, Stage2Epochs
from lmd.methods.stage import Batch, Epoch, Options, Rate, Stage, Stages, Task, Terms
from lmd.methods.supervised import ascent, draw_mixup, image_weights
from lmd.model import Model


def class_radius(
    gradient: Tensor, parameter_norm: Tensor, parameters: int, count: Tensor, rho: float
) -> Tensor:
    """``ρ · √‖θ‖ / √‖g‖ / √2 / (n_k − 1)^¼ / P^¼ · √P``: how far one tensor moves for class k.

    ``gradient`` is the tensor's, ``parameter_norm ()`` and ``parameters`` (P) belong to the
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

    The values come from the authors' code for CIFAR-10-LT (``flat_ratio`` is 0.5 there for a
    hundred classes, ``limit`` 0.3). ``mixup`` is off, since augmentation is the protocol's; theirs
    is 1 (``profile="authors"``). The classifier of stage 1 is kept. A ``rho`` of 1e-6 moves the
    classifier by about as much, so stage 1 is cross-entropy in effect, as it is in their code.
    """
    yield ClassConditional(model, task, rho=rho, flat_ratio=flat_ratio, mixup=mixup)
    weights, lr = image_weights(task.class_counts), Rate(classifier_lr, 64)
    yield Shifted(model, task, limit, weights=weights, epochs=classifier_epochs, lr=lr)


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
)
