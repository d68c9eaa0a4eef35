"""The one-standard-error rule: paired, by class and by group."""

import numpy as np
import pytest

from lmd.scoring.differences import balanced_difference, simplest
from lmd.scoring.metrics import mean_recall


def test_the_difference_is_that_of_balanced_accuracies() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    one, two = (np.where(rng.random(200) < p, labels, (labels + 1) % 3) for p in (0.8, 0.6))
    found, error = balanced_difference(one == labels, two == labels, labels)
    assert found == pytest.approx(mean_recall(labels, one) - mean_recall(labels, two))
    draws = []
    rows = [np.flatnonzero(labels == k) for k in range(3)]
    for _ in range(400):
        drawn = np.concatenate([rng.choice(own, len(own)) for own in rows])
        truth = labels[drawn]
        draws.append(mean_recall(truth, one[drawn]) - mean_recall(truth, two[drawn]))
    assert error == pytest.approx(np.std(draws), rel=0.2)


def test_images_of_one_group_count_as_one() -> None:
    gain = np.repeat([True, False, True, False, True], 10)
    none, labels = np.zeros(50, bool), np.zeros(50, int)
    alone = balanced_difference(gain, none, labels)[1]
    groups = np.repeat(np.arange(5), 10)
    together = balanced_difference(gain, none, labels, groups)[1]
    each = balanced_difference(gain[::10], none[::10], labels[::10])[1]
    assert together == pytest.approx(each)
    assert together > 2 * alone


def test_agreement_has_no_error_and_one_image_is_not_certain() -> None:
    same = np.array([True, False])
    assert balanced_difference(same, same, np.array([0, 1])) == (0, 0)
    difference, error = balanced_difference(np.array([True]), np.array([False]), np.array([0]))
    assert difference == 1
    assert error > 0.4


def test_the_simplest_within_one_error_is_taken() -> None:
    labels = np.repeat([0, 1], 50)
    best = np.ones(100, bool)
    near, far = best.copy(), best.copy()
    near[0] = False
    far[:20] = False
    scores = [mean_recall(labels, np.where(r, labels, 1 - labels)) for r in (far, near, best)]
    assert simplest([far, near, best], scores, labels) == 1
    assert simplest([far, best], [scores[0], scores[2]], labels) == 1
    assert simplest([best, best], [1.0, 1.0], labels) == 0
