"""Prediction sets: exact thresholds, and the coverage that they promise, by simulation."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.conformal import (
    Held,
    coverage_interval,
    guarantees,
    prediction_sets,
    rank,
    true_probabilities,
)

TIERS = ["head", "medium", "medium", "tail", "tail"]


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_the_rank_is_exact_and_the_smallest_class_is_as_stated(coverage: float) -> None:
    alpha = 1 - coverage
    for n in range(1, 250):
        enough = n >= 1 / alpha - 1 - 1e-9
        assert (rank(n, coverage) <= n) == enough
        assert rank(n, coverage) / (n + 1) >= coverage - 1e-9
        assert (rank(n, coverage) - 1) / (n + 1) < coverage - 1e-12


def test_the_threshold_is_an_order_statistic() -> None:
    labels = np.zeros(20, int)
    p = np.random.default_rng(0).permutation(np.arange(1, 21)) / 40
    held_out = true_probabilities(labels, np.stack([p, 1 - p], 1))
    (first, second) = guarantees(held_out, ["head", "tail"], 0.9)
    # ⌈21 · 0.9⌉ = 19 of 20 images reach the threshold: the second smallest probability.
    assert first.threshold == 2 / 40
    assert (first.level, first.images, first.mean) == ("class", 20, 19 / 21)
    assert (p >= first.threshold).sum() == 19
    assert second.level == "all"


def test_a_tiny_coverage_takes_the_highest_probability() -> None:
    pools = [np.array([0.2, 0.5, 0.9]), np.array([0.3]), np.zeros(0)]
    found = guarantees([*map(Held, pools)], ["head", "head", "tail"], 1e-232)
    assert [one.threshold for one in found][:2] == [0.9, 0.3]
    assert found[2].level == "all"


def test_who_shares_a_threshold_with_whom() -> None:
    rng = np.random.default_rng(1)
    held_out = [np.sort(rng.uniform(0, 1, n)) for n in (60, 30, 4, 3, 2)]
    found = guarantees([*map(Held, held_out)], TIERS, 0.9)
    assert [one.level for one in found] == ["class", "class", "tier", "all", "all"]
    assert [one.images for one in found] == [60, 30, 34, 99, 99]
    everyone = np.sort(np.concatenate(held_out))[99 - rank(99, 0.9)]
    tier = np.sort(np.concatenate(held_out[1:3]))[34 - rank(34, 0.9)]
    assert found[3].threshold == everyone
    assert found[2].threshold == min(tier, everyone)
    # A shared guarantee is true only if no class has a higher threshold than the shared one.
    assert max(one.threshold for one in found) <= everyone
    assert found[1].threshold <= tier


def test_too_few_images_for_any_threshold() -> None:
    held_out = [np.array([0.9]), np.array([]), np.array([0.2, 0.4])]
    found = guarantees([*map(Held, held_out)], ["head", "medium", "tail"], 0.9)
    assert {one.level for one in found} == {"always"}
    assert prediction_sets(np.zeros((2, 3)), [one.threshold for one in found]).all()


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.1, math.nan])
def test_a_coverage_that_is_none(coverage: float) -> None:
    with pytest.raises(LmdError, match="coverage must be above 0 and below 1"):
        guarantees([Held(np.array([0.5]))], ["head"], coverage)


def drawn(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Probabilities of a poor model that is worst for the rare classes."""
    logits = rng.normal(0, 1, (len(labels), 5))
    logits[np.arange(len(labels)), labels] += np.array([2.5, 2.0, 1.0, 0.5, 0.0])[labels]
    p = np.exp(logits)
    return p / p.sum(1, keepdims=True)


def test_coverage_by_simulation() -> None:
    """Mean coverage over many validation parts is at least what is promised, at every level."""
    support, coverage, rounds = np.array([60, 25, 5, 3, 2]), 0.9, 400
    rng = np.random.default_rng(2)
    future = np.repeat(np.arange(5), 4000)
    new = drawn(future, rng)
    own = new[np.arange(len(future)), future]
    labels = np.repeat(np.arange(5), support)
    per_class, levels = np.zeros((rounds, 5)), set()
    for i in range(rounds):
        found = guarantees(true_probabilities(labels, drawn(labels, rng)), TIERS, coverage)
        levels.add(tuple(one.level for one in found))
        limits = np.array([one.threshold for one in found])
        per_class[i] = (own >= limits[future]).reshape(5, -1).mean(1)
    assert levels == {("class", "class", "tier", "all", "all")}
    error = 3 * per_class.std(0) / math.sqrt(rounds) + 3 * 0.3 / math.sqrt(4000)
    mean = per_class.mean(0)
    assert (mean[:2] >= coverage - error[:2]).all()
    share = support / support.sum()
    medium = mean[1:3] @ (support[1:3] / support[1:3].sum())
    assert medium >= coverage - error[1:3].max()
    assert mean @ share >= coverage - error.max()
    # What is not promised does not hold here: a rare class alone gets less.
    assert mean[4] < coverage - error[4]


