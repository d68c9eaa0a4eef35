"""What a classifier is measured by: functions of labels ``(N,)`` and probabilities ``(N, K)``.

The predicted class is the most probable one, the first of several that are equally probable. A
class without an image in the part has no recall: its own values are nan, macro metrics average
over the classes that are present, and ``absent_classes`` names the rest so that a reader is told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]
Probabilities = NDArray[np.floating[Any]]

ECE_BINS = 15


def confusion_matrix(labels: Labels, probabilities: Probabilities) -> NDArray[np.int64]:
    """Images of each true class (rows) that were given each class (columns), ``(K, K)``.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]))
    array([[1, 1],
           [0, 1]])
    """
    classes = probabilities.shape[1]
    cells = labels.astype(np.int64) * classes + probabilities.argmax(axis=1)
    counts = np.bincount(cells, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def absent_classes(labels: Labels, classes: int) -> list[int]:
    """The classes of ``range(classes)`` without an image.

    >>> absent_classes(np.array([0, 2, 2]), 4)
    [1, 3]
    """
    return np.flatnonzero(np.bincount(labels, minlength=classes) == 0).tolist()


@dataclass(frozen=True)
class PerClass:
    """``recall``, ``precision``, ``f1`` and ``support``, each ``(K,)``; nan for an absent class."""

    recall: NDArray[np.float64]
    precision: NDArray[np.float64]
    f1: NDArray[np.float64]
    support: NDArray[np.int64]


def per_class(labels: Labels, probabilities: Probabilities) -> PerClass:
    """Recall, precision and F1 of every class; the precision of a class never predicted is 0."""
    confusion = confusion_matrix(labels, probabilities)
    support, predicted, hits = confusion.sum(1), confusion.sum(0), confusion.diagonal()
    present = support > 0
    recall, precision, f1 = (np.full(len(confusion), np.nan) for _ in range(3))
    recall[present] = hits[present] / support[present]
    precision[present] = hits[present] / np.maximum(predicted[present], 1)
    f1[present] = 2 * hits[present] / (support + predicted)[present]
    return PerClass(recall, precision, f1, support)


def accuracy(labels: Labels, probabilities: Probabilities) -> float:
    """The share of images that were given their class."""
    return float(np.mean(probabilities.argmax(axis=1) == labels))


def balanced_accuracy(labels: Labels, probabilities: Probabilities) -> float:
    """The mean recall of the classes present."""
    return float(np.nanmean(per_class(labels, probabilities).recall))


def macro_precision(labels: Labels, probabilities: Probabilities) -> float:
    """The mean precision of the classes present."""
    return float(np.nanmean(per_class(labels, probabilities).precision))


def macro_f1(labels: Labels, probabilities: Probabilities) -> float:
    """The mean F1 of the classes present."""
    return float(np.nanmean(per_class(labels, probabilities).f1))


def group_balanced_accuracy(
    labels: Labels, probabilities: Probabilities, members: Sequence[int]
) -> float:
    """The mean recall of those of the classes ``members`` that are present; nan without one."""
    recall = per_class(labels, probabilities).recall[list(members)]
    recall = recall[~np.isnan(recall)]
    return float(recall.mean()) if len(recall) else float("nan")


def macro_auc(labels: Labels, probabilities: Probabilities) -> float:
    """The mean one-vs-rest area under the ROC curve of the classes present; ties count half.

    The area is the share of pairs (image of the class, image of another) that the class's
    probability puts in the right order (Mann and Whitney 1947). nan if only one class is present.
    """
    areas = []
    for k in np.unique(labels):
        inside, outside = labels == k, np.sort(probabilities[labels != k, k])
        if len(outside) == 0:
            return float("nan")
        scores = probabilities[inside, k]
        below = np.searchsorted(outside, scores, side="left")
        below_or_tied = np.searchsorted(outside, scores, side="right")
        areas.append(np.mean(below + below_or_tied) / (2 * len(outside)))
    return float(np.mean(areas))


def quadratic_kappa(labels: Labels, probabilities: Probabilities) -> float:
    """Cohen's kappa with weights ``(i - j)²`` (Cohen 1968); nan if no disagreement is possible."""
    confusion = confusion_matrix(labels, probabilities)
    index = np.arange(len(confusion))
    weights = (index[:, None] - index[None, :]) ** 2
    expected = np.outer(confusion.sum(1), confusion.sum(0)) / confusion.sum()
    by_chance = np.sum(weights * expected)
    if by_chance == 0:
        return float("nan")
    return float(1 - np.sum(weights * confusion) / by_chance)


