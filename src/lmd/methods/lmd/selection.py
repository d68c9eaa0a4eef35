"""What the M step of ICC minimises, and the choice of its two regularisers on validation images.

The covariance of a rare class is estimated from few images. ``shrinkage`` moves every class
towards the pooled covariance, ``weight_penalty`` keeps the classifier's weights small; both are
chosen once, on the validation part, by balanced accuracy.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from lmd.methods.lmd.calibrate import (
    Objective,
    Solution,
    expected_cross_entropy,
    mean_cross_entropy,
    minimise,
    normal_draws,
)
from lmd.methods.lmd.gaussians import ClassGaussians, pooled_covariance
from lmd.scoring.metrics import mean_recall

# Tried on validation; the fallbacks are used without a validation part. Penalties are in units of
# the total variance of the features, so that they mean the same for every scale and width.
SHRINKAGES = (0.0, 0.5, 0.9)
PENALTIES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
FALLBACK_SHRINKAGE, FALLBACK_PENALTY = 0.5, 3e-4

# For the comparison a rough solution and fewer draws are enough.
TRIAL_ITERATIONS, TRIAL_DRAWS = 40, 1024


class Problem(ABC):
    """A convex problem in the classifier's weight and bias, for features minus ``centre (C,)``."""

    centre: Tensor

    @property
    @abstractmethod
    def variance(self) -> float:
        """Total variance of the features: the unit of ``PENALTIES``."""

    @abstractmethod
    def objective(self, trial: bool) -> tuple[Objective, Tensor]:
        """The cross-entropy, and the covariance ``(C, C)`` of all features."""

    def shrunk(self, shrinkage: float) -> Self:
        """The problem with covariances moved towards the pooled one, if it has any."""
        return self

    def solve(
        self,
        weight: Tensor,
        bias: Tensor,
        penalty: float,
        anchor: Tensor | None = None,
        *,
        trial: bool = False,
    ) -> Solution:
        """The argmin with the penalty, from a first guess ``weight (K, C)``, ``bias (K,)``.

        The penalty pulls the weights towards ``anchor (K, C)``, or towards zero.
        """
        objective, metric = self.objective(trial)
        limit = TRIAL_ITERATIONS if trial else 200
        return minimise(
            objective,
            weight,
            bias,
            self.centre,
            metric,
            penalty=penalty,
            anchor=anchor,
            iterations=limit,
        )


@dataclass(frozen=True)
class VirtualFeatures(Problem):
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
        pooled = pooled_covariance(covariance, counts.cpu())
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

    def objective(self, trial: bool) -> tuple[Objective, Tensor]:
        """The expected cross-entropy (LMD paper, Eq. 8)."""
        draws = self.draws[:TRIAL_DRAWS] if trial else self.draws
        within = self.covariance.mean(0).double()
        metric = within.addmm(self.mean.T, self.mean, alpha=1 / len(self.mean))
        return expected_cross_entropy(self.mean, self.covariance, draws), metric


@dataclass(frozen=True)
class RealFeatures(Problem):
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

    def objective(self, trial: bool) -> tuple[Objective, Tensor]:
        """The mean cross-entropy."""
        metric = (self.features.T @ self.features / len(self.features)).double()
        return mean_cross_entropy(self.features, self.labels), metric


@dataclass(frozen=True)
class Score:
    """Balanced accuracy with its standard error, and balanced cross-entropy."""

    accuracy: float
    error: float
    entropy: float


def balanced_score(solution: Solution, features: Tensor, labels: Tensor) -> Score:
    """The score on ``features (N, C)``, ``labels (N,)``, over the classes that are present.

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
    weight: Tensor,
    bias: Tensor,
    validation: tuple[Tensor, Tensor],
    shrinkages: Sequence[float],
    penalties: Sequence[float],
    anchor: Tensor | None = None,
) -> tuple[float, float]:
    """Shrinkage and penalty with the best balanced accuracy on ``validation``.

    Penalties are in units of the variance of the features.

    Those within one standard error of the best count as equal to it, and the least balanced
    cross-entropy among them decides: with a few images of a rare class, accuracy alone is mostly
    luck. The shrinkage is chosen first, at the median penalty, then the penalty.
    """

    def tried(pairs: list[tuple[float, float]]) -> list[tuple[Score, tuple[float, float]]]:
        found, guess = [], (weight, bias)
        for shrinkage, penalty in pairs:
            strength = problem.variance * penalty
            solution = problem.shrunk(shrinkage).solve(*guess, strength, anchor, trial=True)
            guess = solution.weight, solution.bias
            found.append((balanced_score(solution, *validation), (shrinkage, penalty)))
        return found

    descending = sorted(penalties, reverse=True)
    middle = descending[len(descending) // 2]
    scores = tried([(s, middle) for s in shrinkages])
    shrinkage = _best(scores)[0]
    # From strong to weak penalty each solution is a good first guess for the next.
    return _best(scores + tried([(shrinkage, p) for p in descending if p != middle]))


def _best(tried: list[tuple[Score, tuple[float, float]]]) -> tuple[float, float]:
    top = max((score for score, _ in tried), key=lambda score: score.accuracy)
    level = top.accuracy - top.error
    equal = [(score.entropy, pair) for score, pair in tried if score.accuracy >= level]
    return min(equal)[1]
