import json

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from lmd.base.errors import LmdError
from lmd.scoring.definitions import format_scores
from lmd.scoring.intervals import f1_interval, wilson
from lmd.scoring.scores import score
from lmd.scoring.tiers import Groups, assign_groups

CLASSES = ("NV", "MEL", "AK", "DF", "LS", "AN")
TRAIN = [3000, 1000, 400, 30, 10, 5]
KEYS = {
    *("auc", "balanced_accuracy", "macro_f1", "kappa", "macro_precision", "macro_recall"),
    *("accuracy", "mcc", "ece", "bacc_head", "bacc_medium", "bacc_tail"),
}


def predictions(support=(200, 80, 40, 15, 12, 11), seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(6), support)
    scores = rng.normal(size=(len(labels), 6))
    scores[np.arange(len(labels)), labels] += 1.5
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return labels, probabilities.astype(np.float32)


def scored(support=(200, 80, 40, 15, 12, 11), **options):
    labels, probabilities = predictions(support)
    groups = assign_groups(TRAIN, CLASSES, "thirds")
    return score(labels, probabilities, CLASSES, groups, TRAIN, resamples=200, **options)


def test_score_gives_the_pieces_of_a_record():
    scores = scored()
    assert set(scores) == {"metrics", "per_class", "confusion", "definitions", "notes"}
    assert set(scores["metrics"]) == KEYS
    assert set(scores["definitions"]) >= KEYS | {"recall", "precision", "f1", "interval"}
    for entry in scores["metrics"].values():
        assert list(entry) == ["value", "low", "high"]
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert entry["low"] < entry["high"]
    for text in scores["definitions"].values():
        assert set(text) == {"title", "definition"}
    row = scores["per_class"][1]
    assert list(row) == ["name", "group", "train", "support", "recall", "precision", "f1"]
    assert (row["name"], row["group"], row["train"], row["support"]) == ("MEL", "head", 1000, 80)
    assert scores["notes"] == []


def test_the_record_survives_json_exactly():
    scores = scored((200, 80, 40, 3, 1, 0))
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores


