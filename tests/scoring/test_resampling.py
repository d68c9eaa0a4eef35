import numpy as np
import pytest
from toys import toy_predictions

from lmd.base.errors import LmdError
from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.scores import bootstrap, draw

TIERS = ("head", "head", "medium", "tail", "tail")


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("support", [(40, 25, 12, 6, 3), (30, 0, 9, 1, 2), (20, 0, 0, 0, 0)])
def test_each_resample_has_the_metrics_of_the_images_drawn(decimals, support):
    labels, probabilities = toy_predictions(support, seed=1)
    probabilities = probabilities if decimals is None else np.round(probabilities, decimals)
    sample = Sample(labels, probabilities, TIERS)
    draws = bootstrap(sample, resamples=12, seed=7)
    (weights,) = draw(sample, 12, 7)
    assert set(draws) == set(METRICS)
    for r, times in enumerate(weights.astype(int)):
        drawn = np.repeat(np.arange(len(labels)), times)
        again = Sample(sample.labels[drawn], sample.probabilities[drawn], TIERS)
        assert again.support.tolist() == list(support)
        for key, metric in METRICS.items():
            expected = metric.value(again)
            assert draws[key][r] == pytest.approx(expected, abs=1e-12, nan_ok=True), key


@pytest.mark.parametrize("support", [(40, 25, 12, 6, 3), (30, 0, 9, 1, 2)])
def test_images_of_one_patient_are_drawn_together(support):
    labels, probabilities = toy_predictions(support, seed=1)
    groups = np.random.default_rng(0).integers(20, size=len(labels))
    sample = Sample(labels, probabilities, TIERS, groups)
    (weights,) = draw(sample, 12, 7)
    for times in weights:
        for rows in sample.rows:
            by_group = {}
            for group, often in zip(sample.groups[rows], times[rows], strict=True):
                assert by_group.setdefault(group, often) == often
            assert sum(by_group.values()) == len(by_group)


def test_patients_of_one_image_each_change_nothing():
    labels, probabilities = toy_predictions(seed=2)
    plain = bootstrap(Sample(labels, probabilities), resamples=50)
    grouped = bootstrap(Sample(labels, probabilities, groups=np.arange(86)), resamples=50)
    for key, values in plain.items():
        np.testing.assert_array_equal(values, grouped[key])


def test_the_bootstrap_is_repeatable_and_independent_of_the_seed_in_the_mean():
    sample = Sample(*toy_predictions(seed=2), TIERS)
    first, again, other = (bootstrap(sample, resamples=400, seed=seed) for seed in (1, 1, 2))
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
    assert not np.array_equal(first["auc"], other["auc"])
    assert first["auc"].mean() == pytest.approx(other["auc"].mean(), abs=0.01)
    (alone,) = bootstrap(sample, ["auc"], resamples=400, seed=1).values()
    np.testing.assert_array_equal(alone, first["auc"])


def test_the_spread_of_accuracy_is_that_of_the_strata():
    sample = Sample(*toy_predictions((400, 200, 50, 30, 20), seed=3))
    draws = bootstrap(sample, ["accuracy"], resamples=4000)["accuracy"]
    recall = sample.plain.recall[0]
    variance = np.sum(sample.support * recall * (1 - recall)) / len(sample.labels) ** 2
    assert draws.std() == pytest.approx(np.sqrt(variance), rel=0.05)


def test_a_thousand_resamples_of_five_thousand_images_come_in_chunks():
    sample = Sample(*toy_predictions((2500, 1200, 600, 400, 150, 80, 50, 20)))
    assert sum(len(weights) for weights in draw(sample, 1000, 0)) == 1000
    draws = bootstrap(sample)
    assert {values.shape for values in draws.values()} == {(1000,)}


def test_there_must_be_a_resample():
    with pytest.raises(LmdError, match="resamples must be at least 1; it is 0"):
        bootstrap(Sample(*toy_predictions()), resamples=0)
