import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.scoring.intervals import (
    GROUP_KEYS,
    KEYS,
    bootstrap,
    effective,
    f1_interval,
    holm,
    interval,
    mean_recall_interval,
    paired_difference,
    wilson,
)
from lmd.scoring.metrics import GROUP_METRICS, METRICS, group_balanced_accuracy, per_class
from lmd.scoring.resampling import Weighted

GROUPS = ("head", "head", "medium", "tail", "tail")


def predictions(seed, support=(40, 25, 12, 6, 3), skill=1.0, decimals=None):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(support)), support))
    scores = rng.normal(size=(len(labels), len(support)))
    scores[np.arange(len(labels)), labels] += skill
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    if decimals is not None:
        probabilities = np.round(probabilities, decimals)
    return labels, probabilities


def metric_values(labels, probabilities, groups):
    values = {key: metric.function(labels, probabilities) for key, metric in METRICS.items()}
    for key, metric in GROUP_METRICS.items():
        members = [k for k, group in enumerate(groups) if group == metric.group]
        values[key] = group_balanced_accuracy(labels, probabilities, members)
    return values


def test_the_keys_are_those_of_the_metrics():
    assert set(KEYS) == set(METRICS) | set(GROUP_METRICS)
    assert set(GROUP_KEYS) == set(GROUP_METRICS)


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("support", [(40, 25, 12, 6, 3), (30, 0, 9, 1, 2), (20, 0, 0, 0, 0)])
def test_each_resample_has_the_metrics_of_the_images_drawn(decimals, support):
    labels, probabilities = predictions(1, support, decimals=decimals)
    order = np.argsort(labels, kind="stable")
    draws = bootstrap(labels, probabilities, groups=GROUPS, resamples=12, seed=7)
    (weights,) = Weighted(labels, probabilities, GROUPS).resamples(12, 7)
    for r in range(12):
        times = np.concatenate([w[r] for w in weights]).astype(int)
        drawn = np.repeat(order, times)
        assert np.bincount(labels[drawn], minlength=5).tolist() == list(support)
        expected = metric_values(labels[drawn], probabilities[drawn], GROUPS)
        assert set(expected) | {"recall", "precision", "f1"} == set(draws)
        for key, value in expected.items():
            assert draws[key][r] == pytest.approx(value, abs=1e-12, nan_ok=True), key
        classes = per_class(labels[drawn], probabilities[drawn])
        for key in ("recall", "precision", "f1"):
            np.testing.assert_allclose(draws[key][r], getattr(classes, key), atol=1e-12)


def test_the_bootstrap_is_repeatable_and_independent_of_the_seed_in_the_mean():
    labels, probabilities = predictions(2)
    first = bootstrap(labels, probabilities, resamples=400, seed=1)
    again = bootstrap(labels, probabilities, resamples=400, seed=1)
    other = bootstrap(labels, probabilities, resamples=400, seed=2)
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
    assert not np.array_equal(first["auc"], other["auc"])
    assert first["auc"].mean() == pytest.approx(other["auc"].mean(), abs=0.01)
    assert "bacc_head" not in first


def test_the_spread_of_accuracy_is_that_of_the_strata():
    labels, probabilities = predictions(3, (400, 200, 50, 30, 20))
    draws = bootstrap(labels, probabilities, resamples=4000)["accuracy"]
    recall = per_class(labels, probabilities)
    variance = np.sum(recall.support * recall.recall * (1 - recall.recall)) / len(labels) ** 2
    assert draws.std() == pytest.approx(np.sqrt(variance), rel=0.05)


def test_a_thousand_resamples_of_five_thousand_images_in_chunks():
    labels, probabilities = predictions(0, (2500, 1200, 600, 400, 150, 80, 50, 20))
    draws = bootstrap(labels, probabilities, groups=["head"] * 4 + ["tail"] * 4)
    assert draws["auc"].shape == (1000,)
    assert draws["recall"].shape == (1000, 8)


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
    draws = bootstrap(labels, probabilities, resamples=300, seed=seed)
    return interval(draws["balanced_accuracy"])


def by_wilson(labels, predicted, seed):
    support = np.bincount(labels)
    hits = np.bincount(labels[labels == predicted], minlength=len(support))
    return mean_recall_interval(hits.tolist(), support.tolist())


