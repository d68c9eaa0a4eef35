import json

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from toys import toy_predictions

from lmd.scoring.estimates import Estimate, PartScores
from lmd.scoring.metrics import METRICS
from lmd.scoring.proportions import wilson
from lmd.scoring.scores import f1_interval, score
from lmd.scoring.tiers import Tiers, assign_tiers

CLASSES = ("NV", "MEL", "AK", "DF", "LS", "AN")
TRAIN = [3000, 1000, 400, 30, 10, 5]
SUPPORT = (200, 80, 40, 15, 12, 11)


def scored(support=SUPPORT, **options):
    labels, probabilities = toy_predictions(support, skill=1.5)
    tiers = assign_tiers(TRAIN, CLASSES, "thirds")
    return score(labels, probabilities, CLASSES, tiers, TRAIN, resamples=200, **options)


def test_score_gives_the_pieces_of_a_record():
    scores = scored()
    assert list(scores.metrics) == list(METRICS)
    for entry in scores.metrics.values():
        assert entry.low <= entry.value <= entry.high
        assert entry.low < entry.high
    row = scores.per_class[1]
    assert (row.name, row.tier, row.train, row.support) == ("MEL", "head", 1000, 80)
    assert row.units is None
    assert scores.notes == []


def test_the_record_survives_json_exactly():
    scores = scored((200, 80, 40, 3, 1, 0))
    text = json.dumps(scores.model_dump(), allow_nan=False)
    assert PartScores.model_validate(json.loads(text)) == scores


def test_patients_are_counted_for_each_class():
    groups = np.arange(sum(SUPPORT)) // 4
    labels, _ = toy_predictions(SUPPORT, skill=1.5)
    plain, grouped = scored(), scored(groups=groups)
    for k, (row, alone) in enumerate(zip(grouped.per_class, plain.per_class, strict=True)):
        assert row.units == len(np.unique(groups[labels == k]))
        assert row.recall.value == alone.recall.value
        assert row.recall.high - row.recall.low >= alone.recall.high - alone.recall.low


def test_values_are_scikit_learns_and_fit_each_other():
    labels, probabilities = toy_predictions(SUPPORT, skill=1.5)
    scores = scored()
    value = {key: entry.value for key, entry in scores.metrics.items()}
    predicted = probabilities.argmax(1)
    assert value["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    areas = [roc_auc_score(labels == k, probabilities[:, k]) for k in range(6)]
    assert value["auc"] == pytest.approx(np.mean(areas))
    recalls = [row.recall.value for row in scores.per_class]
    assert value["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert value["bacc_head"] == pytest.approx(np.mean(recalls[:2]))
    assert value["bacc_tail"] == pytest.approx(np.mean(recalls[4:]))
    confusion = np.array(scores.confusion)
    assert confusion.sum(1).tolist() == [200, 80, 40, 15, 12, 11]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(value["accuracy"])


def limits(entry):
    return [entry.value, entry.low, entry.high]


def test_per_class_intervals_are_those_of_their_proportions():
    # Class A: 3 of 4 found, 5 images given it; class C is never predicted.
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    predicted = np.array([0, 0, 0, 1, 0, 1, 1, 0, 1])
    tiers = Tiers("r", ("head", "medium", "tail"))
    rows = score(labels, np.eye(3)[predicted], "ABC", tiers, [9, 5, 2], resamples=20).per_class
    a, c = rows[0], rows[2]
    assert limits(a.recall) == pytest.approx([3 / 4, *wilson(3, 4)])
    assert limits(a.precision) == pytest.approx([3 / 5, *wilson(3, 5)])
    assert limits(a.f1) == pytest.approx([6 / 9, *f1_interval(3, 4, 5, 9)])
    assert limits(c.recall) == pytest.approx([0, *wilson(0, 2)])
    assert limits(c.precision) == [0, 0, 1]


def test_absent_and_tiny_classes_are_told():
    scores = scored((200, 80, 40, 3, 1, 0), part="validation")
    absent, tiny = scores.notes
    assert absent.startswith("validation: No images of AN:")
    nothing = Estimate(value=None)
    row = scores.per_class[5]
    assert (row.support, row.recall, row.precision, row.f1) == (0, *[nothing] * 3)
    # Five classes present, one image in the smallest: 1/5 of balanced accuracy.
    assert "DF (3), LS (1): one image moves balanced accuracy by up to 20.00 points" in tiny
    assert "combined from the limits of the classes" in tiny
    one = scores.per_class[4]
    assert one.recall.high - one.recall.low > 0.7


def test_one_image_of_twenty_three_classes_moves_the_published_4_35_points():
    labels = np.concatenate([np.arange(23), np.repeat(np.arange(20), 30)])
    classes = [f"c{k}" for k in range(23)]
    tiers = assign_tiers(range(23, 0, -1), classes, "thirds")
    scores = score(labels, np.eye(23)[labels], classes, tiers, range(23, 0, -1), resamples=20)
    (note,) = scores.notes
    assert "c20 (1), c21 (1), c22 (1): one image moves balanced accuracy by up to 4.35" in note


def test_a_part_with_one_class_and_an_empty_tier():
    labels, probabilities = np.zeros(20, int), np.tile([0.8, 0.2], (20, 1))
    scores = score(labels, probabilities, ["A", "B"], Tiers("r", ("head", "tail")), [9, 1])
    values = {key: entry.value for key, entry in scores.metrics.items()}
    empty = {key for key, value in values.items() if value is None}
    assert empty == {"auc", "kappa", "bacc_medium", "bacc_tail"}
    notes = "\n".join(scores.notes)
    assert "medium cannot be computed: no class is medium by the rule" in notes
    assert "tail cannot be computed: no class of the tail has an image" in notes
    assert "AUC cannot be computed" in notes
    assert "kappa cannot be computed" in notes


def test_a_tier_that_is_all_wrong_has_an_honest_interval() -> None:
    """Resampling 60 misses gives 60 misses: an interval of no width would be a false certainty."""
    labels = np.repeat([0, 1, 2], 60)
    probabilities = np.tile([0.8, 0.1, 0.1], (180, 1))
    tiers = Tiers("test", ("head", "medium", "tail"))
    found = score(labels, probabilities, ("a", "b", "c"), tiers, [9, 3, 1], resamples=50)
    tail = found.metrics["bacc_tail"]
    assert tail.value == tail.low == 0
    assert tail.high == pytest.approx(wilson(0, 60)[1])
    assert found.metrics["balanced_accuracy"].high > 1 / 3
