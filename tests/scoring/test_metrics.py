import json
import math
import warnings

import numpy as np
import pytest
from sklearn import metrics as sk
from toys import VECTORS

from lmd.scoring.metrics import (
    GROUP_METRICS,
    METRICS,
    absent_classes,
    confusion_matrix,
    expected_calibration_error,
    group_balanced_accuracy,
    macro_auc,
    mcc,
    per_class,
    quadratic_kappa,
)

REFERENCE = VECTORS

# Fifteen images of four classes; the values are scikit-learn's.
TRUE = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3])
PREDICTED = np.array([0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 2, 0, 2, 3, 0])
VALUES = {
    "balanced_accuracy": 0.6875,
    "macro_recall": 0.6875,
    "macro_f1": 0.7327381,
    "kappa": 0.5243129,
    "mcc": 0.6213824,
    "macro_precision": 0.84375,
    "accuracy": 11 / 15,
}


def certain(predicted, classes):
    return np.eye(classes)[predicted]


def case(name, seed):
    rng = np.random.default_rng(seed)
    classes = 2 if name == "binary" else int(rng.integers(3, 9))
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, 60)])
    scores = rng.normal(size=(len(labels), classes))
    scores[np.arange(len(labels)), labels] += 1
    if name == "absent class":
        labels[labels == 1] = 0
    if name == "never predicted":
        scores[:, 0] = -9
    if name == "one prediction":
        scores[:, 1] += 20
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    if name == "ties":
        probabilities = np.round(probabilities, 1)
    return labels, probabilities


def scikit(labels, probabilities):
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(1)
    present = np.unique(labels)
    shared = {"labels": present, "average": "macro", "zero_division": 0}
    return {
        "auc": np.mean([sk.roc_auc_score(labels == k, probabilities[:, k]) for k in present]),
        "balanced_accuracy": sk.recall_score(labels, predicted, **shared),
        "macro_recall": sk.recall_score(labels, predicted, **shared),
        "macro_precision": sk.precision_score(labels, predicted, **shared),
        "macro_f1": sk.f1_score(labels, predicted, **shared),
        "kappa": sk.cohen_kappa_score(
            labels, predicted, weights="quadratic", labels=np.arange(classes)
        ),
        "accuracy": sk.accuracy_score(labels, predicted),
        "mcc": sk.matthews_corrcoef(labels, predicted),
    }


CASES = ["plain", "binary", "absent class", "never predicted", "one prediction", "ties"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(8))
def test_every_metric_equals_scikit_learns(name, seed):
    labels, probabilities = case(name, seed)
    for key, expected in scikit(labels, probabilities).items():
        value = METRICS[key].function(labels, probabilities)
        assert value == pytest.approx(expected, abs=1e-12), key


@pytest.mark.parametrize("seed", range(4))
def test_balanced_accuracy_and_macro_auc_equal_scikit_learns_own_averages(seed):
    labels, probabilities = case("plain", seed)
    assert METRICS["balanced_accuracy"].function(labels, probabilities) == pytest.approx(
        sk.balanced_accuracy_score(labels, probabilities.argmax(1))
    )
    assert macro_auc(labels, probabilities) == pytest.approx(
        sk.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    )


@pytest.mark.parametrize("name", CASES)
def test_per_class_values_and_confusion_equal_scikit_learns(name):
    labels, probabilities = case(name, 3)
    classes = probabilities.shape[1]
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        labels, probabilities.argmax(1), labels=np.arange(classes), zero_division=0
    )
    values = per_class(labels, probabilities)
    present = support > 0
    np.testing.assert_array_equal(values.support, support)
    for ours, theirs in ((values.recall, recall), (values.precision, precision), (values.f1, f1)):
        np.testing.assert_allclose(ours[present], theirs[present])
        assert np.isnan(ours[~present]).all()
    np.testing.assert_array_equal(
        confusion_matrix(labels, probabilities),
        sk.confusion_matrix(labels, probabilities.argmax(1), labels=np.arange(classes)),
    )


