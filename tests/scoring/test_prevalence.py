"""The exchange of one class mix for another."""

import numpy as np

from lmd.scoring.proportions import class_mix, mix_weights, reweighted


def test_it_is_bayes_rule_on_a_known_posterior() -> None:
    rng = np.random.default_rng(0)
    density = rng.uniform(0.1, 2, (50, 3))
    old, new = np.array([0.2, 0.3, 0.5]), np.array([0.9, 0.1, 0.0])
    given, wanted = density * old, density * new
    given, wanted = (p / p.sum(1, keepdims=True) for p in (given, wanted))
    np.testing.assert_allclose(reweighted(given, old, new), wanted, atol=1e-12)
    np.testing.assert_allclose(reweighted(given, old, old), given, atol=1e-12)
    np.testing.assert_allclose(reweighted(wanted[:, :2], new[:2], old[:2]).sum(1), 1)


def test_a_row_without_a_possible_class_stays_finite() -> None:
    found = reweighted(np.array([[1.0, 0.0]]), np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(found, [[0, 1]])


def test_weights_give_the_mix_whatever_the_part_has() -> None:
    labels = np.array([0] * 7 + [1] * 2 + [2])
    mix = class_mix("training", [90, 9, 1])
    sums = np.bincount(labels, weights=mix_weights(labels, mix))
    np.testing.assert_allclose(sums, mix)
