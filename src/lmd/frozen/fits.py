"""Fit classifiers on scaled frozen features: regressions, class Gaussians, class means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmd.methods.decoupling import nearest_mean_classifier
from lmd.methods.lmd.gaussians import ClassGaussians, level_scale, shrunk_moments
from lmd.methods.lmd.vfc import Objective, Problem, Solution, enough_draws, virtual_features
from lmd.methods.supervised import log_priors

# Rows of features in one product.
ROWS = 8192


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
        return replace(self, bias=self.bias - tau * log_priors(counts.double()))

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
Setting = TypeVar("Setting", float, Pair)

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

    def solve(penalty: float, guess: Linear) -> Solution:
        return problem.solve(guess.weight, guess.bias, variance * penalty, **limits)

    return _solve_all(guesses, solve)


def _solve_all(
    guesses: Mapping[Setting, Linear], solve: Callable[[Setting, Linear], Solution]
) -> dict[Setting, Linear]:
    """Solve for each setting, from strong to weak; a solution replaces a next guess of zero."""
    solved: dict[Setting, Linear] = {}
    last: Linear | None = None
    for setting in sorted(guesses, reverse=True):
        guess = guesses[setting]
        solution = solve(setting, guess if last is None or guess.weight.any() else last)
        solved[setting] = last = Linear(solution.weight, solution.bias)
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
    """Fit everything roughly or exactly, with first guesses from ``start``.

    ``mean_images`` shrinks the means of the class Gaussians; it should be above 0 only if the
    encoder was trained on these images.
    """
    counts = torch.bincount(rows.labels, minlength=classes)
    zero = Linear.of(torch.zeros(classes, rows.features.shape[1]))
    start = start or Fits(counts, {}, {}, zero)
    gaussians: dict[Pair, Linear] = {}
    if pairs:
        problem, metric = _virtual_features(rows, counts, mean_images, seed)

        def solve(pair: Pair, guess: Linear) -> Solution:
            (shrinkage, penalty), first = pair, (guess.weight, guess.bias)
            strength = problem.variance * penalty
            return problem.solve(*first, strength, shrinkage=shrinkage, trial=not exact)

        gaussians = _solve_all({pair: start.gaussians.get(pair, zero) for pair in pairs}, solve)
    else:
        metric = (rows.features.T @ rows.features / len(rows.labels)).double()
    means = nearest_mean_classifier(rows.features, rows.labels, classes)
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
    gaussians.fit(rows.features, rows.labels, shrink)
    generator = torch.Generator().manual_seed(seed)
    draws = enough_draws(len(counts))
    return virtual_features(gaussians, counts, draws, generator), metric[0]
