import math
import warnings

import numpy as np
import pytest
from sklearn import metrics as sk
from toys import toy_predictions

from lmd.scoring.metrics import METRICS, PER_CLASS, Sample, Weighted

# Fifteen images of four classes; the values are scikit-learn's.
TRUE = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3])
PREDICTED = np.array([0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 2, 0, 2, 3, 0])
TIERS = ("head", "medium", "medium", "tail")
VALUES = {
    "balanced_accuracy": 0.6875,
    "macro_recall": 0.6875,
    "macro_f1": 0.7327381,
    "kappa": 0.5243129,
    "mcc": 0.6213824,
    "macro_precision": 0.84375,
    "accuracy": 11 / 15,
    # Head one class, medium two, tail one: 83.3, 70.8 and 50.0 percent.
    "bacc_head": 5 / 6,
    "bacc_medium": (3 / 4 + 2 / 3) / 2,
    "bacc_tail": 1 / 2,
}


def certain(predicted, classes):
    return np.eye(classes)[predicted]


def value(key, labels, probabilities, tiers=None):
    return METRICS[key].value(Sample(labels, probabilities, tiers))


def case(name, seed):
    classes = 2 if name == "binary" else 3 + seed % 6
    labels, probabilities = toy_predictions((12,) * classes, seed=seed)
    if name == "absent class":
        labels[labels == 1] = 0
    if name == "never predicted":
        probabilities[:, 0] *= 1e-4
    if name == "one prediction":
        probabilities[:, 1] += 20
    probabilities /= probabilities.sum(1, keepdims=True)
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
        assert value(key, labels, probabilities) == pytest.approx(expected, abs=1e-12), key


@pytest.mark.parametrize("name", CASES)
def test_weights_are_repeated_images(name):
    labels, probabilities = case(name, 2)
    tiers = ["head", "medium", "tail", "tail", "tail"][: probabilities.shape[1]]
    times = np.random.default_rng(0).integers(1, 4, (5, len(labels)))
    sample = Sample(labels, probabilities, tiers)
    order = np.argsort(labels, kind="stable")
    weighted = Weighted(sample, times[:, order].astype(float))
    for row, often in enumerate(times):
        again = Sample(np.repeat(labels, often), np.repeat(probabilities, often, axis=0), tiers)
        for key, metric in METRICS.items():
            found = metric.function(weighted)[row]
            assert found == pytest.approx(metric.value(again), abs=1e-12, nan_ok=True), key
        for key in PER_CLASS:
            np.testing.assert_allclose(getattr(weighted, key)[row], getattr(again.plain, key)[0])


@pytest.mark.parametrize("seed", range(4))
def test_balanced_accuracy_and_macro_auc_equal_scikit_learns_own_averages(seed):
    labels, probabilities = case("plain", seed)
    assert value("balanced_accuracy", labels, probabilities) == pytest.approx(
        sk.balanced_accuracy_score(labels, probabilities.argmax(1))
    )
    assert value("auc", labels, probabilities) == pytest.approx(
        sk.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    )


def test_the_known_example():
    for key, expected in VALUES.items():
        found = value(key, TRUE, certain(PREDICTED, 4), TIERS)
        assert found == pytest.approx(expected, abs=1e-7), key


def test_reference_vectors(vectors):
    vector = vectors["metrics_groups"]
    sample = Sample(np.array(vector["y_true"]), certain(np.array(vector["y_pred"]), 4), TIERS)
    names = {"kappa": "quadratic_kappa"}
    for key in ("balanced_accuracy", "macro_f1", "kappa", "mcc", "macro_precision"):
        expected = vector[names.get(key, key)]
        assert METRICS[key].value(sample) == pytest.approx(expected, rel=1e-6), key
    np.testing.assert_allclose(sample.plain.recall[0], vector["per_class_recall"], rtol=1e-6)
    tiers = [100 * METRICS[f"bacc_{tier}"].value(sample) for tier in ("head", "medium", "tail")]
    assert tiers == pytest.approx(vector["monica_official[head,med,tail,avg]%"][:3], rel=1e-6)


def test_ece_equals_a_loop_over_bins():
    labels, probabilities = case("plain", 5)
    top, right = probabilities.max(1), probabilities.argmax(1) == labels
    expected = 0.0
    for b in range(15):
        inside = (top > b / 15) & (top <= (b + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - top[inside].mean())
    assert value("ece", labels, probabilities) == pytest.approx(expected)


def test_ece_at_its_limits():
    labels = np.array([0, 1, 1, 0])
    assert value("ece", labels, certain(labels, 2)) == 0
    assert value("ece", labels, certain(1 - labels, 2)) == 1
    assert value("ece", labels, np.full((4, 2), 0.5)) == pytest.approx(0)


def test_one_class_only():
    sample = Sample(np.zeros(5, int), np.tile([0.9, 0.1], (5, 1)), ("head", "tail"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = {key: metric.value(sample) for key, metric in METRICS.items()}
    undefined = {key for key, found in values.items() if math.isnan(found)}
    assert undefined == {"auc", "kappa", "bacc_medium", "bacc_tail"}
    assert undefined <= {key for key, metric in METRICS.items() if metric.undefined}
    assert (values["mcc"], values["balanced_accuracy"]) == (0, 1)


def test_without_tiers_there_is_no_mean_over_one():
    assert math.isnan(value("bacc_head", TRUE, certain(PREDICTED, 4)))


def test_uninformative_scores_have_an_auc_of_one_half():
    assert value("auc", TRUE, np.full((15, 4), 0.25)) == 0.5


def test_the_registry_says_how_a_metric_is_shown():
    for key, metric in METRICS.items():
        assert metric.key == key
        assert metric.title
        assert metric.short
        assert metric.definition.endswith(".")
    shown = {key for key, metric in METRICS.items() if not metric.rate}
    assert shown == {"auc", "kappa", "mcc", "ece"}
    assert [key for key, metric in METRICS.items() if not metric.higher_is_better] == ["ece"]
    means = {key for key, metric in METRICS.items() if metric.mean_of == "recall"}
    tiers = {"bacc_head", "bacc_medium", "bacc_tail"}
    assert means == {"balanced_accuracy", "macro_recall"} | tiers
    assert METRICS["bacc_tail"].short == "Tail"
    for key in ("auc", "macro_f1", "macro_precision", *means):
        assert "without images" in METRICS[key].definition
    for key in ("macro_f1", "macro_precision"):
        assert "never predicted is 0" in METRICS[key].definition
