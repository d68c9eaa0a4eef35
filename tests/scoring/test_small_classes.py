"""One rule for small classes, in the headline, the table, the rows and the comparison."""

import re

import numpy as np
import pytest

from lmd.report.text import format_comparison
from lmd.scoring.differences import Difference, compare, holm, paired_limits
from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.proportions import wilson
from lmd.scoring.scores import bootstrap, metric_estimates, score, small_classes
from lmd.scoring.tiers import Tiers

TIERS = ("head", "medium", "tail")


def sample(labels, predicted, groups=None):
    return Sample(labels, np.eye(3)[predicted] * 0.94 + 0.02, TIERS, groups)


def mistaken(labels, rows):
    predicted = labels.copy()
    predicted[rows] = (predicted[rows] + 1) % 3
    return predicted


def test_five_right_images_have_no_interval_of_zero_width():
    labels = np.repeat([0, 1, 2], 5)
    scores = score(labels, np.eye(3)[labels], "ABC", Tiers("r", TIERS), [9, 5, 2], resamples=50)
    for key, found in scores.metrics.items():
        assert found.low is None or found.low < found.high, key
    # Rows and headline follow the same limits.
    low, _ = wilson(5, 5)
    tail = scores.metrics["bacc_tail"]
    assert [tail.low, tail.high] == pytest.approx([low, 1])
    assert [tail.low, tail.high] == [
        scores.per_class[2].recall.low,
        scores.per_class[2].recall.high,
    ]
    headline = scores.metrics["balanced_accuracy"]
    assert headline.low == pytest.approx(1 - np.sqrt(3) * (1 - low) / 3)
    assert headline == scores.metrics["macro_recall"]
    assert scores.metrics["accuracy"].low == pytest.approx(wilson(15, 15)[0])
    assert scores.metrics["macro_f1"].low > scores.per_class[0].f1.low
    assert scores.metrics["auc"].low is None


def test_a_small_class_decides_which_means_are_combined():
    labels = np.repeat([0, 1, 2], [60, 40, 4])
    run = sample(labels, mistaken(labels, [0, 1, 2, 70, 71, 102]))
    assert small_classes(run) == [2]
    assert small_classes(run, "head") == []
    found = metric_estimates(run, resamples=200)
    draws = bootstrap(run, ["bacc_head", "balanced_accuracy"], resamples=200)
    assert [found["bacc_head"].low, found["bacc_head"].high] == pytest.approx(
        np.quantile(draws["bacc_head"], [0.025, 0.975])
    )
    wide = found["balanced_accuracy"]
    recalls = [(57, 60), (38, 40), (3, 4)]
    below = np.sqrt(sum((h / n - wilson(h, n)[0]) ** 2 for h, n in recalls)) / 3
    assert wide.low == pytest.approx(np.mean([h / n for h, n in recalls]) - below)
    # Twenty images of four patients are a small class too.
    many = np.repeat([0, 1, 2], [60, 40, 20])
    groups = np.concatenate([np.arange(100), 100 + np.arange(20) // 5])
    assert small_classes(sample(many, many, groups)) == [2]
    assert small_classes(sample(many, many)) == []


# Without limits for each class there is nothing to combine.
@pytest.mark.parametrize(("fewest", "known"), [(4, False), (12, True)])
def test_auc_and_the_paired_differences_of_f1_and_precision_need_larger_classes(fewest, known):
    labels = np.repeat([0, 1, 2], [60, 40, fewest])
    a = sample(labels, mistaken(labels, [0, 1, 2, 70, 71, 101]))
    b = sample(labels, mistaken(labels, [5, 72, 73, 74, 75, 76, 77, 102]))
    alone = metric_estimates(a, resamples=200)
    assert (alone["auc"].low is not None) == known
    assert alone["macro_f1"].low is not None  # combined
    pairs = compare(a, b, resamples=200)
    for key in ("auc", "macro_f1", "macro_precision"):
        gap = pairs[key]
        assert gap.value != 0
        assert np.isfinite([gap.low, gap.high, gap.p_value]).tolist() == [known] * 3, key
        assert (pairs[key].corrected is not None) == known
    for key in ("balanced_accuracy", "accuracy", "kappa", "mcc", "ece", "bacc_head"):
        assert np.isfinite(pairs[key].p_value), key
    shown = format_comparison(pairs, "title")
    assert shown.count("no interval: too few images\n") == (0 if known else 3)


def newcombe(e, f, g, h):
    """Method 10 of Newcombe (1998) from the four cells of a paired table."""
    n = e + f + g + h
    p, q = (e + f) / n, (e + g) / n
    (l1, u1), (l2, u2) = wilson(e + f, n), wilson(e + g, n)
    product = (e + f) * (g + h) * (e + g) * (f + h)
    cross = e * h - f * g
    cross = max(cross - n / 2, 0) if cross > 0 else cross
    phi = cross / np.sqrt(product) if product else 0.0
    below = np.sqrt((p - l1) ** 2 - 2 * phi * (p - l1) * (u2 - q) + (u2 - q) ** 2)
    above = np.sqrt((u1 - p) ** 2 - 2 * phi * (u1 - p) * (q - l2) + (q - l2) ** 2)
    return p - q - below, p - q + above


# The first is an example of Newcombe's paper: 36, 12, 2 and 0 of 50 pairs.
@pytest.mark.parametrize("cells", [(36, 12, 2, 0), (3, 2, 0, 0), (2, 0, 0, 3), (5, 0, 0, 0)])
def test_paired_limits_are_newcombes(cells):
    e, f, g, h = cells
    right = np.array([True] * (e + f) + [False] * (g + h))
    too = np.array([True] * e + [False] * f + [True] * g + [False] * h)
    labels = np.zeros(len(right), int)
    runs = [Sample(labels, np.eye(2)[np.where(x, 0, 1)], ("head", "tail")) for x in (right, too)]
    value = right.mean() - too.mean()
    stuck = Difference(value, value, value, 0.5)  # so that the rule is used for 50 images too
    found = paired_limits(runs[:1], runs[1:], METRICS["balanced_accuracy"], stuck)
    assert (found.low, found.high) == pytest.approx(newcombe(*cells))
    if cells == (36, 12, 2, 0):
        assert (found.low, found.high) == pytest.approx((0.0569, 0.3404), abs=1e-4)


def test_the_p_value_of_a_small_class_agrees_with_its_interval():
    labels = np.repeat([0, 1, 2], [60, 40, 5])
    best = sample(labels, labels)
    for wrong in range(1, 6):
        other = sample(labels, mistaken(labels, np.arange(100, 100 + wrong)))
        found = compare(best, other, ["bacc_tail"], resamples=100)["bacc_tail"]
        assert (found.p_value < 0.05) == (found.low > 0)
        assert 0 < found.p_value < 1
    same = compare(best, best, resamples=100)
    assert same["bacc_tail"].p_value == 1
    assert same["bacc_tail"].low < 0 < same["bacc_tail"].high
    assert np.isnan([same["auc"].low, same["auc"].high]).all()


def test_small_classes_of_equal_runs_seldom_differ():
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1, 2], [60, 40, 5])
    small, bootstrapped = 0, 0
    for trial in range(200):
        a, b = (sample(labels, mistaken(labels, rng.random(105) < 0.3)) for _ in range(2))
        small += compare(a, b, ["bacc_tail"], resamples=50)["bacc_tail"].p_value < 0.05
        draws = [bootstrap(x, ["bacc_tail"], resamples=50, seed=trial)["bacc_tail"] for x in (a, b)]
        low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
        bootstrapped += not low <= 0 <= high
    assert small / 200 <= 0.06
    assert bootstrapped > small


