"""Fit several balanced classifiers on frozen features and choose one on held-out images.

No row of ``METHODS``: nothing here trains an encoder. It applies formulas of several methods to
features that some encoder has already made: regressions, class Gaussians and class means.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lmd.data.splits import grouped_folds
from lmd.frozen.features import FeatureTable
from lmd.methods import linear
from lmd.methods.linear import KANG, MENON, REN, TAUS
from lmd.methods.lmd import PAPER
from lmd.methods.lmd.gaussians import ClassGaussians, level_scale, shrunk_moments
from lmd.methods.lmd.vfc import Objective, Problem, enough_draws, virtual_features
from lmd.scoring.differences import Correct, simplest
from lmd.scoring.metrics import mean_recall

ROWS = 8192  # of features in one product

# Title of each classifier, and the paper of its formula. Those after "plain" are the candidates,
# from simple to complex: the fewer values are fitted to the images, the simpler.
CLASSIFIERS = {
    "existing": ("Existing classifier", ""),
    "plain": ("Plain regression (CE)", "cross-entropy"),
    "existing_adjusted": ("Existing classifier, logits adjusted", MENON),
    "existing_tau": ("Existing classifier, tau-norm", KANG),
    "means": ("Nearest class means", KANG),
    "balanced": ("Balanced Softmax regression", REN),
    "adjusted": ("Plain regression, logits adjusted", MENON),
    "tau": ("Plain regression, tau-norm", KANG),
    "gaussians": ("Class Gaussians (LMD's M step)", PAPER),
}

Setting = Mapping[str, float]
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Linear:
    """Logits ``weight (K, C) @ feature + bias (K,)``, both in float64."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> Self:
        """Convert tensors of any precision; the default bias is zero."""
        weight = weight.detach().double().cpu()
        return cls(weight, weight.new_zeros(len(weight)) if bias is None else bias.double().cpu())

    def adjusted(self, counts: Tensor, tau: float) -> Self:
        """Subtract ``τ ln π`` from the logits (Menon et al., ICLR 2021, Eq. 9)."""
        return replace(self, bias=self.bias - tau * linear.log_priors(counts.double()))

    def logits(self, features: Tensor) -> Tensor:
        """``(N, C) → (N, K)`` in float64; the product has the precision of the features."""
        weight = self.weight.to(features.dtype).T
        products = [(rows @ weight).double() for rows in features.split(ROWS)]
        return torch.cat(products) + self.bias


@dataclass(frozen=True)
class Scaling:
    """Features minus ``centre (C,)``, times ``scale (C,)``: mean 0 and a mean variance of 1.

    Penalties and ridges then mean the same for every encoder. One factor for all features of a
    level keeps their relative spread, which is information.
    """

    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, features: Tensor, widths: Sequence[int] | None = None) -> Self:
        """Measure training features ``(N, C)``; ``widths`` are the widths of encoder levels."""
        total = torch.zeros(2, features.shape[1], dtype=torch.float64)
        for rows in features.split(ROWS):
            total[0] += rows.sum(0, dtype=torch.float64)
        centre = total[0] / len(features)
        for rows in features.split(ROWS):
            total[1] += (rows - centre.to(rows)).square().sum(0, dtype=torch.float64)
        factors, spread = torch.ones_like(centre), total[1] / max(len(features) - 1, 1)
        if widths is not None and len(widths) > 1:
            factors = level_scale(features, widths).double()
            spread = spread * factors.square()
        return cls(centre, factors / (spread.mean().item() ** 0.5 or 1.0))

    def apply(self, features: Tensor) -> Tensor:
        """Return a scaled copy ``(N, C)`` in float32."""
        scaled = torch.empty(features.shape, dtype=torch.float32)
        centre, scale = self.centre.float(), self.scale.float()
        for out, rows in zip(scaled.split(ROWS), features.split(ROWS), strict=True):
            torch.mul(rows.float() - centre, scale, out=out)
        return scaled

    def fold(self, classifier: Linear) -> Linear:
        """Turn a classifier of scaled features into one of unscaled features."""
        weight = classifier.weight * self.scale
        return Linear(weight, classifier.bias - weight @ self.centre)

    def unfold(self, classifier: Linear) -> Linear:
        """Turn a classifier of unscaled features into one of scaled features."""
        bias = classifier.bias + classifier.weight @ self.centre
        return Linear(classifier.weight / self.scale, bias)


Pair = tuple[float, float]  # shrinkage and penalty of the class Gaussians

