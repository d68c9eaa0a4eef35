import numpy as np
import pytest
from sklearn import metrics as sk
from toys import toy_predictions

from lmd.scoring.metrics import (
    class_rates,
    class_recalls,
    confusion_matrix,
    mean_over_classes,
    mean_recall,
)


@pytest.mark.parametrize("support", [(40, 25, 12, 6, 3), (9, 8), (30, 0, 9, 1, 2)])
def test_matrix_and_values_of_each_class_equal_scikit_learns(support):
    labels, probabilities = toy_predictions(support, seed=3)
    predicted, classes = probabilities.argmax(1), len(support)
    confusion = confusion_matrix(labels, predicted, classes)
    every = {"labels": np.arange(classes)}
    np.testing.assert_array_equal(confusion, sk.confusion_matrix(labels, predicted, **every))
    precision, recall, f1, images = sk.precision_recall_fscore_support(
        labels, predicted, zero_division=0, **every
    )
    # A stack of matrices gives a row for each.
    stacked = class_rates(np.stack([confusion, 3 * confusion]))
    rates = zip(class_rates(confusion), stacked, (recall, precision, f1), strict=True)
    for found, rows, theirs in rates:
        expected = np.where(images > 0, theirs, np.nan)
        np.testing.assert_allclose(found, expected)
        np.testing.assert_allclose(rows, [expected, expected])


def test_an_absent_class_is_neither_dropped_silently_nor_scored_zero():
    labels, predicted = np.array([0, 0, 2]), np.array([0, 1, 2])
    np.testing.assert_array_equal(class_recalls(labels, predicted, 3), [0.5, np.nan, 1])
    assert mean_recall(labels, predicted) == 0.75
    assert np.isnan(class_rates(confusion_matrix(labels, predicted, 3))[1][1])


def test_a_class_that_is_never_predicted_has_a_precision_of_zero():
    confusion = confusion_matrix(np.array([0, 1]), np.array([0, 0]), 2)
    _, precision, f1 = class_rates(confusion)
    assert precision.tolist() == [0.5, 0]
    assert f1[1] == 0


def test_mean_over_classes():
    values = np.array([[0.2, np.nan, 0.4], [np.nan, np.nan, np.nan]])
    np.testing.assert_allclose(mean_over_classes(values), [0.3, np.nan])
    assert np.isnan(mean_over_classes(np.zeros(0)))


@pytest.mark.parametrize("seed", range(4))
def test_mean_recall_equals_scikit_learns_balanced_accuracy(seed):
    labels, probabilities = toy_predictions(seed=seed)
    predicted = probabilities.argmax(1)
    expected = sk.balanced_accuracy_score(labels, predicted)
    assert mean_recall(labels, predicted) == pytest.approx(expected)
    # A class that is only predicted does not count.
    assert mean_recall(np.array([0, 0, 2]), np.array([0, 3, 1])) == 0.25
