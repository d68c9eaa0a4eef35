"""Class weights, sampling weights and priors against naive loops, limits and reference numbers."""

import math
from typing import Any

import pytest
import torch

from lmd.methods.ldam import deferred
from lmd.methods.linear import log_priors
from lmd.methods.supervised import class_balanced_weights, image_weights

COUNTS = torch.tensor([100, 40, 10, 4])

# Recorded numbers for COUNTS: by β, by q, and for β = 0.9999.
BALANCED = {
    0.9: [0.6193849, 0.6286606, 0.9509411, 1.8010133],
    0.99: [0.156041, 0.2988415, 1.0345859, 2.5105316],
    0.9999: [0.1043622, 0.2601249, 1.0389405, 2.5965723],
}
DRAWN = {
    0.0: [0.6493506, 0.2597403, 0.0649351, 0.025974],
    0.5: [0.4654013, 0.2943456, 0.1471728, 0.0930803],
    1.0: [0.25, 0.25, 0.25, 0.25],
}
EFFECTIVE = [0.2507688, 0.2500184, 0.2496438, 0.249569]


def close(found: torch.Tensor, expected: object, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    torch.testing.assert_close(
        found.double(), torch.as_tensor(expected).double(), rtol=rtol, atol=atol
    )


def drawn(weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """How often each class is drawn if an image of class k has the weight ``weights[k]``."""
    return weights * counts / (weights * counts).sum()


@pytest.mark.parametrize("beta", BALANCED)
def test_class_balanced_weights_are_the_recorded_ones(beta: float) -> None:
    close(class_balanced_weights(COUNTS, beta), BALANCED[beta])


@pytest.mark.parametrize("q", DRAWN)
def test_image_weights_draw_classes_as_often_as_recorded(q: float) -> None:
    close(drawn(image_weights(COUNTS, q), COUNTS), DRAWN[q], atol=1e-6)


def test_class_balanced_weights_draw_classes_as_often_as_recorded() -> None:
    close(drawn(class_balanced_weights(COUNTS, 0.9999), COUNTS), EFFECTIVE)


def test_the_numbers_here_are_those_of_the_reference_file(vectors: dict[str, Any]) -> None:
    for beta, weights in BALANCED.items():
        assert vectors["class_balanced_weights"][f"beta_{beta}"] == weights
    assert vectors["sampling_effective_number_probs"]["class_probs"] == EFFECTIVE
    found = vectors["sampling_class_probabilities"]
    assert [found["instance"], found["sqrt"], found["class"]] == list(DRAWN.values())


@pytest.mark.parametrize("counts", [[7, 1], [9012, 90, 1], [5, 5, 5, 5], [1, 20000]])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.999, 0.9999, 0.999999])
def test_class_balanced_weights_match_a_loop_in_double_precision(
    counts: list[int], beta: float
) -> None:
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    expected = [w * len(counts) / sum(raw) for w in raw]
    # Single precision suffices even for one image, where 1 - β^n cancels.
    close(class_balanced_weights(torch.tensor(counts), beta), expected)


def test_beta_zero_weighs_alike_and_beta_towards_one_by_inverse_count() -> None:
    close(class_balanced_weights(COUNTS, 0.0), torch.ones(4))
    inverse = 1 / COUNTS.double()
    close(class_balanced_weights(COUNTS, 1 - 1e-9), 4 * inverse / inverse.sum())


def test_a_class_without_images_gets_nothing_and_disturbs_nobody() -> None:
    counts = torch.tensor([100, 0, 4])
    present = torch.tensor([100, 4])
    for beta in (0.0, 0.9999):
        weights = class_balanced_weights(counts, beta)
        assert weights[1] == 0
        close(weights[[0, 2]], class_balanced_weights(present, beta))
    for q in (0.0, 0.5, 1.0):
        weights = image_weights(counts, q)
        assert weights[1] == 0
        close(weights[[0, 2]], image_weights(present, q))
    assert log_priors(counts).isfinite().all()


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_image_weights_draw_classes_by_a_power_of_their_counts(q: float) -> None:
    counts = torch.tensor([31, 8, 1])
    labels = torch.repeat_interleave(torch.arange(3), counts)
    weights = image_weights(counts, q)[labels]
    share = torch.zeros(3).index_add(0, labels, weights / weights.sum())
    expected = [n ** (1 - q) for n in counts.tolist()]
    close(share, [e / sum(expected) for e in expected])


def test_log_priors_are_the_logarithms_of_the_class_frequencies() -> None:
    close(log_priors(COUNTS), [math.log(n / 154) for n in (100, 40, 10, 4)])
    close(log_priors(COUNTS.double()).exp().sum(), 1.0)
    assert log_priors(COUNTS.double()).dtype == torch.float64


def test_the_second_phase_begins_at_the_fraction_of_the_run() -> None:
    assert [e for e in range(200) if deferred(e, 200, 0.8)] == list(range(160, 200))
    # 0.29 * 100 is 28.999… in binary.
    assert not deferred(28, 100, 0.29)
    assert deferred(29, 100, 0.29)
    assert not any(deferred(e, 7, 1.0) for e in range(7))
    assert all(deferred(e, 7, 0.0) for e in range(7))


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 9])
def test_even_a_short_run_has_a_second_phase(epochs: int) -> None:
    assert deferred(epochs - 1, epochs, 0.8)