def test_values_are_scikit_learns_and_fit_each_other():
    labels, probabilities = predictions()
    scores = scored()
    value = {key: entry["value"] for key, entry in scores["metrics"].items()}
    predicted = probabilities.argmax(1)
    assert value["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    areas = [roc_auc_score(labels == k, probabilities[:, k]) for k in range(6)]
    assert value["auc"] == pytest.approx(np.mean(areas))
    recalls = [row["recall"]["value"] for row in scores["per_class"]]
    assert value["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert value["bacc_head"] == pytest.approx(np.mean(recalls[:2]))
    assert value["bacc_tail"] == pytest.approx(np.mean(recalls[4:]))
    confusion = np.array(scores["confusion"])
    assert confusion.sum(1).tolist() == [200, 80, 40, 15, 12, 11]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(value["accuracy"])


def test_per_class_intervals_are_those_of_their_proportions():
    # Class A: 3 of 4 found, 5 images given it; class C is never predicted.
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    predicted = np.array([0, 0, 0, 1, 0, 1, 1, 0, 1])
    groups = Groups("r", ("head", "medium", "tail"))
    rows = score(labels, np.eye(3)[predicted], "ABC", groups, [9, 5, 2], resamples=20)["per_class"]
    a, c = rows[0], rows[2]
    assert list(a["recall"].values()) == pytest.approx([3 / 4, *wilson(3, 4)])
    assert list(a["precision"].values()) == pytest.approx([3 / 5, *wilson(3, 5)])
    assert list(a["f1"].values()) == pytest.approx([6 / 9, *f1_interval(3, 4, 5, 9)])
    assert list(c["recall"].values()) == pytest.approx([0, *wilson(0, 2)])
    assert list(c["precision"].values()) == [0, 0, 1]


def test_absent_and_tiny_classes_are_told():
    scores = scored((200, 80, 40, 3, 1, 0), part="validation")
    absent, tiny = scores["notes"]
    assert absent.startswith("validation: No image of AN:")
    nothing = {"value": None, "low": None, "high": None}
    row = scores["per_class"][5]
    assert (row["support"], row["recall"], row["precision"], row["f1"]) == (0, *[nothing] * 3)
    # Five classes present, one image in the smallest: 1/5 of balanced accuracy.
    assert "DF (3), LS (1): one image moves balanced accuracy by up to 20.00 points" in tiny
    assert "too narrow, as" in tiny
    assert "for the tail classes" in tiny
    assert "for the head classes" not in tiny
    one = scores["per_class"][4]
    assert one["recall"]["high"] - one["recall"]["low"] > 0.7


def test_one_image_of_twenty_three_classes_moves_the_published_4_35_points():
    labels = np.concatenate([np.arange(23), np.repeat(np.arange(20), 30)])
    classes = [f"c{k}" for k in range(23)]
    groups = assign_groups(range(23, 0, -1), classes, "thirds")
    scores = score(labels, np.eye(23)[labels], classes, groups, range(23, 0, -1), resamples=20)
    (note,) = scores["notes"]
    assert "c20 (1), c21 (1), c22 (1): one image moves balanced accuracy by up to 4.35" in note


def test_a_part_with_one_class_and_an_empty_group():
    labels, probabilities = np.zeros(20, int), np.tile([0.8, 0.2], (20, 1))
    scores = score(labels, probabilities, ["A", "B"], Groups("r", ("head", "tail")), [9, 1])
    values = {key: entry["value"] for key, entry in scores["metrics"].items()}
    empty = {key for key, value in values.items() if value is None}
    assert empty == {"auc", "kappa", "bacc_medium", "bacc_tail"}
    notes = "\n".join(scores["notes"])
    assert "medium cannot be computed: no class of this part is medium by the rule" in notes
    assert "tail cannot be computed: no class of this part has an image" in notes
    assert "AUC cannot be computed" in notes
    assert "kappa cannot be computed" in notes


def test_format_scores_shows_values_intervals_notes_and_definitions():
    scores = scored((200, 80, 40, 3, 1, 0))
    text = format_scores(scores)
    entry = scores["metrics"]["balanced_accuracy"]
    line = next(x for x in text.splitlines() if x.startswith("Balanced accuracy "))
    assert line.split()[2:] == [
        *(f"{entry['value']:.3f}", f"{entry['low']:.3f}", "to", f"{entry['high']:.3f}")
    ]
    absent = next(x for x in text.splitlines() if x.startswith("AN "))
    assert absent.split() == ["AN", "tail", "5", "0", *["-"] * 6]
    flat = " ".join(text.split())
    for text_of in scores["definitions"].values():
        assert text_of["definition"] in flat
    for note in scores["notes"]:
        assert note in flat


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, p: (y, p[:-1]), r"must be \(N, K\) = \(358, 6\).* they are \(357, 6\)"),
        (lambda y, p: (y, p[:, :5]), r"they are \(358, 5\)"),
        (lambda y, p: (y[:0], p[:0]), "no image to score"),
        (lambda y, p: (y.astype(float), p), "labels must be whole numbers"),
        (lambda y, p: (np.where(y == 5, 6, y), p), "row 347 is 6 .11 such rows."),
        (lambda y, p: (y, np.log(p)), "lie from 0 to 1 in every row; row 0 .*not logits"),
        (lambda y, p: (y, p * 0.9), "sum to 1 within 0.001"),
        (lambda y, p: (y, np.where(p == p[3, 2], np.nan, p)), "be finite in every row; row 3"),
        (lambda y, p: (y, np.where(p > 0.5, np.inf, -np.inf)), "be finite in every row; row 0"),
    ],
)
def test_bad_predictions_are_refused(change, message):
    groups = assign_groups(TRAIN, CLASSES, "thirds")
    with pytest.raises(LmdError, match=message):
        score(*change(*predictions()), CLASSES, groups, TRAIN)


def test_groups_and_training_counts_must_fit_the_classes():
    groups = assign_groups(TRAIN, CLASSES, "thirds")
    with pytest.raises(LmdError, match="train_counts must have one entry for each of the 6"):
        score(*predictions(), CLASSES, groups, TRAIN[:5])
    with pytest.raises(LmdError, match="groups must have one entry for each of the 6"):
        score(*predictions(), CLASSES, Groups("r", ("head",)), TRAIN)


def test_a_group_that_is_all_wrong_has_an_honest_interval() -> None:
    """Resampling 60 misses gives 60 misses: an interval of no width would be a false certainty."""
    labels = np.repeat([0, 1, 2], 60)
    probabilities = np.tile([0.8, 0.1, 0.1], (180, 1))
    groups = Groups("test", ("head", "medium", "tail"))
    found = score(labels, probabilities, ("a", "b", "c"), groups, [9, 3, 1], resamples=50)
    tail = found["metrics"]["bacc_tail"]
    assert tail["value"] == tail["low"] == 0
    assert tail["high"] == pytest.approx(wilson(0, 60)[1])
    assert found["metrics"]["balanced_accuracy"]["high"] > 1 / 3