def test_a_metric_that_is_another_one_is_counted_once():
    labels = np.repeat([0, 1, 2], [60, 40, 30])
    a = sample(labels, mistaken(labels, np.arange(0, 12)))
    b = sample(labels, mistaken(labels, np.arange(0, 130, 3)))
    found = compare(a, b, resamples=200)
    assert found["macro_recall"].same_as == "balanced_accuracy"
    assert found["macro_recall"].corrected == found["balanced_accuracy"].corrected
    counted = [key for key, one in found.items() if one.same_as is None]
    assert len(counted) == len(METRICS) - 1
    expected = holm([found[key].p_value for key in counted])
    assert [found[key].corrected for key in counted] == pytest.approx(expected)
    text = format_comparison(found, "a minus b")
    assert "the same as balanced accuracy" in text
    assert text.count("p =") + text.count("p <") == len(counted)
    # With all classes in one tier, that tier is all classes.
    alone = [Sample(x.labels, x.probabilities, ("head",) * 3) for x in (a, b)]
    assert compare(*alone, resamples=20)["bacc_head"].same_as == "balanced_accuracy"


def test_resamples_that_all_agree_are_no_evidence():
    labels = np.array([0, 0, 1, 1])
    right, wrong = (np.eye(2)[k] * 0.8 + 0.1 for k in (labels, 1 - labels))
    samples = [Sample(labels, p) for p in (right, wrong)]
    stuck = Difference(1.0, 1.0, 1.0, 0.02)
    found = paired_limits(samples[:1], samples[1:], METRICS["kappa"], stuck)
    assert np.isnan([found.low, found.high, found.p_value]).all()
    same = paired_limits(samples[:1], samples[:1], METRICS["kappa"], Difference(0.0, 0, 0, 1.0))
    assert same.p_value == 1
    text = compare(*samples, resamples=20)
    shown = format_comparison(text, "title")
    assert re.search(r"kappa +\+\d+\.\d+ +no interval: all resamples agree$", shown, re.MULTILINE)
