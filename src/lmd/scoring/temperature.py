"""Temperature scaling: one temperature for all logits, fitted on held-out images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = 0.05, 20.0
# With few images, all right or all wrong, the best T would be 0 or infinite. So 1 / T has a Gamma
# prior of this rate with its mode at 1.
PRIOR_RATE = 2.0


def fit_temperature(
    logits: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
) -> float:
    """The T that minimises the weighted cross-entropy of ``softmax(logits / T)``, and a prior.

    ``logits (N, K)``, ``labels (N,)``, ``weights (N,)``. The loss is convex in 1 / T (Guo et al.,
    ICML 2017, Section 4.2), and so is the prior: the minimum is found by bisection. The prior keeps
    T near 1 as long as there are few images; unequal weights make them fewer. Without images T is
    1.

    >>> logits = np.log([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.1]])
    >>> labels, even = np.array([0, 1, 0, 1]), np.ones(4)
    >>> round(fit_temperature(2 * logits, labels, even), 2)
    2.17
    >>> many = np.tile(2 * logits, (500, 1)), np.tile(labels, 500), np.tile(even, 500)
    >>> round(fit_temperature(*many), 2)
    3.99
    """
    if not len(labels) or weights.sum() <= 0:
        return 1.0
    z = logits.astype(np.float64)
    own = z[np.arange(len(z)), labels]
    images = weights.sum() ** 2 / np.square(weights).sum()
    low, high = np.log(1 / HIGHEST), np.log(1 / LOWEST)
    for _ in range(60):
        middle = (low + high) / 2
        scaled = np.exp(middle) * (z - z.max(axis=1, keepdims=True))
        p = np.exp(scaled)
        p /= p.sum(axis=1, keepdims=True)
        slope = float(weights @ ((p * z).sum(axis=1) - own)) / weights.sum() * images
        slope += PRIOR_RATE * (1 - np.exp(-middle))
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))
