"""The losses of ICC's E step: Feature Distribution Consistency and generalised cross-entropy."""

import torch
from torch import Tensor

from lmd.methods.lmd.gaussians import ClassGaussians, Distance


def attraction_and_repulsion(
    features: Tensor, labels: Tensor, gaussians: ClassGaussians, distance: Distance = "mahalanobis"
) -> tuple[Tensor, Tensor]:
    """Psi and Phi: mean distance to the own class and to the others (LMD paper, Eq. 10-11).

    ``features (B, C)``, ``labels (B,)``; differentiable once with respect to the features.
    """
    own, total = gaussians.own_and_total(features, labels, distance)
    return own.mean(), (total - own).mean() / (len(gaussians.mean) - 1)


def fdc_loss(
    features: Tensor, labels: Tensor, gaussians: ClassGaussians, distance: Distance = "mahalanobis"
) -> Tensor:
    """Feature Distribution Consistency, Psi - Phi (LMD paper, Eq. 10-12), of ``(B, C)``."""
    psi, phi = attraction_and_repulsion(features, labels, gaussians, distance)
    return psi - phi


def gce_loss(logits: Tensor, labels: Tensor, q: float = 0.7) -> Tensor:
    """Generalised cross-entropy, mean of ``(1 - p_y^q) / q``; logits ``(B, K)``."""
    # By its logarithm, because p may underflow, and the gradient of a power of zero is infinite.
    log_p = logits.log_softmax(1).gather(1, labels[:, None])
    return (-torch.expm1(q * log_p) / q).mean()
