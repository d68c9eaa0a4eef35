"""Honest moments of rare classes, and features of several levels on one scale.

The encoder was trained on the images of a rare class, so their mean lies too far from the other
classes, and their covariance has few directions. Both are shrunk, the more the fewer images there
are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmd.methods.lmd.gaussians import cholesky


def pooled_covariance(covariance: Tensor, counts: Tensor) -> Tensor:
    """The mean ``(C, C)`` of ``(K, C, C)`` with weights ``n_k - 1``, from counts ``(K,)``."""
    freedom = (counts.to(covariance) - 1).clamp(min=0)
    freedom = freedom if freedom.sum() > 0 else torch.ones_like(freedom)
    pooled: Tensor = torch.tensordot(freedom / freedom.sum(), covariance, 1)
    return pooled


def shrunk_moments(
    mean: Tensor,
    covariance: Tensor,
    counts: Tensor,
    *,
    mean_images: float = 0.0,
    covariance_images: float = 0.0,
    mean_error: bool = False,
) -> tuple[Tensor, Tensor]:
    """Means moved to their centre by ``kappa/(n + kappa)``, covariances to the pooled one.

    ``mean (K, C)``, ``covariance (K, C, C)``, ``counts (K,)`` are of training images. ``kappa`` is
    ``mean_images``; the covariances move by ``nu/(n + nu)`` with ``nu = covariance_images``;
    ``mean_error`` adds ``Sigma_k / n_k``, the uncertainty of the mean.
    """
    n = counts.to(mean).clamp(min=1)
    if mean_images:
        centre = mean.mean(0)
        mean = centre + (n / (n + mean_images))[:, None] * (mean - centre)
    if covariance_images:
        share = (covariance_images / (n + covariance_images))[:, None, None]
        covariance = torch.lerp(covariance, pooled_covariance(covariance, n), share)
    if mean_error:
        covariance = covariance * (1 + 1 / n)[:, None, None]
    return mean, covariance


def level_scale(features: Tensor, widths: Sequence[int]) -> Tensor:
    """Factors ``(C,)`` that give every level of ``features (N, C)`` the variance of the first.

    ``widths`` are those of the levels; the factors of the first are 1. A constant level gets 1 too.
    """
    totals = [part.var(0).sum() for part in features.split(list(widths), dim=1)]
    factors = [torch.where(t > 0, (totals[0] / t).sqrt(), 1.0) for t in totals]
    return torch.cat([f.expand(w) for f, w in zip(factors, widths, strict=True)])


def discriminant(mean: Tensor, pooled: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Weight ``(K, C)`` and bias ``(K,)`` of the logits ``-d_k / 2T``, up to a common term.

    ``d_k`` is the squared Mahalanobis distance to ``mean (K, C)`` under one covariance ``pooled
    (C, C)``, so the logits are linear in the features.
    """
    centre = mean.mean(0)
    away = mean - centre
    weight = torch.cholesky_solve(away.T, cholesky(pooled)).T / temperature
    bias = -(weight * away).sum(1) / 2 - weight @ centre
    return weight, bias