def mcc(labels: Labels, probabilities: Probabilities) -> float:
    """Matthews' correlation for K classes (Gorodkin 2004); 0 where a side has only one class."""
    confusion = confusion_matrix(labels, probabilities).astype(np.float64)
    true, predicted, images = confusion.sum(1), confusion.sum(0), confusion.sum()
    spread = (images**2 - true @ true) * (images**2 - predicted @ predicted)
    if spread == 0:
        return 0.0
    return float((images * confusion.trace() - true @ predicted) / np.sqrt(spread))


def expected_calibration_error(labels: Labels, probabilities: Probabilities) -> float:
    """The mean gap between top probability and accuracy over equal-width bins (Guo et al. 2017)."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    gap = (probabilities.argmax(axis=1) == labels) - confidence
    edges = np.linspace(0, 1, ECE_BINS + 1)[1:-1]
    bins = np.searchsorted(edges, confidence, side="left")
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / len(labels))


@dataclass(frozen=True)
class Metric:
    """One number for a part: its ``function(labels, probabilities)`` and what to tell a reader."""

    key: str
    title: str
    definition: str
    function: Callable[[Labels, Probabilities], float]


@dataclass(frozen=True)
class GroupMetric:
    """Balanced accuracy of one ``group`` of classes, and what to tell a reader."""

    key: str
    title: str
    definition: str
    group: str


_ABSENT = "A class without an image in the part is left out of the mean, and a note names it."
_NEVER = "The precision of a class that is never predicted is 0."

METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric(
            "auc",
            "Macro AUC",
            "Mean over classes of the area under the one-vs-rest ROC curve of the class's "
            "probability; tied probabilities count half. " + _ABSENT,
            macro_auc,
        ),
        Metric(
            "balanced_accuracy",
            "Balanced accuracy",
            "Mean over classes of the recall, so that every class weighs the same however rare. "
            + _ABSENT,
            balanced_accuracy,
        ),
        Metric(
            "macro_f1",
            "Macro F1",
            "Mean over classes of F1, the harmonic mean of precision and recall. "
            f"{_NEVER} {_ABSENT}",
            macro_f1,
        ),
        Metric(
            "kappa",
            "Quadratic kappa",
            "Cohen's kappa with quadratic weights: a confusion of classes i and j costs (i - j)². "
            "It depends on the order in which the classes are listed, so for diagnoses without a "
            "natural order compare it only between runs with the same order. Not computable if "
            "all images are of one class and all are given it.",
            quadratic_kappa,
        ),
        Metric(
            "macro_precision",
            "Macro precision",
            f"Mean over classes of the precision. {_NEVER} {_ABSENT}",
            macro_precision,
        ),
        Metric(
            "macro_recall",
            "Macro recall",
            "Mean over classes of the recall: the same number as balanced accuracy. " + _ABSENT,
            balanced_accuracy,
        ),
        Metric(
            "accuracy",
            "Accuracy",
            "Share of images that were given their class; frequent classes dominate it.",
            accuracy,
        ),
        Metric(
            "mcc",
            "MCC",
            "Matthews' correlation coefficient between true and predicted classes; 0 if all images "
            "are of one class or all are given one class.",
            mcc,
        ),
        Metric(
            "ece",
            "ECE",
            f"Expected calibration error: over {ECE_BINS} equal-width bins of the top probability, "
            "the mean gap between that probability and the accuracy, weighted by images. Lower is "
            "better; in a small part it is biased upwards.",
            expected_calibration_error,
        ),
    )
}

GROUP_METRICS: dict[str, GroupMetric] = {
    f"bacc_{group}": GroupMetric(
        f"bacc_{group}",
        f"Balanced accuracy, {group}",
        f"Mean recall over the {group} classes, by the rule declared for the run. {_ABSENT}",
        group,
    )
    for group in ("head", "medium", "tail")
}