def test_the_known_example():
    probabilities = certain(PREDICTED, 4)
    for key, expected in VALUES.items():
        assert METRICS[key].function(TRUE, probabilities) == pytest.approx(expected, abs=1e-7), key
    # Head one class, medium two, tail one: 83.3, 70.8 and 50.0 percent.
    groups = [group_balanced_accuracy(TRUE, probabilities, m) for m in ([0], [1, 2], [3])]
    assert groups == pytest.approx([5 / 6, (3 / 4 + 2 / 3) / 2, 1 / 2])


def test_reference_vectors():
    if not REFERENCE.exists():
        pytest.skip("reference_vectors.json is not beside the repository")
    vector = json.loads(REFERENCE.read_text())["vectors"]["metrics_groups"]
    labels = np.array(vector["y_true"])
    probabilities = certain(np.array(vector["y_pred"]), 4)
    names = {"kappa": "quadratic_kappa"}
    for key in ("balanced_accuracy", "macro_f1", "kappa", "mcc", "macro_precision"):
        value = METRICS[key].function(labels, probabilities)
        assert value == pytest.approx(vector[names.get(key, key)], rel=1e-6), key
    np.testing.assert_allclose(
        per_class(labels, probabilities).recall, vector["per_class_recall"], rtol=1e-6
    )
    groups = [100 * group_balanced_accuracy(labels, probabilities, m) for m in ([0], [1, 2], [3])]
    assert groups == pytest.approx(vector["monica_official[head,med,tail,avg]%"][:3], rel=1e-6)


def test_ece_equals_a_loop_over_bins():
    labels, probabilities = case("plain", 5)
    top, right = probabilities.max(1), probabilities.argmax(1) == labels
    expected = 0.0
    for b in range(15):
        inside = (top > b / 15) & (top <= (b + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - top[inside].mean())
    assert expected_calibration_error(labels, probabilities) == pytest.approx(expected)


def test_ece_at_its_limits():
    labels = np.array([0, 1, 1, 0])
    assert expected_calibration_error(labels, certain(labels, 2)) == 0
    assert expected_calibration_error(labels, certain(1 - labels, 2)) == 1
    assert expected_calibration_error(labels, np.full((4, 2), 0.5)) == pytest.approx(0)


def test_one_class_only():
    labels, right = np.zeros(5, int), np.tile([0.9, 0.1], (5, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(macro_auc(labels, right))
        assert math.isnan(quadratic_kappa(labels, right))
        assert mcc(labels, right) == 0
        assert METRICS["balanced_accuracy"].function(labels, right) == 1
        assert math.isnan(group_balanced_accuracy(labels, right, [1]))
        assert math.isnan(group_balanced_accuracy(labels, right, []))
    assert absent_classes(labels, 2) == [1]


def test_an_absent_class_is_neither_dropped_silently_nor_scored_zero():
    labels = np.array([0, 0, 2])
    values = per_class(labels, certain(np.array([0, 1, 2]), 3))
    assert values.recall[0] == 0.5
    assert np.isnan([values.recall[1], values.precision[1], values.f1[1]]).all()
    assert METRICS["macro_recall"].function(labels, certain(np.array([0, 1, 2]), 3)) == 0.75


def test_uninformative_scores_have_an_auc_of_one_half():
    assert macro_auc(TRUE, np.full((15, 4), 0.25)) == 0.5


def test_every_metric_has_a_title_and_a_definition():
    for table in (METRICS, GROUP_METRICS):
        for key, metric in table.items():
            assert metric.key == key
            assert metric.title
            assert metric.definition.endswith(".")
    for key in ("auc", "balanced_accuracy", "macro_f1", "macro_precision", "macro_recall"):
        assert "without an image" in METRICS[key].definition
    for key in ("macro_f1", "macro_precision"):
        assert "never predicted is 0" in METRICS[key].definition
