"""The reliability diagram draws the bins of the calibration error."""

import numpy as np
import pytest

from lmd.report.calibration import calibration_error, reliability_bins
from lmd.scoring.metrics import expected_calibration_error


def test_bins_drawn_are_those_of_the_calibration_error() -> None:
    generator = np.random.default_rng(3)
    probabilities = generator.dirichlet([0.4] * 5, size=400).astype(np.float32)
    probabilities[0] = [0, 0, 1, 0, 0]
    labels = generator.integers(5, size=400)
    bins = reliability_bins(probabilities, labels)
    assert sum(each.count for each in bins) == 400
    expected = expected_calibration_error(labels, probabilities)
    assert calibration_error(bins) == pytest.approx(expected, abs=1e-9)
    for each in bins:
        if each.count:
            assert each.left <= each.confidence <= each.right
            assert each.low <= each.accuracy <= each.high
