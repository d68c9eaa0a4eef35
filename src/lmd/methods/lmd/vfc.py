"""The argmin of the M step (LMD paper, Eq. 8), and the choice of its regularisers on validation.

A linear classifier sees only the K logits of a virtual feature, so infinitely many of them are an
integral over Gaussian logits. The covariance of a rare class is estimated from few images:
``shrinkage`` moves every class towards the pooled covariance, ``weight_penalty`` keeps the
classifier's weights small. Both are chosen once, by balanced accuracy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lmd.methods.lmd.gaussians import ClassGaussians, cholesky, pooled_covariance, small_cholesky
from lmd.scoring.metrics import mean_recall

Objective = Callable[[Tensor, Tensor], Tensor]
Guess = tuple[Tensor, Tensor]  # weight (K, C) and bias (K,)

# Quasi-random draws of each class, and of all classes. More do not change the solution noticeably,
# and the cost of an evaluation is their number times K squared.
DRAWS, ALL_DRAWS = 4096, 2**17
# Logits in memory at a time, 8 bytes each and in a few copies.
LOGITS = 2**22
# Rows of real features in float64 at a time.
ROWS = 8192
# Curvature of the softmax for classes that overlap somewhat. It balances features against penalty
# in the metric of the solver, which changes its speed, not its solution.
CURVATURE = 0.1

# Tried on validation; without a validation part, the middle one is used. Penalties are in units of
# the total variance of the features, so that they mean the same for every scale and width.
SHRINKAGES: tuple[float, ...] = (0.0, 0.5, 0.9)
PENALTIES: tuple[float, ...] = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5)

# For the comparison a rough solution and fewer draws are enough.
ITERATIONS, TRIAL_ITERATIONS, TRIAL_DRAWS = 200, 40, 1024


@dataclass(frozen=True)
class Solution:
    """Classifier ``weight (K, C)``, ``bias (K,)`` in float64, and how well it was solved for.

    ``loss`` is without the penalty, ``grad_norm`` the norm of the gradient with it, and
    ``evaluations`` the number of evaluations.
    """

    weight: Tensor
    bias: Tensor
    loss: float
    grad_norm: float
    evaluations: int


def enough_draws(classes: int) -> int:
    """Return the number of draws of each class: a power of two, as Sobol sequences need."""
    return min(DRAWS, 1 << max(1, ALL_DRAWS // classes).bit_length() - 1)


def normal_draws(count: int, dimensions: int, generator: torch.Generator) -> Tensor:
    """Scrambled Sobol draws of the standard normal ``(count, dimensions)`` in float64.

    Neighbours are pairs of opposite sign, so the mean is zero.
    """
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed)
    uniform = engine.draw((count + 1) // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return torch.stack([half, -half], dim=1).flatten(0, 1)[:count]


def expected_cross_entropy(mean: Tensor, covariance: Tensor, draws: Tensor) -> Objective:
    """Cross-entropy of virtual features, averaged over classes, as a function of weight and bias.

    ``mean (K, C)``, ``covariance (K, C, C)`` (float32 is enough), standard normal ``draws
    (R, K - 1)``: they become logits, relative to the last one (a softmax sees only differences), so
    no virtual feature is ever made.
    """
    classes, width = mean.shape
    rows = covariance.reshape(classes * width, width)

    def objective(weight: Tensor, bias: Tensor) -> Tensor:
        w = weight[:-1] - weight[-1]
        centre = mean @ w.T + (bias[:-1] - bias[-1])
        # Reading the covariances is nearly all of the cost. So they keep their own precision, and
        # the product is written so that the gradient of W Sigma W^T reuses W Sigma.
        half = (rows @ w.detach().to(rows.dtype).T).to(mean.dtype)
        product = half.view(classes, width, classes - 1).mT @ w.T
        both = product + product.mT
        factor = small_cholesky(both - both.detach() / 2)
        some = max(1, LOGITS // (classes * len(draws)))
        if some >= classes:
            return _entropy(centre, factor, draws)
        # To save memory, compute the logits of some classes at a time, and again for the gradient.
        losses = []
        for first in range(0, classes, some):
            part = centre[first : first + some], factor[first : first + some]
            loss = checkpoint(_entropy, *part, draws, first, use_reentrant=False)
            losses.append(len(part[0]) / classes * loss)
        return torch.stack(losses).sum()

    return objective


def _entropy(centre: Tensor, factor: Tensor, draws: Tensor, first: int = 0) -> Tensor:
    """Mean cross-entropy of the draws of n classes, starting with the class ``first``.

    ``centre (n, K - 1)`` and ``factor (n, K - 1, K - 1)`` are of logits relative to the last one.
    """
    logits = centre[..., None] + factor @ draws.T
    logits = torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1)
    own = logits[:, first:].diagonal(dim1=0, dim2=1).mean()
    loss: Tensor = logits.logsumexp(1).mean() - own
    return loss


def mean_cross_entropy(features: Tensor, labels: Tensor) -> Objective:
    """Cross-entropy of real features ``(N, C)`` as a function of weight and bias."""

    def objective(weight: Tensor, bias: Tensor) -> Tensor:
        total = weight.new_zeros(())
        for x, y in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            total = total + F.cross_entropy(x.double() @ weight.T + bias, y, reduction="sum")
        return total / len(labels)

    return objective


@dataclass(frozen=True)
class Problem:
    """The M step: a convex problem in the classifier, for features minus ``centre (C,)``.

    ``variance`` is the total variance of the features, the unit of ``PENALTIES``. ``at(shrinkage,
    trial)`` returns the cross-entropy and the covariance ``(C, C)`` of all features.
    """

    centre: Tensor
    variance: float
    at: Callable[[float, bool], tuple[Objective, Tensor]]

    def solve(
        self,
        weight: Tensor,
        bias: Tensor,
        penalty: float,
        anchor: Tensor | None = None,
        *,
        shrinkage: float = 0.0,
        trial: bool = False,
        iterations: int | None = None,
        change: float = 1e-10,
    ) -> Solution:
        """Return the argmin of ``cross-entropy + penalty/2 |W - anchor|^2`` by L-BFGS.

        It starts from ``weight (K, C)`` and ``bias (K,)``; without an ``anchor (K, C)`` that is
        zero. In the coordinates of the covariance of all features, the curvature is about the same
        in every direction. It ends when the value changes by less than ``change``.
        """
        weight, bias = weight.double().cpu(), bias.double().cpu()
        pull = torch.zeros_like(weight) if anchor is None else anchor.double().cpu()
        objective, covariance = self.at(shrinkage, trial)
        iterations = iterations or (TRIAL_ITERATIONS if trial else ITERATIONS)
        metric = CURVATURE * covariance
        metric.diagonal().add_(penalty)
        factor = cholesky(metric)
        v = (weight @ factor).requires_grad_()
        b = (bias + weight @ self.centre).requires_grad_()
        solver = torch.optim.LBFGS(
            [v, b],
            max_iter=iterations,
            max_eval=2 * iterations,
            tolerance_grad=1e-6,
            tolerance_change=change,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        count = 0

        def closure() -> Tensor:
            nonlocal count
            count += 1
            solver.zero_grad()
            w = torch.linalg.solve_triangular(factor, v, upper=False, left=False)
            loss: Tensor = objective(w, b) + penalty / 2 * (w - pull).square().sum()
            loss.backward()
            return loss

        solver.step(closure)
        with torch.no_grad():
            weight = torch.linalg.solve_triangular(factor, v, upper=False, left=False)
        weight.requires_grad_()
        loss = objective(weight, b)
        grads = torch.autograd.grad(
            loss + penalty / 2 * (weight - pull).square().sum(), [weight, b]
        )
        norm = torch.cat([g.flatten() for g in grads]).norm().item()
        weight = weight.detach()
        return Solution(weight, b.detach() - weight @ self.centre, loss.item(), norm, count)


def virtual_features(
    gaussians: ClassGaussians, counts: Tensor, draws: int, generator: torch.Generator
) -> Problem:
    """Infinitely many virtual features of each class, through ``draws`` of their logits.

    ``counts (K,)`` are of the training images: the pooled covariance weighs the classes by their
    degrees of freedom. Shrunk covariances are ``(1 - s) Sigma_k + s Sigma_pooled``.
    """
    mean = gaussians.mean.double().cpu()
    covariance = gaussians.covariance.cpu()
    pooled = pooled_covariance(covariance, counts.cpu())
    normals = normal_draws(draws, len(mean) - 1, generator)
    centre = mean.mean(0)
    mean = mean - centre

    def at(shrinkage: float, trial: bool) -> tuple[Objective, Tensor]:
        shrunk = torch.lerp(covariance, pooled, shrinkage) if shrinkage else covariance
        within = shrunk.mean(0).double()
        metric = within.addmm(mean.T, mean, alpha=1 / len(mean))
        some = normals[:TRIAL_DRAWS] if trial else normals
        return expected_cross_entropy(mean, shrunk, some), metric

    return Problem(centre, pooled.diagonal().sum().item(), at)


def real_features(features: Tensor, labels: Tensor) -> Problem:
    """Real features ``(N, C)`` with ``labels (N,)``, as they were drawn: ICC without VFC."""
    features, labels = features.float().cpu(), labels.cpu()
    centre = features.mean(0)
    features = features - centre

    def at(shrinkage: float, trial: bool) -> tuple[Objective, Tensor]:
        metric = (features.T @ features / len(features)).double()
        return mean_cross_entropy(features, labels), metric

    return Problem(centre.double(), features.square().sum(1).mean().item(), at)


@dataclass(frozen=True)
class Score:
    """Balanced accuracy with its standard error, and balanced cross-entropy."""

    accuracy: float
    error: float
    entropy: float


def balanced_score(solution: Solution, features: Tensor, labels: Tensor) -> Score:
    """Return the score on ``features (N, C)``, ``labels (N,)``, over the classes that are present.

    The standard error counts one more image as right and one more as wrong in each class, so that
    a class of one image does not look certain.
    """
    log_p = (features.double().cpu() @ solution.weight.T + solution.bias).log_softmax(1)
    labels = labels.cpu()
    predicted = log_p.argmax(1)
    right = (predicted == labels).double()
    loss = -log_p.gather(1, labels[:, None]).squeeze(1)
    variance = entropy = 0.0
    present = labels.unique().tolist()
    for k in present:
        own = labels == k
        n, hits = int(own.sum()), right[own].sum().item()
        smooth = (hits + 1) / (n + 2)
        variance += smooth * (1 - smooth) / (n + 2)
        entropy += loss[own].mean().item()
    accuracy = mean_recall(labels.numpy(), predicted.numpy())
    return Score(accuracy, variance**0.5 / len(present), entropy / len(present))


def choose(
    problem: Problem,
    guess: Guess,
    validation: tuple[Tensor, Tensor],
    shrinkages: Sequence[float],
    penalties: Sequence[float],
    anchor: Tensor | None = None,
) -> tuple[float, float]:
    """Return the shrinkage and penalty with the best balanced accuracy on ``validation``.

    Penalties are in units of the variance of the features. Those within one standard error of the
    best count as equal to it, and the least balanced cross-entropy among them decides: with a few
    images of a rare class, accuracy alone is mostly luck. The shrinkage is chosen first, at the
    median penalty, then the penalty.
    """

    scores: list[tuple[Score, tuple[float, float]]] = []

    def best_with(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        """Try further pairs, and return the best of all until now."""
        last = guess
        for shrinkage, penalty in pairs:
            strength = problem.variance * penalty
            solution = problem.solve(*last, strength, anchor, shrinkage=shrinkage, trial=True)
            last = solution.weight, solution.bias
            scores.append((balanced_score(solution, *validation), (shrinkage, penalty)))
        top = max((score for score, _ in scores), key=lambda score: score.accuracy)
        level = top.accuracy - top.error
        return min((score.entropy, pair) for score, pair in scores if score.accuracy >= level)[1]

    descending = sorted(penalties, reverse=True)
    middle = descending[len(descending) // 2]
    shrinkage, _ = best_with([(s, middle) for s in shrinkages])
    # From strong to weak penalty each solution is a good first guess for the next.
    return best_with([(shrinkage, p) for p in descending if p != middle])
