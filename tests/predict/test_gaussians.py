"""Distances to class Gaussians, and the threshold of the flag."""

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from lmd.predict.novelty import DIRECTIONS, Novelty, flag_threshold, shrunk_covariance


def features(n: int = 300, width: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes with one covariance, in which some directions vary far more than others."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    means = 4 * np.random.default_rng(9).normal(size=(3, width))
    noise = rng.normal(size=(n, width)) * np.logspace(0.5, -1, width)
    return (means[labels] + noise).astype(np.float32), labels


def fitted(found: np.ndarray, labels: np.ndarray, directions: int = DIRECTIONS) -> Novelty:
    return Novelty.fit(found, labels, found[:0], directions)


@pytest.mark.parametrize("n", [15, 60, 600])
def test_the_covariance_is_that_of_ledoit_and_wolf(n: int) -> None:
    found, labels = features(n, width=20)
    residuals = found - np.stack([found[labels == k].mean(0) for k in range(3)])[labels]
    expected, _ = ledoit_wolf(residuals, assume_centered=True)
    np.testing.assert_allclose(shrunk_covariance(residuals), expected, rtol=1e-3, atol=2e-5)
    assert np.linalg.eigvalsh(shrunk_covariance(residuals)).min() > 0


def test_distances_are_those_of_a_naive_loop() -> None:
    found, labels = features()
    gaussians = fitted(found, labels, directions=3)
    others = np.eye(6) - gaussians.basis @ gaussians.basis.T
    covariance = gaussians.basis * gaussians.variances @ gaussians.basis.T
    inverse = np.linalg.inv(covariance + gaussians.rest * others)
    expected = [
        min(np.sqrt((x - mean) @ inverse @ (x - mean) / 6) for mean in gaussians.means)
        for x in found[:20]
    ]
    np.testing.assert_allclose(gaussians.distances(found[:20]), expected, rtol=1e-3)


def test_with_all_directions_nothing_is_approximated() -> None:
    found, labels = features()
    gaussians = fitted(found, labels)  # one direction fewer than features: rest is the last
    means = np.stack([found[labels == k].mean(0) for k in range(3)])
    inverse = np.linalg.inv(shrunk_covariance(found - means[labels].astype(np.float64)))
    x = found[7] + 1
    expected = min(np.sqrt((x - mean) @ inverse @ (x - mean) / 6) for mean in means)
    assert gaussians.distances(x[None])[0] == pytest.approx(expected, rel=1e-3)


def test_what_is_typical_is_near_and_what_is_not_is_far() -> None:
    found, labels = features()
    gaussians = fitted(found, labels)
    near = gaussians.distances(features(seed=1)[0])
    assert np.median(near) == pytest.approx(1, abs=0.2)
    # A small step is far away if it leads where nothing varies.
    quiet = found[:1] + np.eye(6, dtype=np.float32)[5]
    loud = found[:1] + np.eye(6, dtype=np.float32)[0]
    assert gaussians.distances(quiet)[0] > 2 > gaussians.distances(loud)[0]


def test_fewer_images_than_features_and_constant_features() -> None:
    found, labels = features(8, width=30)
    found[:, :5] = 2.0
    gaussians = fitted(found, labels, directions=4)
    assert gaussians.basis.shape == (30, 4)
    assert np.isfinite(gaussians.distances(found)).all()
    constant = fitted(np.ones((4, 3), np.float32), np.zeros(4, np.int64))
    assert constant.distances(np.ones((1, 3), np.float32))[0] == 0
    assert constant.distances(np.full((1, 3), 2, np.float32))[0] > 1e3


def test_a_class_without_images_has_no_gaussian() -> None:
    found, labels = features()
    gaussians = fitted(found[labels != 1], labels[labels != 1])
    assert len(gaussians.means) == 2


@pytest.mark.parametrize("above", [0.5, 0.9, 0.99])
def test_the_threshold_keeps_its_promise(above: float) -> None:
    # The mean over many draws of validation images and one new image each.
    rng = np.random.default_rng(0)
    flagged = [rng.normal() > flag_threshold(rng.normal(size=150), above) for _ in range(4000)]
    assert np.mean(flagged) <= 1 - above + 3 * np.sqrt(above * (1 - above) / 4000)
    assert np.mean(flagged) > (1 - above) / 3