@pytest.mark.parametrize("support", [(40, 25, 12, 6, 3), (30, 0, 9, 1, 2)])
def test_images_of_one_patient_are_drawn_together(support):
    labels, probabilities = predictions(1, support)
    units = np.random.default_rng(0).integers(20, size=len(labels))
    order = np.argsort(labels, kind="stable")
    draws = bootstrap(labels, probabilities, groups=GROUPS, units=units, resamples=12, seed=7)
    (weights,) = Weighted(labels, probabilities, GROUPS, units).resamples(12, 7)
    for r in range(12):
        times = np.concatenate([w[r] for w in weights]).astype(int)
        for k in range(5):
            own = order[labels[order] == k]
            by_unit = {}
            for image, often in zip(own, times[labels[order] == k], strict=True):
                assert by_unit.setdefault(units[image], often) == often
            assert sum(by_unit.values()) == len(by_unit)
        drawn = np.repeat(order, times)
        expected = metric_values(labels[drawn], probabilities[drawn], GROUPS)
        for key, value in expected.items():
            assert draws[key][r] == pytest.approx(value, abs=1e-12, nan_ok=True), key


def test_patients_of_one_image_each_change_nothing():
    labels, probabilities = predictions(2)
    apart = np.arange(len(labels))
    plain = bootstrap(labels, probabilities, resamples=50)
    grouped = bootstrap(labels, probabilities, units=apart, resamples=50)
    for key, values in plain.items():
        np.testing.assert_array_equal(values, grouped[key])
    right = probabilities.argmax(1) == labels
    assert effective(right, apart) == effective(right, None) == (right.sum(), len(right))


def alike(rng, patients, each=6, recall=0.7, alikeness=0.8):
    """Patients with ``each`` images; how right they are differs from patient to patient."""
    a = recall * (1 / alikeness - 1)
    chance = rng.beta(a, a * (1 - recall) / recall, patients)
    units = np.repeat(np.arange(patients), each)
    return rng.random(len(units)) < chance[units], units


@pytest.mark.parametrize("patients", [5, 40])
def test_intervals_cover_only_where_they_know_the_patients(patients):
    rng = np.random.default_rng(5)
    covered = {"images": 0, "patients": 0, "bootstrap": 0}
    for trial in range(300):
        right, units = alike(rng, patients)
        labels, given = np.zeros(len(right), int), np.eye(2)[np.where(right, 0, 1)]
        draws = bootstrap(labels, given, units=units, resamples=200, seed=trial)["accuracy"]
        limits = {
            "images": wilson(*effective(right, None)),
            "patients": wilson(*effective(right, units)),
            "bootstrap": interval(draws),
        }
        for name, (low, high) in limits.items():
            covered[name] += low <= 0.7 <= high
    assert covered["images"] < 0.75 * 300
    assert covered["patients"] > 0.92 * 300
    if patients == 40:
        assert covered["bootstrap"] > 0.9 * 300


def test_images_of_a_patient_count_as_one_at_most():
    units = np.repeat(np.arange(12), 5)
    same = np.repeat(np.arange(12) % 3 == 0, 5)
    assert effective(same, units) == pytest.approx((4, 12))
    assert effective(np.ones(60, bool), units) == (12, 12)
    mixed = np.arange(60) % 5 < 2  # every patient the same share: no more alike than strangers
    assert effective(mixed, units) == (24, 60)
    assert effective(np.zeros(0, bool), np.zeros(0, int)) == (0, 0)


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


def test_mean_recall_interval_of_one_class_is_wilsons():
    assert mean_recall_interval([3], [4]) == pytest.approx(wilson(3, 4))
    assert mean_recall_interval([3, 0], [4, 0]) == pytest.approx(wilson(3, 4))
    assert np.isnan(mean_recall_interval([0], [0])).all()