# From strong to weak, in units of the total variance of the features.
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
PAIRS: tuple[Pair, ...] = tuple((s, p) for s in (0.9, 0.5, 0.0) for p in (3e-3, 3e-4, 3e-5))
RIDGE = 1e-2
# The covariances may not take more memory; a solution also takes K^2 C^2 operations for each step.
MOST_BYTES = 2**30
# For the comparison a rough solution is enough: later steps change hardly any prediction.
TRIAL = {"iterations": 25, "change": 1e-6}
FINAL = {"iterations": 100, "change": 1e-8}
BLOCK = 2048  # rows of features in one product: the second product finds them in the cache


@dataclass(frozen=True)
class Rows:
    """Scaled ``features (N, C)`` in float32, and ``labels (N,)``."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Fits:
    """Classifiers for ``counts (K,)`` images of each class, by their settings."""

    counts: Tensor
    regressions: Mapping[float, Linear]
    gaussians: Mapping[Pair, Linear]
    means: Linear


class _CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy and its gradient in one pass, so that no block of features is kept."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        loss = 0.0
        grad, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        # Classes are rows, so that both products read the features as they are in memory.
        single, shift = weight.to(features.dtype), bias[:, None]
        for x, y in zip(features.split(BLOCK), labels.split(BLOCK), strict=True):
            log_p, index = ((single @ x.T).double() + shift).log_softmax(0), y[None]
            loss -= log_p.gather(0, index).sum().item()
            error = log_p.exp_()
            error.scatter_add_(0, index, error.new_full(index.shape, -1.0))
            grad_bias += error.sum(1)
            grad += error.to(x.dtype) @ x
        ctx.save_for_backward(grad / len(labels), grad_bias / len(labels))
        return weight.new_tensor(loss / len(labels))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad, grad_bias = ctx.saved_tensors
        return out * grad, out * grad_bias, None, None


def streamed_cross_entropy(features: Tensor, labels: Tensor) -> Objective:
    """Return the mean cross-entropy of ``(N, C)`` as a function of weight and bias."""
    apply: Callable[..., Tensor] = _CrossEntropy.apply
    return lambda weight, bias: apply(weight, bias, features, labels)


def regressions(
    rows: Rows, metric: Tensor, guesses: Mapping[float, Linear], **limits: Any
) -> dict[float, Linear]:
    """Fit L2-penalised multinomial regressions by penalty, with a bias that is not penalised.

    ``metric (C, C)`` is the covariance of all features, ``guesses`` has a first guess for each
    penalty, and ``limits`` end the search. Balanced Softmax (Ren et al., NeurIPS 2020) adds
    ``ln π`` to the logits of the loss. A free bias absorbs it, so its argmin is this one with the
    bias ``b - ln π`` and needs no fit of its own.
    """
    objective = streamed_cross_entropy(rows.features, rows.labels)
    variance, centre = metric.diagonal().sum().item(), metric.new_zeros(len(metric))
    problem = Problem(centre, variance, lambda _shrinkage, _trial: (objective, metric))
    solved = _solve(
        problem, {(0.0, penalty): guess for penalty, guess in guesses.items()}, **limits
    )
    return {penalty: classifier for (_, penalty), classifier in solved.items()}


def _solve(problem: Problem, guesses: Mapping[Pair, Linear], **limits: Any) -> dict[Pair, Linear]:
    """Solve for each pair, from strong to weak; a solution replaces a next guess of zero."""
    solved: dict[Pair, Linear] = {}
    for shrinkage, penalty in sorted(guesses, reverse=True):
        guess, strength = guesses[shrinkage, penalty], problem.variance * penalty
        if solved and not guess.weight.any():
            guess = list(solved.values())[-1]
        first = guess.weight, guess.bias
        solution = problem.solve(*first, strength, shrinkage=shrinkage, **limits)
        solved[shrinkage, penalty] = Linear(solution.weight, solution.bias)
    return solved


def fit(
    rows: Rows,
    classes: int,
    penalties: Sequence[float] = PENALTIES,
    pairs: Sequence[Pair] = PAIRS,
    *,
    mean_images: float = 0.0,
    seed: int = 0,
    exact: bool = False,
    start: Fits | None = None,
) -> Fits:
    """Fit everything roughly or exactly, with first guesses from ``start``."""
    counts = torch.bincount(rows.labels, minlength=classes)
    zero = Linear.of(torch.zeros(classes, rows.features.shape[1]))
    start = start or Fits(counts, {}, {}, zero)
    gaussians: dict[Pair, Linear] = {}
    if pairs:
        problem, metric = _virtual_features(rows, counts, mean_images, seed)
        firsts = {pair: start.gaussians.get(pair, zero) for pair in pairs}
        gaussians = _solve(problem, firsts, trial=not exact)
    else:
        metric = (rows.features.T @ rows.features / len(rows.labels)).double()
    means = linear.nearest_mean_classifier(rows.features, rows.labels, classes)
    guesses = {penalty: start.regressions.get(penalty, zero) for penalty in penalties}
    plain = regressions(rows, metric, guesses, **(FINAL if exact else TRIAL))
    return Fits(counts, plain, gaussians, Linear.of(*means))


def _virtual_features(
    rows: Rows, counts: Tensor, mean_images: float, seed: int
) -> tuple[Problem, Tensor]:
    """Return the M step's problem (LMD paper, Eq. 6-8) and the covariance of all features."""
    metric: list[Tensor] = []

    def shrink(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        share = counts / counts.sum()
        within = torch.tensordot(share.to(covariance), covariance, 1)
        away = mean - share.to(mean) @ mean
        metric.append((within + (away * share[:, None].to(mean)).T @ away).double())
        return shrunk_moments(mean, covariance, counts, mean_images=mean_images)

    gaussians = ClassGaussians(len(counts), rows.features.shape[1], ridge=RIDGE)
    gaussians.update(rows.features, rows.labels, adjust=shrink)
    generator = torch.Generator().manual_seed(seed)
    draws = enough_draws(len(counts))
    return virtual_features(gaussians, counts, draws, generator), metric[0]


class Selection:
    """The scaled rows of a table for training, and those on which a classifier is chosen.

    ``held`` are the validation rows ``index (M,)``; without these, the training rows in one of the
    ``folds`` (the fold of each training row; -1 is in none). ``head`` is an existing classifier for
    features before ``scaling``.
    """

    def __init__(self, data: FeatureTable, seed: int = 0) -> None:
        table, train = data.table, data.rows("train")
        self.index, self.folds = data.rows("validation"), None
        if not len(self.index):
            folds = grouped_folds(table.take(train), seed=seed)
            self.index, self.folds = train[folds >= 0], torch.from_numpy(folds)
        self.scaling = Scaling.of(torch.from_numpy(data.features[train]), data.widths)
        self.train, self.held = (
            Rows(
                self.scaling.apply(torch.from_numpy(data.features[rows])),
                torch.from_numpy(table.labels[rows]),
            )
            for rows in (train, self.index)
        )
        self.groups = None if table.groups is None else table.groups[self.index]
        self.head = None
        if data.weight is not None and data.bias is not None:
            self.head = Linear.of(torch.from_numpy(data.weight), torch.from_numpy(data.bias))
        self.classes = len(table.classes)
        self.fit = partial(fit, classes=self.classes, mean_images=data.mean_images, seed=seed)

    def trials(self, pairs: Sequence[Pair], tick: Tick) -> list[tuple[Fits, Tensor, Tensor]]:
        """Fit roughly; each fit has the indices and features of the rows held out from it."""
        if self.folds is None:
            tick(0, 2)
            fitted = self.fit(self.train, pairs=pairs)
            return [(fitted, torch.arange(len(self.index)), self.held.features)]
        held, trials = self.folds[self.folds >= 0], []
        numbers = held.unique().tolist()
        for done, number in enumerate(numbers):
            tick(done, len(numbers) + 1)
            rest, out = self.folds != number, (held == number).nonzero()[:, 0]
            rows = Rows(self.train.features[rest], self.train.labels[rest])
            trials.append((self.fit(rows, pairs=pairs), out, self.held.features[out]))
        return trials

    def classifier(self, fitted: Fits, key: str, setting: Setting) -> Linear:
        """Return the classifier of scaled features with a setting."""
        tau = setting.get("tau", 1.0)
        if key == "means":
            return fitted.means
        if key == "gaussians":
            return fitted.gaussians[setting["shrinkage"], setting["penalty"]]
        if key.startswith("existing"):
            assert self.head is not None
            if key == "existing_adjusted":
                return self.scaling.unfold(self.head).adjusted(fitted.counts, tau)
            # The norms are those before scaling; τ-norm adds no prior.
            return self.scaling.unfold(Linear.of(linear.tau_normalise(self.head.weight, tau)))
        plain = fitted.regressions[setting["penalty"]]
        if key == "tau":
            return Linear.of(linear.tau_normalise(plain.weight, tau))
        return plain if key == "plain" else plain.adjusted(fitted.counts, tau)


@dataclass(frozen=True)
class Chosen:
    """The chosen setting of one kind of classifier.

    ``classifier`` is for unscaled features; ``held_out (M, K)`` are logits of held-out images.
    """

    key: str
    setting: Setting
    classifier: Linear
    held_out: NDArray[np.float64]


def calibrate_features(
    selection: Selection, tick: Tick = lambda done, total: None
) -> tuple[dict[str, Chosen], str, list[str]]:
    """Fit and choose a classifier of each kind, and the best kind, on held-out images; and notes.

    Of those within one standard error of the best balanced accuracy, the most regularised is
    chosen, and then the simplest kind. The plain regression has the penalty with the least
    cross-entropy.
    """
    width, notes = selection.train.features.shape[1], []
    size = 4 * selection.classes * width**2  # of K covariances (C, C) in float32
    if size > MOST_BYTES:
        notes.append(
            f"Class Gaussians were left out: {selection.classes} covariances of {width} features "
            f"would need {size / 1e9:.1f} GB."
        )
    trials = selection.trials(() if notes else PAIRS, tick)
    tick(len(trials), len(trials) + 1)

    def held_out(key: str, setting: Setting) -> Tensor:
        logits = torch.empty(len(selection.held.labels), selection.classes, dtype=torch.float64)
        for fitted, rows, features in trials:
            logits[rows] = selection.classifier(fitted, key, setting).logits(features)
        return logits

    chosen, best = _choose(selection, held_out, gaussians=not notes)
    # Exact fits on all training images, for the chosen settings alone.
    pair = chosen.get("gaussians")
    final = selection.fit(
        selection.train,
        penalties=sorted({chosen[key]["penalty"] for key in ("plain", "balanced")}),
        pairs=[(pair["shrinkage"], pair["penalty"])] if pair else [],
        exact=True,
        start=trials[0][0] if selection.folds is None else None,
    )
    tick(len(trials) + 1, len(trials) + 1)
    tried = {}
    for key, setting in chosen.items():
        classifier = selection.classifier(final, key, setting)
        if selection.folds is None:
            logits = classifier.logits(selection.held.features)
        else:
            logits = held_out(key, setting)
        tried[key] = Chosen(key, setting, selection.scaling.fold(classifier), logits.numpy())
    return tried, best, notes


def _choose(
    selection: Selection, held_out: Callable[[str, Setting], Tensor], *, gaussians: bool
) -> tuple[dict[str, Setting], str]:
    """Choose a setting of each classifier by its held-out logits, and the best candidate."""
    true = selection.held.labels.numpy()
    plain = {p: held_out("plain", {"penalty": p}) for p in PENALTIES}
    penalty = min(plain, key=lambda p: F.cross_entropy(plain[p], selection.held.labels).item())
    chosen: dict[str, Setting] = {"plain": {"penalty": penalty}}
    correct: dict[str, Correct] = {}
    scores: dict[str, float] = {}
    for key, settings in _settings(selection, penalty, gaussians=gaussians).items():
        predicted = [held_out(key, setting).argmax(1).numpy() for setting in settings]
        hits = [labels == true for labels in predicted]
        values = [mean_recall(true, labels) for labels in predicted]
        i = simplest(hits, values, true, selection.groups)
        chosen[key], correct[key], scores[key] = settings[i], hits[i], values[i]
    best = simplest(list(correct.values()), list(scores.values()), true, selection.groups)
    return chosen, list(correct)[best]


def _settings(selection: Selection, penalty: float, *, gaussians: bool) -> dict[str, list[Setting]]:
    """List the settings of each candidate, from strong to weak regularisation."""
    settings: dict[str, list[Setting]] = {}
    # An existing classifier may have been trained on the rows of all folds.
    if selection.head is not None and selection.folds is None:
        for key in ("existing_adjusted", "existing_tau"):
            settings[key] = [{"tau": tau} for tau in TAUS]
    settings["means"] = [{}]
    settings["balanced"] = [{"penalty": p} for p in PENALTIES]
    # Theory asks for τ = 1 with a plain regression; an existing classifier changes little.
    nearest = sorted(TAUS, key=lambda tau: (abs(tau - 1), tau))
    settings["adjusted"] = [{"penalty": penalty, "tau": tau} for tau in nearest]
    settings["tau"] = [{"penalty": penalty, "tau": tau} for tau in TAUS]
    if gaussians:
        pairs = sorted(PAIRS, reverse=True)
        settings["gaussians"] = [{"shrinkage": s, "penalty": p} for s, p in pairs]
    return settings
