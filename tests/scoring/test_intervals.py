import numpy as np
import pytest
from toys import toy_predictions

from lmd.scoring.differences import compare, difference, holm
from lmd.scoring.metrics import METRICS, Sample, Weighted
from lmd.scoring.proportions import effective, interval, wilson
from lmd.scoring.scores import bootstrap, combined, draw, f1_interval

TIERS = ("head", "head", "medium", "tail", "tail")


def simulate(support, recalls, trials, estimate):
    """The share of simulated parts whose interval contains the true balanced accuracy."""
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(len(support)), support)
    covered = 0
    for trial in range(trials):
        right = rng.random(len(labels)) < np.repeat(recalls, support)
        predicted = np.where(right, labels, (labels + 1) % len(support))
        low, high = estimate(labels, predicted, trial)
        covered += low <= np.mean(recalls) <= high
    return covered / trials


def by_bootstrap(labels, predicted, seed):
    probabilities = np.eye(labels.max() + 1)[predicted]
    draws = bootstrap(
        Sample(labels, probabilities), ["balanced_accuracy"], resamples=300, seed=seed
    )
    return interval(draws["balanced_accuracy"])


def by_wilson(labels, predicted, seed):
    sample = Sample(labels, np.eye(labels.max() + 1)[predicted])
    return combined(sample, METRICS["balanced_accuracy"])


def alike(rng, patients, each=6, recall=0.7, alikeness=0.8):
    """Patients with ``each`` images; how right they are differs from patient to patient."""
    a = recall * (1 / alikeness - 1)
    chance = rng.beta(a, a * (1 - recall) / recall, patients)
    groups = np.repeat(np.arange(patients), each)
    return rng.random(len(groups)) < chance[groups], groups


@pytest.mark.parametrize("patients", [5, 40])
def test_intervals_cover_only_where_they_know_the_patients(patients):
    rng = np.random.default_rng(5)
    covered = {"images": 0, "patients": 0, "bootstrap": 0}
    for trial in range(300):
        right, groups = alike(rng, patients)
        labels, given = np.zeros(len(right), int), np.eye(2)[np.where(right, 0, 1)]
        sample = Sample(labels, given, groups=groups)
        draws = bootstrap(sample, ["accuracy"], resamples=200, seed=trial)["accuracy"]
        limits = {
            "images": wilson(*effective(right, None)),
            "patients": wilson(*effective(right, groups)),
            "bootstrap": interval(draws),
        }
        for name, (low, high) in limits.items():
            covered[name] += low <= 0.7 <= high
    assert covered["images"] < 0.75 * 300
    assert covered["patients"] > 0.92 * 300
    if patients == 40:
        assert covered["bootstrap"] > 0.9 * 300


def test_images_of_a_patient_count_as_one_at_most():
    groups = np.repeat(np.arange(12), 5)
    same = np.repeat(np.arange(12) % 3 == 0, 5)
    assert effective(same, groups) == pytest.approx((4, 12))
    assert effective(np.ones(60, bool), groups) == (12, 12)
    mixed = np.arange(60) % 5 < 2  # every patient the same share: no more alike than strangers
    assert effective(mixed, groups) == (24, 60)
    assert effective(np.zeros(0, bool), np.zeros(0, int)) == (0, 0)
    assert effective(mixed, np.arange(60)) == effective(mixed, None) == (24, 60)


def test_the_bootstrap_covers_where_classes_have_images_enough():
    share = simulate((80, 60, 50), (0.8, 0.7, 0.6), 300, by_bootstrap)
    assert 0.91 <= share <= 0.985


def test_with_tiny_classes_the_bootstrap_does_not_cover_and_the_wilson_mean_does():
    support, recalls = (100, 50, 20, 5, 3, 1), (0.9, 0.8, 0.7, 0.6, 0.6, 0.6)
    assert simulate(support, recalls, 200, by_bootstrap) < 0.85
    assert simulate(support, recalls, 2000, by_wilson) > 0.88


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (0, 7), (7, 7), (3, 10), (90, 100)])
def test_wilson_solves_the_score_equation(hits, trials):
    low, high = wilson(hits, trials)
    share = hits / trials
    assert 0 <= low <= share <= high <= 1
    assert high - low > 0.1
    for limit in (low, high):
        if 0 < limit < 1:
            score = (share - limit) / np.sqrt(limit * (1 - limit) / trials)
            assert abs(score) == pytest.approx(1.959963985)
    assert wilson(0, 0) == (0, 1)


