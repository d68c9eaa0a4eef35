"""ECE without the temperature, and in the mix that a model answers for."""

import numpy as np
import pytest

from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.proportions import mix_weights, without_temperature
from lmd.scoring.scores import calibration


def test_it_undoes_the_temperature() -> None:
    logits = np.random.default_rng(0).normal(0, 2, (30, 4))
    with_t, without = (np.exp(logits / t) for t in (1.7, 1.0))
    with_t, without = (p / p.sum(1, keepdims=True) for p in (with_t, without))
    np.testing.assert_allclose(without_temperature(with_t, 1.7), without, atol=1e-9)
    certain = without_temperature(np.array([[1.0, 0.0]]), 20)
    np.testing.assert_allclose(certain, [[1, 0]])


def test_a_calibrated_model_is_calibrated_in_its_own_mix_only() -> None:
    """Exact posteriors for equally frequent classes, on a part where one class is rare."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], [20000, 1000])
    x = np.where(labels == 0, rng.normal(0, 1, len(labels)), rng.normal(1, 3, len(labels)))
    density = np.stack([np.exp(-(x**2) / 2), np.exp(-((x - 1) ** 2) / 18) / 3], 1)
    exact = density / density.sum(1, keepdims=True)
    # A model that is twice too sure, shipped with the temperature that repairs it.
    sample = Sample(labels, exact)
    found = calibration(sample, 2.0, np.array([0.5, 0.5]), resamples=20)
    assert found.matched_after < 0.02  # type: ignore[operator]
    assert found.matched_before > 0.07  # type: ignore[operator]
    assert METRICS["ece"].value(sample) > 0.05  # the other mix, not the temperature
    own = Sample(labels, without_temperature(exact, 2.0))
    assert found.before.value == pytest.approx(METRICS["ece"].value(own))
    assert found.before.low <= found.before.value <= found.before.high  # type: ignore[operator]
    weights = mix_weights(sample.labels, np.array([0.5, 0.5]))
    assert weights[labels == 1].sum() == pytest.approx(0.5)


def test_what_cannot_be_undone_has_no_value_without_the_temperature() -> None:
    sample = Sample(np.array([0, 1, 1]), np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]))
    mix = np.array([0.5, 0.5])
    found = calibration(sample, None, mix, resamples=5)
    assert (found.before.value, found.matched_before) == (None, None)
    assert found.matched_after == calibration(sample, 2.0, mix, resamples=5).matched_after


def test_without_a_known_mix() -> None:
    sample = Sample(np.array([0, 1, 1]), np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]))
    found = calibration(sample, 1.0, None, resamples=5)
    assert found.matched_before is None
    assert found.matched_after is None
    assert found.before.value == pytest.approx(METRICS["ece"].value(sample))
