"""How class counts become class weights, sampling weights and priors: pure functions.

A class without training images has weight 0, and counts as one image in a logarithm.
"""

import math

import torch
from torch import Tensor

from lmd.base.errors import LmdError


def class_balanced_weights(counts: Tensor, beta: float) -> Tensor:
    """``(1 - β) / (1 - β^n)``, rescaled to mean 1 over the classes that have images.

    Cui et al., Class-balanced loss based on effective number of samples, CVPR 2019, Eq. 4;
    ``(K,) → (K,)``. β = 0 weighs all classes alike; with β = 0.9999 and fewer than about 1000
    images per class the weights are nearly ``1 / n``.

    >>> class_balanced_weights(torch.tensor([7, 7, 7]), 0.99)
    tensor([1., 1., 1.])
    """
    if not 0 <= beta < 1:
        raise LmdError(f"beta must be at least 0 and below 1; it is {beta}: try 0.9999")
    counts = _floating(counts)
    # expm1 of n·ln β: in single precision 1 - β^n would lose four digits at n = 1, β = 0.9999.
    log_beta = math.log(beta) if beta > 0 else -math.inf
    effective_number = -torch.expm1(counts.clamp(min=1) * log_beta) / (1 - beta)
    weights = torch.where(counts > 0, 1 / effective_number, 0)
    return weights * ((weights > 0).sum() / weights.sum())


def balances_by(beta: float) -> bool:
    """Whether ``class_balanced_weights`` balance the classes of most training parts.

    They do so for classes of up to ``1 / (1 - β)`` images. With β = 0.99 that is a hundred, fewer
    than frequent classes have.
    """
    return beta > 0.99


def image_weights(counts: Tensor, q: float = 1.0) -> Tensor:
    """Weight ``n^-q`` of one image of each class: ``(K,) → (K,)``.

    Classes are drawn with probability ``∝ n^(1-q)`` (Kang et al., Decoupling representation and
    classifier, ICLR 2020, Eq. 1 with q for 1 - q): q = 0 is instance, ½ square-root and 1
    class-balanced sampling.
    """
    counts = _floating(counts)
    return torch.where(counts > 0, counts.clamp(min=1) ** -q, 0)


def log_priors(counts: Tensor) -> Tensor:
    """``ln π`` with ``π = n / Σn``; a class without images counts as one image: ``(K,) → (K,)``."""
    return torch.log_softmax(_floating(counts).clamp(min=1).log(), dim=0)


def deferred(epoch: int, epochs: int, fraction: float) -> bool:
    """Whether the second phase of deferred re-weighting (DRW) has begun; ``epoch`` counts from 0.

    Cao et al., NeurIPS 2019, Algorithm 1: with fraction 0.8 it begins at epoch 160 of 200. A run
    of any length has a second phase unless the fraction is 1.

    >>> [deferred(epoch, 5, 0.8) for epoch in range(5)]
    [False, False, False, False, True]
    """
    # The small number keeps products such as 0.29 * 100 from falling one epoch short.
    return epoch >= math.floor(fraction * epochs + 1e-9)


def _floating(counts: Tensor) -> Tensor:
    return counts if counts.is_floating_point() else counts.to(torch.get_default_dtype())