def test_combined_limits_of_one_class_are_wilsons():
    labels, predicted = np.zeros(4, int), np.array([0, 0, 0, 1])
    sample = Sample(labels, np.eye(3)[predicted], ("head", "tail", "tail"))
    assert combined(sample, METRICS["balanced_accuracy"]) == pytest.approx(wilson(3, 4))
    assert combined(sample, METRICS["bacc_head"]) == pytest.approx(wilson(3, 4))
    assert np.isnan(combined(sample, METRICS["bacc_tail"])).all()


def test_f1_interval():
    low, high = f1_interval(hits=0, support=1, predicted=0, images=50)
    assert low == 0
    assert high > 0.3
    low, high = f1_interval(hits=1, support=1, predicted=1, images=50)
    assert low < 0.5
    assert high == 1
    # With many images it is the bootstrap's.
    labels, probabilities = toy_predictions((900, 700, 400, 300, 200), skill=1.5, seed=5)
    sample = Sample(labels, probabilities)
    predicted = probabilities.argmax(1)
    hits, count = int(np.sum((labels == 2) & (predicted == 2))), int(np.sum(predicted == 2))
    draws = np.concatenate([Weighted(sample, w).f1[:, 2] for w in draw(sample, 2000, 0)])
    assert f1_interval(hits, 400, count, len(labels)) == pytest.approx(interval(draws), abs=0.01)
    assert np.isnan(f1_interval(0, 0, 3, 10)).all()


def test_interval_is_widened_to_the_value_and_skips_what_is_no_number():
    draws = np.array([np.nan, 1.0, 2.0, 3.0])
    assert interval(draws) == pytest.approx((1.05, 2.95))
    assert interval(draws, value=5.0)[1] == 5
    assert interval(draws, value=0.5)[0] == 0.5
    assert np.isnan(interval(np.full(3, np.nan), value=1.0)).all()


def test_paired_differences_use_the_same_resamples_for_both():
    labels, a = toy_predictions((100, 80, 60, 40, 30), skill=1.5, seed=6)
    b = 0.6 * a + 0.4 * np.random.default_rng(7).dirichlet(np.ones(5), len(labels))
    runs = [Sample(labels, p, TIERS, groups=np.arange(len(labels)) // 2) for p in (a, b)]
    (weights,) = draw(runs[0], 200, 3)
    for key, found in compare(*runs, resamples=200, seed=3).items():
        draws = [METRICS[key].function(Weighted(run, weights)) for run in runs]
        values = [METRICS[key].value(run) for run in runs]
        assert found.value == pytest.approx(values[0] - values[1], abs=1e-12)
        expected = interval(draws[0] - draws[1], found.value)
        assert (found.low, found.high) == pytest.approx(expected)
        assert 2 / 201 <= found.p_value <= 1


def test_paired_differences_of_a_run_with_itself_and_with_a_better_one():
    labels, p = toy_predictions((100, 80, 60, 40, 30), skill=0.5, seed=8)
    weak, strong = Sample(labels, p), Sample(labels, 0.3 * p + 0.7 * np.eye(5)[labels])

    def gap(a, b):
        key = "balanced_accuracy"
        return compare(a, b, [key], resamples=200)[key]

    same = gap(weak, weak)
    assert (same.value, same.p_value) == (0, 1)
    assert -0.1 < same.low < 0 < same.high < 0.1
    better, worse = gap(strong, weak), gap(weak, strong)
    assert better.low > 0
    assert better.p_value == pytest.approx(2 / 201)
    assert (worse.value, worse.low, worse.high) == pytest.approx(
        (-better.value, -better.high, -better.low)
    )


def test_the_p_value_counts_resamples_of_the_other_sign_and_of_none():
    draws = np.array([-0.1, 0.0, 1e-14, *[0.2] * 96])
    assert difference(0.15, draws).p_value == pytest.approx(2 * (3 + 1) / (99 + 1))
    assert difference(-0.15, -draws).p_value == pytest.approx(2 * (3 + 1) / (99 + 1))
    assert difference(0.0, np.zeros(99)).p_value == 1
    unknown = difference(0.1, np.array([0.1, np.nan]))
    assert unknown.value == 0.1
    assert np.isnan([unknown.low, unknown.high, unknown.p_value]).all()


def test_p_values_of_equal_runs_are_seldom_small():
    rng = np.random.default_rng(9)
    labels = np.repeat(np.arange(3), (60, 50, 40))
    small = 0
    for trial in range(200):
        runs = []
        for _ in range(2):
            right = rng.random(len(labels)) < 0.7
            runs.append(Sample(labels, np.eye(3)[np.where(right, labels, (labels + 1) % 3)]))
        found = compare(*runs, ["balanced_accuracy"], resamples=200, seed=trial)
        small += found["balanced_accuracy"].p_value < 0.05
    assert small / 200 < 0.1


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]).tolist() == [1, 1]
    assert holm([0.2]).tolist() == [0.2]
    assert len(holm([])) == 0
