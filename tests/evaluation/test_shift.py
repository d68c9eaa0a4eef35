"""Two places against naive loops and known limits."""

import numpy as np
import pytest
from toys import toy_predictions

from lmd.base.errors import LmdError
from lmd.evaluation.shift import COMPARED, compare_metrics, confidence_shift, ks_distance, shared
from lmd.scoring.metrics import Sample
from lmd.scoring.scores import metric_estimates

TIERS = ["head", "head", "medium", "tail", "tail"]


def sample(support: tuple[int, ...], skill: float = 1.0, seed: int = 0) -> Sample:
    return Sample(*toy_predictions(support, skill, seed), TIERS)


def test_only_images_of_common_classes_are_compared() -> None:
    home, here = sample((40, 25, 12, 6, 3)), sample((10, 0, 5, 0, 9), seed=3)
    one, two = shared(home, here)
    assert one.support.tolist() == [40, 0, 12, 0, 3]
    assert two.support.tolist() == [10, 0, 5, 0, 9]
    found = compare_metrics(one, two, resamples=50)
    recall = home.plain.recall[0]
    assert found["balanced_accuracy"].home.value == pytest.approx(recall[[0, 2, 4]].mean())
    with pytest.raises(LmdError, match="no class in common"):
        shared(sample((5, 0, 0, 0, 0)), sample((0, 5, 0, 0, 0)))


def test_the_difference_is_here_minus_home_with_an_interval_that_knows_both() -> None:
    home, here = sample((200, 200, 200, 200, 200)), sample((200,) * 5, skill=0.5, seed=5)
    found = compare_metrics(home, here, resamples=300)
    assert set(found) == set(COMPARED)
    for one in found.values():
        assert one.difference.value == pytest.approx(one.here.value - one.home.value)
    gap = found["balanced_accuracy"].difference
    assert gap.high < 0  # less skill is noticed
    wide = [e.high - e.low for e in (found["balanced_accuracy"].home, gap)]
    assert wide[1] == pytest.approx(wide[0] * 2**0.5, rel=0.25)  # of two independent samples
    assert metric_estimates(here, ["auc"], resamples=300)["auc"] == found["auc"].here


def test_the_same_place_shows_no_difference() -> None:
    same = sample((40, 25, 12, 6, 3))
    found = compare_metrics(same, same, resamples=100)
    assert all(one.difference.value == 0 for one in found.values())
    mean = confidence_shift(same, same)
    assert mean.distance == 0
    assert mean.expected == pytest.approx(mean.home.value)


@pytest.mark.parametrize(("right", "difference"), [(0, -1.0), (3, 0.0)])
def test_a_handful_of_images_leaves_a_wide_difference(right: int, difference: float) -> None:
    """Four of four at home, none or all of three here: resampling them shows no width at all."""

    def place(images: int, hits: int) -> Sample:
        labels = np.repeat([0, 1], [200, images])
        called = labels.copy()
        called[200 + hits :] = 0
        return Sample(labels, np.eye(2)[called] * 0.8 + 0.1, ["head", "tail"])

    found = compare_metrics(place(4, 4), place(3, right), resamples=200)
    gap = found["bacc_tail"].difference
    assert gap.value == pytest.approx(difference)
    assert gap.low is not None
    assert gap.high is not None
    assert gap.high - gap.low > 0.5
    assert gap.low <= gap.value <= gap.high
    assert found["auc"].home.low is None  # nothing to combine
    assert found["auc"].difference.low is None
    assert found["macro_f1"].difference.low is not None


def test_confidence_that_only_the_mix_changes_is_explained_by_the_mix() -> None:
    home = sample((400, 400, 0, 0, 0))
    # The same images of each class, but more of the second.
    rows = np.concatenate([np.arange(100), np.arange(400, 800)])
    here = Sample(home.labels[rows], home.probabilities[rows], TIERS)
    found = confidence_shift(home, here)
    naive = 0.2 * home.confidence[:400].mean() + 0.8 * home.confidence[400:].mean()
    assert found.expected == pytest.approx(naive)
    assert found.here.low <= found.expected <= found.here.high


def test_the_distance_of_distributions_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(30), rng.random(20).round(1)
    naive = max(abs((a <= x).mean() - (b <= x).mean()) for x in [*a, *b])
    assert ks_distance(a, b) == pytest.approx(naive)
    assert ks_distance(a, a + 2) == 1
