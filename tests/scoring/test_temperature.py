"""The fitted temperature minimises the weighted cross-entropy with its prior."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lmd.scoring.proportions import HIGHEST, LOWEST, PRIOR_RATE, fit_temperature


def loss(logits: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray, t: float):
    scaled = logits / t
    scaled -= scaled.max(1, keepdims=True)
    log_p = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    images = weights.sum() ** 2 / (weights**2).sum()
    entropy = -(weights * log_p[np.arange(len(labels)), labels]).sum() / weights.sum()
    return images * entropy + PRIOR_RATE * (1 / t + np.log(t))


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_it_is_the_best_of_a_fine_grid(scale: float) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    logits = rng.normal(0, 1, (300, 4))
    logits[np.arange(300), labels] += 1
    logits *= scale
    weights = rng.uniform(0.1, 3, 300)
    grid = np.geomspace(LOWEST, HIGHEST, 4001)
    best = grid[np.argmin([loss(logits, labels, weights, t) for t in grid])]
    found = fit_temperature(logits, labels, weights)
    assert LOWEST < found < HIGHEST
    assert found == pytest.approx(best, rel=2e-3)
    # Shifting an image's logits changes no probability, and weights count only by their ratios.
    shifted = logits + rng.normal(0, 5, (300, 1))
    assert fit_temperature(shifted, labels, 7 * weights) == pytest.approx(found)


def test_it_undoes_a_scale_of_the_logits() -> None:
    # Four in five images are right, and the softmax of log-odds log(4) says so: T is the scale.
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1, 1, 0])
    given = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    logits = np.log(4) * np.eye(2)[given]
    for scale in (0.5, 1.0, 6.0):
        many = np.tile(scale * logits, (1000, 1)), np.tile(labels, 1000)
        assert fit_temperature(*many, np.ones(10_000)) == pytest.approx(scale, rel=5e-3)


def test_weights_decide_which_images_count() -> None:
    labels, logits = np.tile([0, 1, 1], 1000), np.array([[3.0, 0.0]] * 3000)
    # Three to one in favour of the first class: log-odds of log(3).
    found = fit_temperature(logits, labels, np.tile([3.0, 0.5, 0.5], 1000))
    assert found == pytest.approx(3 / np.log(3), rel=5e-3)


@pytest.mark.parametrize("right", [True, False])
def test_a_handful_of_images_makes_no_model_certain_of_anything(right: bool) -> None:
    """Seven images, all right: without the prior every further answer would have probability 1."""
    labels = np.arange(7) % 3
    logits = 2.0 * np.eye(3)[labels if right else (labels + 1) % 3]
    found = fit_temperature(logits, labels, np.ones(7))
    assert 0.5 < found < 1 if right else 1 < found < 8
    many = np.tile(logits, (1000, 1)), np.tile(labels, 1000)
    sure = fit_temperature(*many, np.ones(7000))
    assert sure < 0.25 if right else sure > 2 * found


def test_nothing_to_fit() -> None:
    logits, labels = 0.5 * np.eye(2), np.array([0, 1])
    assert fit_temperature(logits, labels, np.zeros(2)) == 1
    assert fit_temperature(logits[:0], labels[:0], np.ones(0)) == 1
