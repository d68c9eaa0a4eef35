"""The reliability diagram draws the bins of the calibration error."""

import numpy as np
import pytest

from lmd.report.comparison import reliability_bins
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample


def test_bins_drawn_are_those_of_the_calibration_error() -> None:
    generator = np.random.default_rng(3)
    probabilities = generator.dirichlet([0.4] * 5, size=400).astype(np.float32)
    probabilities[0] = [0, 0, 1, 0, 0]
    labels = generator.integers(5, size=400)
    sample = Sample(labels, probabilities)
    bins = reliability_bins(sample)
    assert sum(each.count for each in bins) == 400
    error = sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / 400
    assert error == pytest.approx(METRICS["ece"].value(sample), abs=1e-9)
    for each in bins:
        if each.count:
            assert each.left <= each.confidence <= each.right
            assert each.low <= each.accuracy <= each.high
