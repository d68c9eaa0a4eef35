"""Temperature scaling: one temperature for all logits, fitted on held-out images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bounds: with few images, all right or all wrong, the best T would be 0 or infinite.
LOWEST, HIGHEST = 0.05, 20.0


def fit_temperature(
    logits: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
) -> float:
    """The T that minimises the weighted cross-entropy of ``softmax(logits / T)``.

    ``logits (N, K)``, ``labels (N,)``, ``weights (N,)``. The loss is convex in 1 / T (Guo et al.,
    ICML 2017, Section 4.2), so its minimum is found by bisection. Without images T is 1.

    >>> logits = np.log([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.1]])
    >>> round(fit_temperature(2 * logits, np.array([0, 1, 0, 1]), np.ones(4)), 2)
    4.0
    """
    if not len(labels) or weights.sum() <= 0:
        return 1.0
    z = logits.astype(np.float64)
    own = z[np.arange(len(z)), labels]
    low, high = np.log(1 / HIGHEST), np.log(1 / LOWEST)
    for _ in range(60):
        middle = (low + high) / 2
        scaled = np.exp(middle) * (z - z.max(axis=1, keepdims=True))
        p = np.exp(scaled)
        p /= p.sum(axis=1, keepdims=True)
        slope = float(weights @ ((p * z).sum(axis=1) - own))
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))
