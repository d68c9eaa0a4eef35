"""What the temperature does to the expected calibration error."""

import numpy as np

from lmd.scoring.confusion import Floats
from lmd.scoring.estimates import Calibration, Estimate
from lmd.scoring.intervals import interval
from lmd.scoring.metrics import METRICS
from lmd.scoring.prevalence import mix_weights
from lmd.scoring.resampling import bootstrap
from lmd.scoring.sample import Probabilities, Sample, Weighted


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
