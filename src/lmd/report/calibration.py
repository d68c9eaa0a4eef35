"""How far the confidence of a model can be believed: the bins of the reliability diagram."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.report.curves import Bin
from lmd.scoring.intervals import wilson
from lmd.scoring.metrics import ECE_BINS


def reliability_bins(
    probabilities: NDArray[Any], labels: NDArray[Any], bins: int = ECE_BINS
) -> list[Bin]:
    """Equal bins of the highest probability of ``probabilities (N, K)`` against ``labels (N,)``.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", equations 2 and 3.
    """
    confidence = probabilities.astype(np.float64).max(1)
    right = probabilities.argmax(1) == labels
    # A bin holds (left, right], as in the paper, so a confidence of exactly 1 is in the last one.
    index = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")
    result = []
    for i in range(bins):
        inside = index == i
        count, hits = int(inside.sum()), int(right[inside].sum())
        low, high = wilson(hits, count)
        mean = float(confidence[inside].mean()) if count else (i + 0.5) / bins
        share = hits / count if count else 0.0
        result.append(Bin(i / bins, (i + 1) / bins, count, mean, share, low, high))
    return result


def calibration_error(bins: list[Bin]) -> float:
    """The expected calibration error (Guo et al. 2017, equation 5) of the bins drawn."""
    total = sum(each.count for each in bins)
    gaps = sum(each.count * abs(each.accuracy - each.confidence) for each in bins)
    return gaps / total if total else 0.0