def test_f1_interval():
    low, high = f1_interval(hits=0, support=1, predicted=0, images=50)
    assert low == 0
    assert high > 0.3
    low, high = f1_interval(hits=1, support=1, predicted=1, images=50)
    assert low < 0.5
    assert high == 1
    # With many images it is the bootstrap's.
    labels, probabilities = predictions(5, (900, 700, 400, 300, 200), skill=1.5)
    predicted = probabilities.argmax(1)
    hits, count = int(np.sum((labels == 2) & (predicted == 2))), int(np.sum(predicted == 2))
    draws = bootstrap(labels, probabilities, resamples=2000)["f1"][:, 2]
    assert f1_interval(hits, 400, count, len(labels)) == pytest.approx(interval(draws), abs=0.01)
    assert np.isnan(f1_interval(0, 0, 3, 10)).all()


def test_interval_is_widened_to_the_value_and_skips_what_is_no_number():
    draws = np.array([np.nan, 1.0, 2.0, 3.0])
    assert interval(draws, level=0.0) == (2, 2)
    assert interval(draws, value=5.0)[1] == 5
    assert interval(draws, value=0.5)[0] == 0.5
    assert np.isnan(interval(np.full(3, np.nan), value=1.0)).all()


def test_paired_difference_uses_the_same_resamples_for_both():
    labels, a = predictions(6, skill=1.5)
    b = 0.6 * a + 0.4 * np.random.default_rng(7).dirichlet(np.ones(5), len(labels))
    for metric in KEYS:
        found = paired_difference(labels, a, b, metric, groups=GROUPS, resamples=200, seed=3)
        draws = [bootstrap(labels, p, groups=GROUPS, resamples=200, seed=3)[metric] for p in (a, b)]
        values = [metric_values(labels, p, GROUPS)[metric] for p in (a, b)]
        assert found.value == pytest.approx(values[0] - values[1], abs=1e-12)
        expected = interval(draws[0] - draws[1], found.value)
        assert (found.low, found.high) == pytest.approx(expected)
        assert 2 / 201 <= found.p_value <= 1


def test_paired_difference_of_a_run_with_itself_and_with_a_better_one():
    labels, weak = predictions(8, (100, 80, 60, 40, 30), skill=0.5)
    same = paired_difference(labels, weak, weak, "auc", resamples=200)
    assert (same.value, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    strong = 0.3 * weak + 0.7 * np.eye(5)[labels]
    better = paired_difference(labels, strong, weak, "balanced_accuracy", resamples=200)
    assert better.low > 0
    assert better.p_value == pytest.approx(2 / 201)
    worse = paired_difference(labels, weak, strong, "balanced_accuracy", resamples=200)
    assert (worse.value, worse.low, worse.high) == pytest.approx(
        (-better.value, -better.high, -better.low)
    )


def test_p_values_of_equal_runs_are_seldom_small():
    rng = np.random.default_rng(9)
    labels = np.repeat(np.arange(3), (60, 50, 40))
    small = 0
    for trial in range(200):
        runs = []
        for _ in range(2):
            right = rng.random(len(labels)) < 0.7
            runs.append(np.eye(3)[np.where(right, labels, (labels + 1) % 3)])
        gap = paired_difference(labels, *runs, "balanced_accuracy", resamples=200, seed=trial)
        small += gap.p_value < 0.05
    assert small / 200 < 0.1


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]).tolist() == [1, 1]
    assert holm([0.2]).tolist() == [0.2]
    assert len(holm([])) == 0
    with pytest.raises(LmdError, match="from 0 to 1"):
        holm([0.1, float("nan")])


def test_errors():
    labels, probabilities = predictions(1)
    with pytest.raises(LmdError, match="'bacc_tail' cannot be compared without groups"):
        paired_difference(labels, probabilities, probabilities, "bacc_tail")
    with pytest.raises(LmdError, match="'top5' cannot be compared; choose one of auc"):
        paired_difference(labels, probabilities, probabilities, "top5", groups=GROUPS)
    with pytest.raises(LmdError, match="same images and classes"):
        paired_difference(labels, probabilities, probabilities[:-1], "auc")
    with pytest.raises(LmdError, match="one row for each image"):
        bootstrap(labels[:-1], probabilities)
    with pytest.raises(LmdError, match="must name 5 classes; it names 2"):
        bootstrap(labels, probabilities, groups=["head", "tail"])
    with pytest.raises(LmdError, match="resamples must be at least 1; it is 0"):
        bootstrap(labels, probabilities, resamples=0)
