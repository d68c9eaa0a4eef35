"""CICL: supervised contrastive learning on class-balanced batches, then a linear probe.

Marrakchi et al., Fighting Class Imbalance with Contrastive Learning, MICCAI 2021; the loss is that
of Khosla et al., Supervised Contrastive Learning, NeurIPS 2020.
"""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lmd.methods.method import Count, Method, Positive
from lmd.methods.stage import Batch, ParameterGroups, Rate, Stage, Stages, Task, Terms
from lmd.methods.supervised import NORMS, Supervised, image_weights
from lmd.model import Model


def supervised_contrastive_loss(
    features: Tensor, labels: Tensor, temperature: float, base_temperature: float
) -> Tensor:
    """Mean over anchors i of ``-mean_{j∈P(i)} log(e^{a_i·a_j/τ} / Σ_{l≠i} e^{a_i·a_l/τ})``.

    Khosla et al., Eq. 2 (L_out), times τ/τ₀ as in their code. ``features (B, V, D)`` are
    normalised inside; ``labels (B,)``. All B·V projections are anchors; one without a positive (the
    only view of a lone image) is left out, and the loss of a batch without any is zero.
    """
    views = features.shape[1]
    # Similarities of one class differ little from one another: never in half precision.
    with torch.autocast(features.device.type, enabled=False):
        anchors = F.normalize(features.flatten(0, 1).float(), dim=1)
        similarity = anchors @ anchors.T / temperature
    classes = labels.repeat_interleave(views)
    itself = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
    positive = (classes[:, None] == classes[None]) & ~itself

    log_sum = similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    log_ratio = torch.where(positive, similarity - log_sum, 0)

    positives = positive.sum(1)
    per_anchor = -log_ratio.sum(1) / positives.clamp_min(1)
    anchored = (positives > 0).sum().clamp_min(1)
    return temperature / base_temperature * per_anchor.sum() / anchored


class Contrastive(Stage):
    """Encoder and projection head on two strong views of class-balanced batches.

    The head is an MLP C → C → projection of this stage alone. The classifier is trained on features
    without gradient: this leaves the encoder alone and lets validation follow the stage. Classes
    are drawn with probability 1/K, which also works for batches smaller than K.
    """

    views = ("strong", "strong2")

    def __init__(
        self, model: Model, task: Task, temperature: float, base_temperature: float, projection: int
    ) -> None:
        super().__init__(weights=image_weights(task.class_counts))
        self.model = model
        self.temperature, self.base_temperature = temperature, base_temperature
        dim = task.feature_dim
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, projection))

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """The contrastive loss of both views, which pass through the encoder together."""
        views = len(self.views)
        features = self.model.features(torch.cat([batch.views[name] for name in self.views]))
        projected = self.head(features).unflatten(0, (views, -1)).transpose(0, 1)
        contrastive = supervised_contrastive_loss(
            projected, batch.labels, self.temperature, self.base_temperature
        )
        logits = self.model.classifier(features.detach())
        probe = F.cross_entropy(logits, batch.labels.repeat(views))
        return {"loss": contrastive + probe, "contrastive": contrastive, "probe": probe}


class Statistics(Stage):
    """One pass that takes BatchNorm's running statistics from undistorted training images.

    Every image counts alike: after the batch b, the statistics are the mean over the images so far.
    No weight changes.
    """

    views = ("eval",)
    updates: ClassVar[bool] = False
    epochs = 1

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.norms = [m for m in model.encoder.modules() if isinstance(m, NORMS)]
        self.seen = 0

    def trainable(self) -> ParameterGroups:
        """The encoder: it has to be in train mode, but is not updated."""
        return list(self.model.encoder.parameters())

    @torch.no_grad()
    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """The encoder in train mode, with the momentum of a mean over all images."""
        (batch,) = batches
        self.seen += len(batch.labels)
        usual = [norm.momentum for norm in self.norms]
        for norm in self.norms:
            norm.momentum = len(batch.labels) / self.seen
        features = self.model.features(batch.views["eval"])
        for norm, momentum in zip(self.norms, usual, strict=True):
            norm.momentum = momentum
        return {"loss": features.new_zeros(())}


def cicl(
    model: Model,
    task: Task,
    *,
    temperature: Annotated[Positive, "Temperature τ of the contrastive loss."] = 0.1,
    base_temperature: Annotated[Positive, "τ₀: the loss is multiplied by τ / τ₀."] = 0.07,
    projection: Annotated[Count, "Width of the projection that the contrastive loss sees."] = 128,
    classifier_epochs: Annotated[Count, "Epochs of the probe."] = 100,
    classifier_lr: Annotated[
        Positive, "Learning rate of the probe at batches of 512; scaled with them."
    ] = 1.0,
) -> Stages:
    """Supervised contrastive encoder, then a linear probe, both on class-balanced batches.

    The values come from the authors' code. Their probe is class-balanced too; it multiplies the
    learning rate by 0.2 after 60, 75 and 90 epochs, for which ours has a cosine. Between the stages
    BatchNorm's statistics, which are of strong views, become those of the images as they are.
    """
    yield Contrastive(model, task, temperature, base_temperature, projection)
    yield Statistics(model)
    model.classifier.reset_parameters()
    yield Supervised(
        model,
        part=model.classifier,
        weights=image_weights(task.class_counts),
        epochs=classifier_epochs,
        lr=Rate(classifier_lr, 512),
        schedule="cosine",
    )


METHODS = (
    Method(
        "cicl",
        "CICL",
        cicl,
        "Marrakchi et al., MICCAI 2021",
        ("supervised contrastive learning", "BatchNorm statistics", "linear probe"),
    ),
)
