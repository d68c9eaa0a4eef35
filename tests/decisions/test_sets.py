"""Scores of prediction sets are counts of images, with intervals that know patients."""

import numpy as np
import pytest
from toys import toy_predictions

from lmd.decisions.numbers import score_sets
from lmd.scoring.conformal import Guarantee
from lmd.scoring.metrics import Sample
from lmd.scoring.proportions import wilson


def test_coverage_and_size_are_counted() -> None:
    labels, probabilities = toy_predictions((40, 25, 12, 6, 0))
    sample = Sample(labels, probabilities)
    limits = [0.1, 0.2, 0.3, 0.15, 0.05]
    found = score_sets(
        sample, [Guarantee("class", 9, t, 0.9, 0.8, 1.0) for t in limits], list("abcde"), 0.9
    )
    inside = probabilities.astype(np.float32) >= np.array(limits, np.float32)
    for k, one in enumerate(found.per_class[:4]):
        own = labels == k
        assert one.coverage.value == pytest.approx(inside[own, k].mean())
        assert one.size.value == pytest.approx(inside[own].sum(1).mean())
        assert one.coverage.low <= one.coverage.value <= one.coverage.high  # type: ignore[operator]
        assert one.size.low <= one.size.value <= one.size.high  # type: ignore[operator]
        assert one.threshold == limits[k]
    assert found.per_class[4].coverage.value is None
    assert found.per_class[4].size.value is None
    assert found.coverage.value == pytest.approx(inside[np.arange(83), labels].mean())
    assert found.size.value == pytest.approx(inside.sum(1).mean())
    assert found.empty == pytest.approx((inside.sum(1) == 0).mean())


def test_images_of_one_patient_widen_the_interval() -> None:
    labels, probabilities = toy_predictions((40, 40))
    promise = [Guarantee("class", 9, 0.5, 0.9, 0.8, 1.0)] * 2
    alone = score_sets(Sample(labels, probabilities), promise, ["a", "b"], 0.9)
    groups = np.arange(80) // 8
    together = score_sets(Sample(labels, probabilities, groups=groups), promise, ["a", "b"], 0.9)
    one, other = alone.per_class[0].coverage, together.per_class[0].coverage
    assert one.value == other.value
    assert other.high - other.low > one.high - one.low  # type: ignore[operator]


def test_a_patient_counts_once_where_it_does_for_the_threshold() -> None:
    labels, probabilities = toy_predictions((40, 40))
    groups = np.where(np.arange(80) % 40 < 30, np.arange(80) // 40, np.arange(80))
    promise = [Guarantee("class", 9, 0.5, 0.9, 0.8, 1.0, groups=9)] * 2
    found = score_sets(Sample(labels, probabilities, groups=groups), promise, ["a", "b"], 0.9)
    covered = probabilities[np.arange(80), labels] >= 0.5
    for k in range(2):
        own = labels == k
        each = np.array([covered[own & (groups == g)].mean() for g in np.unique(groups[own])])
        value = found.per_class[k].coverage
        assert value.value == pytest.approx(each.mean())
        assert (value.low, value.high) == pytest.approx(wilson(each.sum(), len(each)))
    assert found.coverage.value == pytest.approx(
        np.mean([covered[groups == g].mean() for g in np.unique(groups)])
    )
