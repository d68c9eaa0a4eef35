"""Learn the representation first, then balance the classifier alone: stage 2 trains no encoder.

Decoupling: Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, ICLR
2020. The row of the paper's table is cRT; the other three are added.

FCD-style (reconstruction): Li et al., Flat-Aware Cross-Stage Distilled Framework for Imbalanced
Medical Image Classification, MICCAI 2022. Neither code nor formulas were available: this is built
from the paper's title and from descriptions by others.

CB+WD+Max: Alshammari et al., Long-Tailed Recognition via Weight Balancing, CVPR 2022. Weight decay
balances the classes' weights, and a MaxNorm constraint keeps them so.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from lmd.methods.method import (
    BelowOne,
    Candidates,
    Method,
    NonNegative,
    Positive,
    RateFor64,
    Share,
    Stage2Epochs,
)
from lmd.methods.stage import Batch, Epoch, Options, Rate, Stage, Stages, Task, Terms
from lmd.methods.supervised import (
    PerClass,
    Retraining,
    Supervised,
    balances_by,
    class_balanced_weights,
    image_weights,
)
from lmd.model import Model
from lmd.scoring.metrics import mean_recall

TAUS = tuple(step / 10 for step in range(21))


def tau_normalise(weight: Tensor, tau: float) -> Tensor:
    """``w_k / ‖w_k‖^τ`` (Kang et al., section 4): ``(K, C) → (K, C)``; a zero row stays zero."""
    norm: Tensor = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    return torch.where(norm > 0, weight / norm.pow(tau), 0)


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


def nearest_mean_classifier(
    features: Tensor, labels: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Weight ``(K, C)`` and bias ``(K,)`` that rank as the nearest class mean does.

    Kang et al., section 4 (NCM): features are centred on the training mean μ and L2-normalised, and
    so is each class mean m_k of them; the nearest mean wins. For unit vectors this is the largest
    inner product, and the length of f − μ is the same for all classes, so ``m_k · (f − μ)``, which
    is linear in f, ranks as the distance does. The logits are divided by the mean of ‖f − μ‖ over
    the images: they are the cosine for a feature of mean length.
    """
    centre = features.mean(0)
    length = (features - centre).norm(dim=1).mean()
    unit = F.normalize(features - centre, dim=1)
    sums = unit.new_zeros(classes, unit.shape[1]).index_add_(0, labels, unit)
    weight = F.normalize(sums, dim=1) / length.clamp_min(torch.finfo(length.dtype).tiny)
    return weight, -weight @ centre


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
        report: dict[str, float] = {}
        tau = self.tau
        if tau is None:
            features, labels = epoch.features(part="validation")
            weight = self.weight.to(features)
            tau, report["tau_recall"] = choose_tau(weight, features, labels, self.taus)
            self.best.fill_(tau)
        write(self.model, tau_normalise(self.weight, tau), None)
        return {"tau": tau, **report}

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
    """Weights ``w_k / ‖w_k‖^τ`` without a bias; ``taus`` are those of the authors' code."""
    yield Supervised(model)
    yield TauNorm(model, tau=tau, taus=taus)


class Rescaling(Retraining):
    """The budget of LWS: that of cRT, but for the epochs."""

    classifier_epochs: Stage2Epochs = 5