def test_a_class_alone_is_covered_as_the_beta_distribution_says() -> None:
    """Without a shared threshold, coverage over many validation parts follows Beta(r, n+1-r)."""
    rng, n, coverage = np.random.default_rng(3), 30, 0.9
    # Uniform scores: the coverage of the threshold t is exactly 1 - t.
    found = [
        guarantees([Held(np.sort(rng.uniform(0, 1, n)))], ["head"], coverage)[0]
        for _ in range(3000)
    ]
    covered = 1 - np.array([one.threshold for one in found])
    low, high = coverage_interval(n, rank(n, coverage))
    assert (found[0].low, found[0].high) == (low, high)
    assert covered.mean() == pytest.approx(found[0].mean, abs=0.004)
    assert (covered < low).mean() == pytest.approx(0.025, abs=0.01)
    assert (covered > high).mean() == pytest.approx(0.025, abs=0.01)


def of_patients(patients: int, images: int, rng: np.random.Generator) -> Held:
    """Scores of one class that are alike within a patient (correlation 0.8), normal overall."""
    shared = np.repeat(rng.normal(0, 0.8**0.5, patients), images)
    scores = shared + rng.normal(0, 0.2**0.5, patients * images)
    order = np.argsort(scores)
    return Held(scores[order], np.repeat(np.arange(patients), images)[order])


def test_coverage_of_images_of_new_patients_by_simulation() -> None:
    rng, coverage = np.random.default_rng(4), 0.8
    covered = {True: list[float](), False: list[float]()}
    for _ in range(600):
        held, new = of_patients(4, 5, rng), of_patients(200, 1, rng).probabilities
        for grouped, one in ((True, held), (False, Held(held.probabilities))):
            (found,) = guarantees([one], ["head"], coverage)
            assert found.level == "class"
            assert found.groups == (4 if grouped else None)
            covered[grouped].append(float((new >= found.threshold).mean()))
    assert np.mean(covered[True]) >= coverage - 0.01
    # Counted by image, the promise would not hold.
    assert np.mean(covered[False]) < coverage - 0.02


def test_every_patient_counts_once() -> None:
    one = np.sort(np.random.default_rng(5).uniform(0, 1, 30))
    alone = guarantees([Held(one)], ["head"], 0.9)[0]
    single = guarantees([Held(one, np.arange(30))], ["head"], 0.9)[0]
    assert (single.threshold, single.mean, single.low, single.high) == (
        alone.threshold, alone.mean, alone.low, alone.high,
    )  # fmt: skip
    # Nine images of three patients are too few for 90 %, which needs nine patients.
    few = Held(np.linspace(0.1, 0.9, 9), np.arange(9) // 3)
    assert guarantees([few], ["head"], 0.9)[0].level == "always"
    # All images of a patient reach 0.5, and half of the images of another: 1.5 of 2 patients.
    two = Held(np.array([0.1, 0.5, 0.6, 0.7]), np.array([0, 0, 1, 1]))
    found = guarantees([two], ["head"], 0.5)[0]
    assert (found.threshold, found.mean, found.groups) == (0.5, pytest.approx(0.5), 2)


def test_the_interval_narrows_to_the_coverage() -> None:
    low, high = coverage_interval(20000, rank(20000, 0.9))
    assert low < 0.9 < high
    assert high - low < 0.01
    np.testing.assert_allclose(coverage_interval(9, 9), (0.025 ** (1 / 9), 0.975 ** (1 / 9)))


def test_a_lowered_threshold_is_expected_to_cover_more() -> None:
    large, small = Held(np.linspace(0.8, 1, 200)), Held(np.array([0.2, 0.3]))
    alone = guarantees([large], ["head"], 0.9)[0]
    lowered = guarantees([large, small], ["head", "tail"], 0.9)[0]
    shared = guarantees([large, small], ["head", "head"], 0.9)[0]
    assert alone.mean == pytest.approx(0.9, abs=0.005)
    assert lowered.threshold == shared.threshold < alone.threshold
    reached = (large.probabilities >= lowered.threshold).sum()
    assert lowered.mean == reached / 201
    assert (lowered.low, lowered.high) == coverage_interval(200, int(reached))
