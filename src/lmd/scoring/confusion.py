"""Confusion matrices ``(…, K, K)`` with true classes as rows, and scores of each class."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Confusion = NDArray[np.int64] | Floats


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> NDArray[np.int64]:
    """Images of each true class (rows) by predicted class (columns), ``(K, K)``.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    array([[1, 1],
           [0, 1]])
    """
    cells = labels.astype(np.int64) * classes + predicted
    counts = np.bincount(cells, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def recalls(confusion: Confusion) -> Floats:
    """Share of each class's images that are predicted right, ``(…, K)``; nan without images."""
    return _share(_hits(confusion), confusion.sum(-1))


def precisions(confusion: Confusion) -> Floats:
    """Share of each class's predictions that are right, ``(…, K)``.

    0 for a class that is never predicted, nan for a class without images.
    """
    found = _share(_hits(confusion), confusion.sum(-2), empty=0.0)
    return np.where(confusion.sum(-1) > 0, found, np.nan)


def f1s(confusion: Confusion) -> Floats:
    """Harmonic mean of precision and recall of each class, ``(…, K)``; nan without images."""
    support = confusion.sum(-1)
    found = _share(2 * _hits(confusion), support + confusion.sum(-2))
    return np.where(support > 0, found, np.nan)


def mean_over_classes(values: Floats) -> Floats:
    """Mean ``(…,)`` of the values ``(…, K)``, without those that are nan; nan if all are."""
    known = ~np.isnan(values)
    return _share(np.where(known, values, 0.0).sum(-1), known.sum(-1))


def class_recalls(labels: Labels, predicted: Labels, classes: int) -> Floats:
    """Recall of each class, ``(K,)``, from labels and predicted classes ``(N,)``."""
    return recalls(confusion_matrix(labels, predicted, classes))


def mean_recall(labels: Labels, predicted: Labels) -> float:
    """Mean recall of the classes among ``labels (N,)``: balanced accuracy.

    >>> mean_recall(np.array([0, 0, 2]), np.array([0, 1, 2]))
    0.75
    """
    classes = 1 + max(labels.max(initial=0), predicted.max(initial=0))
    return float(mean_over_classes(class_recalls(labels, predicted, int(classes))))


def _hits(confusion: Confusion) -> NDArray[Any]:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _share(part: Any, whole: Any, empty: float = np.nan) -> Floats:
    """``part / whole``, and ``empty`` where the whole is 0."""
    found = np.full(np.shape(whole), empty)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
