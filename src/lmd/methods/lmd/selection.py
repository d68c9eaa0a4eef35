"""What the M step of ICC minimises, and the choice of its two regularisers on validation images.

The covariance of a rare class is estimated from few images. ``shrinkage`` moves every class
towards the pooled covariance, ``weight_penalty`` keeps the classifier's weights small; both are
chosen once, on the validation part, by balanced accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from lmd.methods.lmd.calibrate import (
    Solution,
    expected_cross_entropy,
    mean_cross_entropy,
    minimise,
    normal_draws,
)
from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.scoring.confusion import mean_recall

# Tried on validation; penalties are in units of the total variance of the features, so that they
# mean the same for every scale and width. Without a validation part the fallbacks are taken.
SHRINKAGES = (0.0, 0.5, 0.9)
PENALTIES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
FALLBACK_SHRINKAGE, FALLBACK_PENALTY = 0.5, 3e-4

# For the comparison a rough solution and fewer draws are enough.
TRIAL_ITERATIONS, TRIAL_DRAWS = 40, 1024


class Problem(Protocol):
    """A convex problem in the classifier's weight and bias."""

    @property
    def variance(self) -> float:
        """Total variance of the features: the unit of ``PENALTIES``."""
        ...

    def shrunk(self, shrinkage: float) -> Self:
        """The problem with covariances moved towards the pooled one."""
        ...

    def solve(
        self, weight: Tensor, bias: Tensor, penalty: float, *, trial: bool = False
    ) -> Solution:
        """The argmin, from a first guess ``weight (K, C)``, ``bias (K,)``."""
        ...


@dataclass(frozen=True)
class VirtualFeatures:
    """Infinitely many virtual features of each class, through ``draws (R, K - 1)`` of their logits.

    ``centre (C,)`` is taken off ``mean (K, C)``, both in float64; the covariances stay as they are.
    """

    centre: Tensor
    mean: Tensor
    covariance: Tensor
    pooled: Tensor
    draws: Tensor

    @classmethod
    def of(
        cls, gaussians: ClassGaussians, counts: Tensor, draws: int, generator: torch.Generator
    ) -> Self:
        """From Gaussians and the number of training images of each class ``(K,)``.

        The pooled covariance weighs the classes by their degrees of freedom in real images.
        """
        mean = gaussians.mean.double().cpu()
        covariance = gaussians.covariance.cpu()
        freedom = (counts.cpu().to(covariance) - 1).clamp(min=0)
        freedom = freedom if freedom.sum() > 0 else torch.ones_like(freedom)
        pooled = torch.tensordot(freedom / freedom.sum(), covariance, 1)
        normals = normal_draws(draws, len(mean) - 1, generator)
        centre = mean.mean(0)
        return cls(centre, mean - centre, covariance, pooled, normals)

    @property
    def variance(self) -> float:
        """Total variance within classes."""
        return self.pooled.diagonal().sum().item()

    def shrunk(self, shrinkage: float) -> Self:
        """Covariances ``(1 - s) Sigma_k + s Sigma_pooled``."""
        if not shrinkage:
            return self
        return replace(self, covariance=torch.lerp(self.covariance, self.pooled, shrinkage))

    def solve(
        self, weight: Tensor, bias: Tensor, penalty: float, *, trial: bool = False
    ) -> Solution:
        """The argmin of the expected cross-entropy (LMD paper, Eq. 8) plus the penalty."""
        draws = self.draws[:TRIAL_DRAWS] if trial else self.draws
        objective = expected_cross_entropy(self.mean, self.covariance, draws)
        within = self.covariance.mean(0).double()
        metric = within.addmm(self.mean.T, self.mean, alpha=1 / len(self.mean))
        limit = TRIAL_ITERATIONS if trial else 200
        return minimise(
            objective, weight, bias, self.centre, metric, penalty=penalty, iterations=limit
        )


@dataclass(frozen=True)
class RealFeatures:
    """Real features ``(N, C)`` with ``labels (N,)``, as they were drawn: ICC without VFC."""

    centre: Tensor
    features: Tensor
    labels: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> Self:
        """From features as drawn."""
        features = features.float().cpu()
        centre = features.mean(0)
        return cls(centre.double(), features - centre, labels.cpu())

    @property
    def variance(self) -> float:
        """Total variance."""
        return self.features.square().sum(1).mean().item()

    def shrunk(self, shrinkage: float) -> Self:
        """Real features have no covariance to shrink."""
        return self

    def solve(
        self, weight: Tensor, bias: Tensor, penalty: float, *, trial: bool = False
    ) -> Solution:
        """The argmin of the mean cross-entropy plus the penalty."""
        objective = mean_cross_entropy(self.features, self.labels)
        metric = (self.features.T @ self.features / len(self.features)).double()
        limit = TRIAL_ITERATIONS if trial else 200
        return minimise(
            objective, weight, bias, self.centre, metric, penalty=penalty, iterations=limit
        )


@dataclass(frozen=True)
class Score:
    """Balanced accuracy with its standard error, and balanced cross-entropy."""

    accuracy: float
    error: float
    entropy: float


def balanced_score(solution: Solution, features: Tensor, labels: Tensor) -> Score:
    """The score on ``features (N, C)``, ``labels (N,)``, over the classes that are present.

    The standard error counts one image more right and one more wrong in each class, lest a class
    of one image look certain.
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
    weight: Tensor,
    bias: Tensor,
    validation: tuple[Tensor, Tensor],
    *,
    shrinkages: Sequence[float],
    penalties: Sequence[float],
) -> tuple[float, float]:
    """Shrinkage and penalty with the best balanced accuracy on ``validation``.

    Those within one standard error of the best count as equal to it, and among them the least
    balanced cross-entropy decides: with a few images of a rare class the accuracy alone is mostly
    luck. First the shrinkage is chosen at the median penalty, then the penalty.
    """
    descending = sorted(penalties, reverse=True)
    middle = descending[len(descending) // 2]
    tried = _try(problem, weight, bias, validation, [(s, middle) for s in shrinkages])
    shrinkage = _best(tried)[0]
    # From strong to weak penalty each solution is a good first guess for the next.
    others = [(shrinkage, p) for p in descending if p != middle]
    return _best(tried + _try(problem, weight, bias, validation, others))


def _try(
    problem: Problem,
    weight: Tensor,
    bias: Tensor,
    validation: tuple[Tensor, Tensor],
    pairs: list[tuple[float, float]],
) -> list[tuple[Score, tuple[float, float]]]:
    """The score of each pair (shrinkage, penalty)."""
    tried = []
    for shrinkage, penalty in pairs:
        solution = problem.shrunk(shrinkage).solve(weight, bias, penalty, trial=True)
        weight, bias = solution.weight, solution.bias
        tried.append((balanced_score(solution, *validation), (shrinkage, penalty)))
    return tried


def _best(tried: list[tuple[Score, tuple[float, float]]]) -> tuple[float, float]:
    top = max((score for score, _ in tried), key=lambda score: score.accuracy)
    level = top.accuracy - top.error
    equal = [(score.entropy, pair) for score, pair in tried if score.accuracy >= level]
    return min(equal)[1]
