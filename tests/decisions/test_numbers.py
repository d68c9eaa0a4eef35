"""Rates, predictive values and curves against counting by hand and against scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve, roc_curve
from toys import toy_predictions

from lmd.decisions.numbers import precision_recall, predictive, roc_points, score_decisions
from lmd.decisions.policy import Costs, Policy
from lmd.decisions.record import Decisions
from lmd.decisions.section import format_decisions
from lmd.scoring.conformal import Guarantee
from lmd.scoring.metrics import Sample
from lmd.scoring.proportions import class_mix, reweighted

CLASSES = list("abcde")
UNIFORM = np.full(5, 0.2)


def test_predictive_values_are_those_of_a_population() -> None:
    """A thousand patients in the mix, counted one by one."""
    rates = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2]])  # the last column is referral
    mix = np.array([0.9, 0.1])
    people = 1000 * mix[:, None] * rates
    found = predictive(rates, mix, 1)
    assert found["ppv"] == pytest.approx(people[1, 1] / people[:, 1].sum())
    others = np.array([people[:, 0] + people[:, 2]])
    assert found["npv"] == pytest.approx(others[0, 0] / others.sum())
    assert found["specificity"] == pytest.approx(0.9)
    assert np.isnan(predictive(np.array([[1.0, 0, 0], [1, 0, 0]]), mix, 1)["ppv"])


def test_at_the_mix_of_the_part_they_are_precision_and_recall() -> None:
    labels, probabilities = toy_predictions(skill=1.5)
    sample = Sample(labels, probabilities)
    mix = sample.support / sample.support.sum()
    found = score_decisions(sample, Policy(prior=mix), CLASSES, "here")
    predicted = probabilities.argmax(1)
    for k, one in enumerate(found.per_class):
        assert one.recall.value == pytest.approx(sample.plain.recall[0, k])
        assert one.ppv.value == pytest.approx(sample.plain.precision[0, k])
        rest = labels != k
        assert one.specificity.value == pytest.approx((predicted[rest] != k).mean())
        for each in (one.recall, one.ppv, one.npv, one.specificity, one.fixed):
            assert each.low <= each.value <= each.high  # type: ignore[operator]
        assert one.prevalence == pytest.approx(mix[k])
    assert found.referred == 0
    assert found.mean_cost is None


def test_intervals_cover_the_truth_with_a_long_tail() -> None:
    """Seven classes, 3 % of the images of each called one of the others, all equally frequent."""
    rng, support, rounds = np.random.default_rng(1), (500, 200, 100, 50, 20, 10, 5), 100
    labels, mix, rates = np.repeat(np.arange(7), support), np.full(7, 1 / 7), np.full((7, 8), 0.03)
    rates[:, 7] = 0
    np.fill_diagonal(rates, 0.82)
    keys = ("specificity", "ppv", "npv")
    above, below = (dict.fromkeys(keys, 0) for _ in range(2))
    for _ in range(rounds):
        called = np.concatenate(
            [rng.choice(8, n, p=row) for n, row in zip(support, rates, strict=True)]
        )
        sample = Sample(labels, np.eye(7)[called])
        decisions = score_decisions(sample, Policy(prior=mix), list("abcdefg"), "")
        for k, one in enumerate(decisions.per_class):
            truth = predictive(rates, mix, k)
            for key in keys:
                found = getattr(one, key)
                above[key] += found.low is not None and found.low > truth[key]
                below[key] += found.high is not None and found.high < truth[key]
    assert predictive(rates, mix, 0)["specificity"] == pytest.approx(0.97)
    for key in keys:
        assert above[key] + below[key] <= 0.06 * 7 * rounds, key
        assert max(above[key], below[key]) <= 0.04 * 7 * rounds, key


def test_a_rarer_class_has_a_lower_ppv_and_a_higher_npv() -> None:
    labels, probabilities = toy_predictions(skill=1.5)
    sample = Sample(labels, probabilities)
    common = score_decisions(sample, Policy(prior=UNIFORM), CLASSES, "").per_class[1]
    rare = np.array([0.8, 0.01, 0.09, 0.05, 0.05])
    # The decisions stay as they are: the model answers for the rare mix here.
    rarely = score_decisions(sample, Policy(prior=rare), CLASSES, "").per_class[1]
    assert common.recall == rarely.recall
    assert rarely.ppv.value < 0.5 * common.ppv.value  # type: ignore[operator]
    assert rarely.npv.value > common.npv.value  # type: ignore[operator]


def test_the_curve_is_that_of_scikit_learn() -> None:
    labels, probabilities = toy_predictions()
    sample = Sample(labels, np.round(probabilities, 2))  # with ties
    mix = np.array([0.5, 0.2, 0.1, 0.1, 0.1])
    weights = (mix / sample.support)[sample.labels]
    for k in range(5):
        points = roc_points(sample, sample.probabilities, mix, k)
        false, true, _ = roc_curve(
            sample.labels == k, sample.probabilities[:, k],
            sample_weight=weights, drop_intermediate=False,
        )  # fmt: skip
        np.testing.assert_allclose(points, np.stack([false, true], 1), atol=1e-12)


def test_sensitivity_at_the_fixed_specificity() -> None:
    labels = np.repeat([0, 1], [10, 100])
    p = np.concatenate([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05], np.zeros(100)])
    p[10:20], p[20:] = 0.45, 0.01  # ten of a hundred others are above 0.4
    sample = Sample(labels, np.stack([p, 1 - p], 1))
    found = score_decisions(sample, Policy(prior=np.array([0.5, 0.5])), ["a", "b"], "")
    assert found.fixed_specificity == 0.9
    # Down to just above 0.01 no more than ten others are called: all ten images are found.
    assert found.per_class[0].fixed.value == 1.0
    p[30] = 0.45
    found = score_decisions(
        Sample(labels, np.stack([p, 1 - p], 1)), Policy(prior=np.array([0.5, 0.5])), ["a", "b"], ""
    )
    assert found.per_class[0].fixed.value == 0.5


def test_costs_and_the_mix_move_the_decisions_and_referrals_are_counted() -> None:
    labels, probabilities = toy_predictions((60, 40, 20, 10, 5), skill=1.0)
    sample = Sample(labels, probabilities)
    table = (1 - np.eye(5)) * np.array([1, 1, 1, 1, 30])[:, None]
    new = class_mix("training", [60, 40, 20, 10, 5])
    policy = Policy(UNIFORM, new, Costs(table, np.full(5, 0.6)))
    found = score_decisions(sample, policy, CLASSES, "clinic")
    moved = reweighted(sample.probabilities.astype(np.float32), UNIFORM, new)
    chosen, refer = Costs(table, np.full(5, 0.6)).decide(moved)
    assert 0 < refer.sum() < len(labels)
    hit = (chosen == sample.labels) & ~refer
    for k, one in enumerate(found.per_class):
        own = sample.labels == k
        assert one.recall.value == pytest.approx(hit[own].mean())
        assert one.referred.value == pytest.approx(refer[own].mean())
    cost = np.where(refer, 0.6, table[sample.labels, chosen])
    each = np.array([cost[sample.labels == k].mean() for k in range(5)])
    assert found.mean_cost == pytest.approx(new @ each)
    plain = score_decisions(sample, Policy(UNIFORM, new, Costs(table)), CLASSES, "")
    assert found.mean_cost < plain.mean_cost  # type: ignore[operator]


def test_referrals_without_a_price_are_not_free() -> None:
    labels, probabilities = toy_predictions((60, 40, 20, 10, 5), skill=1.0)
    sample, costs = Sample(labels, probabilities), Costs(1 - np.eye(5))
    sets = [Guarantee("class", 20, 0.1, 0.9, 0.8, 1.0)] * 5

    def found(above: int, costs: Costs) -> Decisions:
        policy = Policy(UNIFORM, None, costs, sets, refer_above=above)
        return score_decisions(sample, policy, CLASSES, "clinic")

    some, none, priced = (
        found(2, costs),
        found(5, costs),
        found(2, replace(costs, refer=np.ones(5))),
    )
    assert some.referred == priced.referred > 0
    assert some.mean_cost is None
    assert "Mean cost of one image: not known" in format_decisions(some, None)
    assert none.referred == 0
    for one in (none, priced):
        assert f"at this prevalence: {one.mean_cost:.4g}" in format_decisions(one, None)


def test_classes_without_images_and_an_unknown_mix() -> None:
    labels, probabilities = toy_predictions((30, 20, 10, 0, 0))
    sample = Sample(labels, probabilities)
    found = score_decisions(sample, Policy(prior=UNIFORM), CLASSES, "").per_class
    assert found[3].recall.value is None
    assert found[3].fixed.value is None
    assert found[3].ppv.value is None
    assert found[3].npv.value is None
    assert found[3].specificity.value is not None
    assert all(0 <= one.npv.low <= one.npv.high <= 1 for one in found[:3])  # type: ignore[operator]
    assert found[0].ppv.value is not None
    unknown = score_decisions(sample, Policy(), CLASSES, "unknown").per_class[0]
    assert unknown.ppv.value is None
    assert unknown.recall.value is not None


def test_precision_and_recall_are_those_of_scikit_learn() -> None:
    labels, probabilities = toy_predictions(skill=1.5)
    sample = Sample(labels, probabilities)
    mix = sample.support / sample.support.sum()
    for k in range(5):
        own, scores = labels == k, probabilities[:, k]
        found = precision_recall(roc_points(sample, sample.probabilities, mix, k), float(mix[k]))
        precision, recall, _ = precision_recall_curve(own, scores)
        wanted = np.stack([recall[:-1], precision[:-1]], 1)[::-1]
        assert found == pytest.approx(wanted)


def test_precision_is_counted_in_the_stated_mix() -> None:
    roc = np.array([[0.0, 0.0], [0.1, 0.8], [1.0, 1.0]])
    found = precision_recall(roc, 0.01)
    assert found[0] == pytest.approx([0.8, 0.008 / (0.008 + 0.099)])
    assert found[-1] == pytest.approx([1.0, 0.01])
    assert precision_recall(roc, 0.0)[:, 1] == pytest.approx([0, 0])
