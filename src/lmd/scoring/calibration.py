"""Fit the temperature, and measure calibration before and after it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.estimates import Calibration, Estimate
from lmd.scoring.intervals import bootstrap
from lmd.scoring.metrics import METRICS
from lmd.scoring.proportions import Floats, Probabilities, interval, mix_weights
from lmd.scoring.sample import Sample, Weighted

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


def without_temperature(probabilities: Probabilities, temperature: float | Floats) -> Floats:
    """``p^T``, normalised: the probabilities ``(N, K)`` before logits were divided by T.

    T is the same for all images, or ``(N, 1)``.

    >>> without_temperature(np.array([[0.8, 0.2]]), 2.0).round(3).tolist()
    [[0.941, 0.059]]
    """
    # A probability that was rounded to 0 stays finite as a logarithm.
    logs = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny))
    logs = temperature * (logs - logs.max(axis=1, keepdims=True))
    p = np.exp(logs)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def calibration(
    sample: Sample, temperature: float | Floats | None, mix: Floats | None, *, resamples: int = 1000
) -> Calibration:
    """ECE without the temperature, and both values in the ``mix (K,)`` that the model assumes.

    A temperature for each image, ``(N, 1)``, is in the order of the sample's rows. ``None`` is
    one that cannot be undone.
    """
    ece, weights = METRICS["ece"], None if mix is None else mix_weights(sample.labels, mix)[None]

    def matched(one: Sample) -> float | None:
        return None if weights is None else float(ece.function(Weighted(one, weights))[0])

    if temperature is None:
        unknown = Estimate(value=None)
        return Calibration(before=unknown, matched_before=None, matched_after=matched(sample))
    before = Sample(
        sample.labels,
        without_temperature(sample.probabilities, temperature),
        sample.tiers.tolist(),
        sample.groups,
    )
    value = ece.value(before)
    low, high = interval(bootstrap(before, ["ece"], resamples=resamples)["ece"], value)
    agree = low == high  # then nothing is known about how sure the value is
    return Calibration(
        before=Estimate(value=value) if agree else Estimate(value=value, low=low, high=high),
        matched_before=matched(before),
        matched_after=matched(sample),
    )
