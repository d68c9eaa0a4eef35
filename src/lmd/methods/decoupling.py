"""Decoupling: learn the representation as the images come, then balance the classifier alone.

Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, ICLR 2020. Stage
2 never trains the encoder. The row of the paper's table is cRT; the other three are added.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lmd.methods.linear import KANG, TAUS, nearest_mean_classifier, tau_normalise
from lmd.methods.method import Candidates, Method, NonNegative, Positive, Stage2Epochs
from lmd.methods.stage import Epoch, Stage, Stages, Task
from lmd.methods.supervised import Retraining, Supervised, image_weights
from lmd.model import Model
from lmd.scoring.metrics import mean_recall


def choose_tau(
    weight: Tensor, features: Tensor, labels: Tensor, taus: Sequence[float]
) -> tuple[float, float]:
    """Return the τ with the best mean recall, and that recall; of equals, the smallest τ.

    ``weight (K, C)``, ``features (N, C)``, ``labels (N,)``.
    """
    true, recalls = labels.numpy(force=True), {}
    for tau in taus:
        predicted = (features @ tau_normalise(weight, tau).T).argmax(1)
        recalls[tau] = mean_recall(true, predicted.numpy(force=True))
    best = max(taus, key=lambda tau: (recalls[tau], -tau))
    return best, recalls[best]


class ClassScale(nn.Module):
    """A learnable factor for each class: multiplies ``(K, …)`` along its first axis."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(classes))

    def forward(self, tensor: Tensor) -> Tensor:
        """``scale[k] · tensor[k]``."""
        return self.scale.view(-1, *[1] * (tensor.ndim - 1)) * tensor


class TauNorm(Stage):
    """Writes the τ-normalised weights of stage 1 into the classifier; nothing is trained."""

    views = ()
    epochs = 1
    balanced = True
    weight: Tensor
    best: Tensor

    def __init__(self, model: Model, *, tau: float | None, taus: Sequence[float]) -> None:
        super().__init__()
        self.model, self.tau, self.taus = model, tau, tuple(taus)
        self.needs_validation = tau is None
        # The weight of stage 1: normalising twice must not differ from once.
        self.register_buffer("weight", model.classifier.weight.detach().clone())
        self.register_buffer("best", torch.tensor(float("nan"), dtype=torch.float64))

    @torch.no_grad()
    def start_epoch(self, epoch: Epoch) -> Mapping[str, float]:
        """Choose τ on the validation part unless it was given, and apply it."""
        tau, recall = self.tau, {}
        if tau is None:
            features, labels = epoch.features(part="validation")
            weight = self.weight.to(features)
            tau, recall["tau_recall"] = choose_tau(weight, features, labels, self.taus)
            self.best.fill_(tau)
        write(self.model, tau_normalise(self.weight, tau), None)
        return {"tau": tau, **recall}

    def chosen(self) -> Mapping[str, float]:
        """τ, unless it was given."""
        return {} if self.best.isnan() else {"tau": float(self.best)}


class NearestMean(Stage):
    """Writes the nearest-class-mean classifier into the linear one; nothing is trained."""

    views = ()
    epochs = 1
    balanced = True

    def __init__(self, model: Model, *, scale: float) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    @torch.no_grad()
    def start_epoch(self, epoch: Epoch) -> None:
        """Class means of the training features, each image once."""
        features, labels = epoch.features()
        classes = len(self.model.classifier.weight)
        weight, bias = nearest_mean_classifier(features, labels, classes)
        write(self.model, self.scale * weight, self.scale * bias)


@torch.no_grad()
def write(model: Model, weight: Tensor, bias: Tensor | None) -> None:
    """Put ``weight (K, C)`` and ``bias (K,)`` (``None``: zero) into the linear classifier."""
    target = model.classifier.bias
    model.classifier.weight.copy_(weight)
    if isinstance(target, Tensor):
        target.copy_(torch.zeros_like(target) if bias is None else bias)


def crt(model: Model, task: Task, *, budget: Retraining) -> Stages:
    """Classifier re-training: a fresh classifier on class-balanced images.

    The authors draw four images of each class in turn; here each draw has a class with
    probability 1/K, which is the same in expectation and works for batches smaller than K. The
    budget of stage 2 is theirs: 10 epochs, 0.2 at batches of 512, cosine to 0.
    """
    yield Supervised(model)
    model.classifier.reset_parameters()
    weights = image_weights(task.class_counts)
    yield Supervised(model, part=model.classifier, **budget.options(weights=weights))


def tau_norm(
    model: Model,
    task: Task,
    *,
    tau: Annotated[NonNegative | None, "Power of the norm; null: chosen on validation."] = None,
    taus: Annotated[Candidates, "Values of tau that are tried on the validation part."] = TAUS,
) -> Stages:
    """Weights ``w_k / ‖w_k‖^τ`` without a bias; ``taus`` come from the authors' code."""
    yield Supervised(model)
    yield TauNorm(model, tau=tau, taus=taus)


class Rescaling(Retraining):
    """The budget of LWS: cRT's, but for the epochs."""

    classifier_epochs: Stage2Epochs = 5


def lws(model: Model, task: Task, *, budget: Rescaling) -> Stages:
    """Learnable weight scaling: one factor per class on the frozen logits.

    The budget of stage 2 is the authors': 5 epochs, otherwise cRT's. During training the
    factor is a parametrisation of weight and bias, so validation sees the scaled model; afterwards
    it is folded in, and a plain classifier remains.
    """
    yield Supervised(model)
    classifier = model.classifier
    scale = ClassScale(len(classifier.weight)).to(classifier.weight.device)
    names = [name for name, _ in classifier.named_parameters()]
    for name in names:
        parametrize.register_parametrization(classifier, name, scale)
    weights = image_weights(task.class_counts)
    yield Supervised(model, part=scale, **budget.options(weights=weights))
    for name in names:
        parametrize.remove_parametrizations(classifier, name)


def ncm(
    model: Model,
    task: Task,
    *,
    scale: Annotated[Positive, "Inverse temperature of the softmax; changes no prediction."] = 10.0,
) -> Stages:
    """Nearest class mean on centred, L2-normalised features, as a linear classifier.

    It predicts what the nearest unit mean predicts (``nearest_mean_classifier``). ``scale`` is
    ours: the paper has no probabilities. The confidence of an image grows with ‖f − μ‖, since a
    linear classifier cannot divide by it.
    """
    yield Supervised(model)
    yield NearestMean(model, scale=scale)


METHODS = (
    Method(
        "decoupling",
        "Decoupling",
        crt,
        KANG,
        ("cross-entropy", "classifier re-training"),
        note="The variant is cRT (classifier re-training).",
    ),
    Method(
        "tau_norm",
        "Decoupling (τ-norm)",
        tau_norm,
        KANG,
        ("cross-entropy", "τ-normalisation"),
        note="τ is chosen on the validation part, so validation scores are optimistic.",
    ),
    Method("lws", "Decoupling (LWS)", lws, KANG, ("cross-entropy", "learnable weight scaling")),
    Method(
        "ncm",
        "Decoupling (NCM)",
        ncm,
        KANG,
        ("cross-entropy", "nearest class mean"),
        note="A linear classifier that predicts what the nearest L2-normalised class mean does; "
        "the authors' code leaves the class means unnormalised.",
    ),
)