def lws(model: Model, task: Task, *, budget: Rescaling) -> Stages:
    """Learnable weight scaling: one factor per class on the frozen logits.

    The budget of stage 2 is the authors': 5 epochs, otherwise that of cRT. During training the
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


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``T² · KL(softmax(teacher/T) ‖ softmax(student/T))``, mean over the batch: 2 × ``(B, K)``.

    Hinton et al., Distilling the Knowledge in a Neural Network, 2015. The teacher has no gradient.
    """
    kl = F.kl_div(
        (student / temperature).log_softmax(1),
        (teacher.detach() / temperature).log_softmax(1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * kl


class Distilled(Stage):
    """The classifier alone on class-balanced images, with the stage-1 classifier as teacher."""

    def __init__(
        self, model: Model, task: Task, distill: float, temperature: float, budget: Retraining
    ) -> None:
        weights = image_weights(task.class_counts)
        super().__init__(model.classifier, **budget.options(weights=weights))
        self.model = model
        # The encoder is frozen, so teacher and student share it.
        self.teacher = copy.deepcopy(model.classifier)
        self.distill, self.temperature = distill, temperature

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """Cross-entropy plus ``distill`` times the distillation loss."""
        features = self.model.features(batch.views["label"])
        logits = self.model.classifier(features)
        ce = F.cross_entropy(logits, batch.labels)
        kl = distillation_loss(logits, self.teacher(features), self.temperature)
        return {"loss": ce + self.distill * kl, "ce": ce, "distillation": kl}


def fcd(
    model: Model,
    task: Task,
    *,
    rho: Annotated[NonNegative, "Radius of the sharpness-aware step of stage 1."] = 0.05,
    distill: Annotated[NonNegative, "Weight of the distillation loss in stage 2."] = 0.5,
    temperature: Annotated[Positive, "Temperature of the distillation."] = 2.0,
    budget: Retraining,
) -> Stages:
    """A flat stage 1, then the classifier fine-tuned, class-balanced and distilled.

    ``rho`` is that of Foret et al., ICLR 2021; ``distill`` and ``temperature`` are ours, and so
    is the budget of stage 2, which is that of cRT (Kang et al., ICLR 2020). Stage 2 keeps the
    classifier of stage 1, to stay in the basin that stage 1 has found.
    """
    yield Supervised(model, rho=rho)
    yield Distilled(model, task, distill, temperature, budget)


def max_norm_radius(weight: Tensor, threshold: float) -> Tensor:
    """``min_k ‖w_k‖ + threshold · (max_k ‖w_k‖ − min_k ‖w_k‖)``: ``(K, C) → ()``."""
    norms: Tensor = weight.norm(dim=1)
    return torch.lerp(norms.min(), norms.max(), threshold)


def max_norm(weight: Tensor, radius: Tensor) -> Tensor:
    """Rows longer than the radius are scaled onto it (projected gradient): ``(K, C) → (K, C)``."""
    norm = weight.norm(dim=1, keepdim=True)
    return torch.where(norm > radius, weight * (radius / norm), weight)


def softmax_bce_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Binary cross-entropy on softmax probabilities, weighted by the true class, over B·K entries.

    What the authors' code calls the class-balanced softmax loss: it is not weighted cross-entropy.
    ``(B, K)``, ``(B,)``, ``(K,)``.
    """
    log_p = logits.log_softmax(1)
    own = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
    # log(1 − p_k) as a sum over the other classes stays exact where p_k rounds to 1.
    log_not_p = log_p[:, None, :].masked_fill(own, -torch.inf).logsumexp(2)
    target = F.one_hot(labels, logits.shape[1]).bool()
    entries = -torch.where(target, log_p, log_not_p)
    return (weight[labels, None] * entries).mean()


class MaxNorm(Stage):
    """The classifier alone: class-balanced loss, weight decay, rows projected after each epoch.

    The radius is fixed once, by the classifier that the stage starts from; the bias is free.
    """

    radius: Tensor
    left: Tensor

    def __init__(
        self, model: Model, criterion: nn.Module, threshold: float, **options: Unpack[Options]
    ) -> None:
        super().__init__(model.classifier, **options)
        self.model, self.criterion = model, criterion
        weight = model.classifier.weight.detach()
        self.register_buffer("radius", max_norm_radius(weight, threshold))
        self.register_buffer("left", torch.tensor(0))

    def start_epoch(self, epoch: Epoch) -> Mapping[str, float]:
        """Count the steps down from here; the radius goes into the history."""
        self.left.fill_(epoch.steps)
        return {"radius": float(self.radius)}

    def loss(self, batch: Batch, *others: Batch) -> Terms:
        """The class-balanced loss."""
        return {"loss": self.criterion(self.model(batch.views["label"]), batch.labels)}

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        """One update; the last one of an epoch ends with the projection, before validation."""
        terms = super().step(optimizer, *batches)
        self.left -= 1
        with torch.no_grad():
            weight = self.model.classifier.weight
            # Not an "if": it would wait for the device in every step.
            weight.copy_(torch.where(self.left == 0, max_norm(weight, self.radius), weight))
        return terms


def cb_wd_max(
    model: Model,
    task: Task,
    *,
    stage1_weight_decay: Annotated[NonNegative, "Weight decay of stage 1."] = 5e-3,
    stage2_weight_decay: Annotated[NonNegative, "Weight decay of the classifier in stage 2."] = 0.1,
    beta: Annotated[BelowOne, "β of the effective number; 0 weighs all classes alike."] = 0.9999,
    threshold: Annotated[Share, "MaxNorm radius: the shortest (0) to the longest (1) row."] = 0.1,
    cb_loss: Annotated[
        Literal["softmax_bce", "cross_entropy"],
        "Loss of stage 2; cross_entropy is a weighted mean, Σ w l / Σ w of a batch.",
    ] = "softmax_bce",
    classifier_epochs: Stage2Epochs = 10,
    classifier_lr: RateFor64 = 0.01,
) -> Stages:
    """Strong weight decay, then a class-balanced loss and MaxNorm on the classifier alone.

    The values are those of the authors' CIFAR-100-LT code. They searched the weight decays, so
    search them again on your validation part. ``softmax_bce`` is the loss that their stage 2 runs;
    ``cross_entropy`` is the class-balanced softmax loss of Cui et al., but for its mean: it divides
    by the sum of the weights in a batch, theirs by the number of images. The authors' test-time
    flips are left out.
    """
    yield Supervised(model, weight_decay=stage1_weight_decay)
    loss = softmax_bce_loss if cb_loss == "softmax_bce" else F.cross_entropy
    criterion = PerClass(loss, class_balanced_weights(task.class_counts, beta))
    yield MaxNorm(
        model,
        criterion,
        threshold,
        weight_decay=stage2_weight_decay,
        epochs=classifier_epochs,
        lr=Rate(classifier_lr, 64),
        balanced=balances_by(beta),
    )


KANG = "Kang et al., ICLR 2020"
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
    Method(
        "fcd",
        "FCD-style (reconstruction)",
        fcd,
        "Li et al., MICCAI 2022",
        ("sharpness-aware cross-entropy", "distilled class-balanced classifier"),
        note="FCD-style (reconstruction): no code and no formulas were available, so this follows "
        "the paper's title and others' description of it, with hyper-parameters of our own.",
    ),
    Method(
        "cb_wd_max",
        "CB+WD+Max",
        cb_wd_max,
        "Alshammari et al., CVPR 2022",
        ("cross-entropy with weight decay", "class-balanced MaxNorm"),
        note="Its weight decays are the authors' for CIFAR-100-LT, not searched on this data.",
    ),
)
