"""Labels and probabilities of a part, and counts of its confusion matrix.

A resample is a weight for every image, so one formula gives a metric's value (all weights 1) and
its bootstrap (R rows of weights). What several metrics need is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.proportions import Floats, Labels, Probabilities

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


ECE_BINS = 15


@dataclass(frozen=True)
class Ranking:
    """The order of the images of one class and all others by the probability of that class.

    ``others`` are rows from low to high, cut into blocks that begin at ``starts``; no image of the
    class is inside a block. ``below`` and ``up_to`` count, for each image of the class, the blocks
    of others with a lower, and with a lower or equal, probability.
    """

    own: slice
    others: NDArray[np.intp]
    starts: NDArray[np.intp]
    below: NDArray[np.intp]
    up_to: NDArray[np.intp]


class Sample:
    """Labels ``(N,)`` and probabilities ``(N, K)``; rows are kept sorted by true class.

    The predicted class is the most probable one; of several, the first. ``tiers (K,)`` are the
    tiers of the classes, ``groups (N,)`` number the patients or lesions. ``confidence (N,)`` is the
    highest probability of each image, ``bins (N,)`` its bin ``(left, right]`` (Guo et al. 2017).
    """

    def __init__(
        self,
        labels: Labels,
        probabilities: Probabilities,
        tiers: Sequence[str] | None = None,
        groups: NDArray[Any] | None = None,
    ) -> None:
        images, classes = probabilities.shape
        if labels.shape != (images,) or images == 0:
            raise LmdError(
                "labels and probabilities must have one row per image and at least one image; "
                f"they are {labels.shape} and {probabilities.shape}"
            )
        if tiers is not None and len(tiers) != classes:
            raise LmdError(f"tiers must have one entry for each of the {classes} classes")
        if groups is not None and groups.shape != (images,):
            raise LmdError(f"groups must be ({images},), one for each image; it is {groups.shape}")
        order = np.argsort(labels, kind="stable")
        self.labels = labels[order]
        self.probabilities: Floats = probabilities[order].astype(np.float64)
        self.groups = None if groups is None else groups[order]
        self.tiers = np.array([""] * classes if tiers is None else tiers)
        self.support = np.bincount(labels, minlength=classes)
        self.predicted: NDArray[np.intp] = self.probabilities.argmax(axis=1)
        self.right: NDArray[np.bool_] = self.predicted == self.labels
        self.confidence: Floats = self.probabilities.max(axis=1)
        self.bins = np.searchsorted(np.linspace(0, 1, ECE_BINS + 1)[1:-1], self.confidence)
        self.rows = [slice(a, b) for a, b in pairwise(np.cumsum([0, *self.support]).tolist())]

    def members(self, tier: str | None) -> NDArray[np.bool_]:
        """Whether each class is of a tier, ``(K,)``; all are of ``None``."""
        return np.full(len(self.tiers), True) if tier is None else self.tiers == tier

    def groups_in(self, rows: slice | NDArray[np.bool_]) -> NDArray[np.integer[Any]] | None:
        """Return the groups of some rows, if groups are known."""
        return None if self.groups is None else self.groups[rows]

    def groups_of(self, k: int) -> NDArray[np.intp]:
        """For each image of a class, the number of its patient or lesion, counted from 0."""
        own = np.arange(self.support[k]) if self.groups is None else self.groups[self.rows[k]]
        return np.unique(own, return_inverse=True)[1]

    @cached_property
    def one_hot(self) -> Floats:
        """The predicted class of each image, one-hot ``(N, K)``."""
        return np.eye(len(self.support))[self.predicted]

    @cached_property
    def gaps(self) -> Floats:
        """Hit minus confidence of each image, in the column of its bin, ``(N, ECE_BINS)``."""
        found = np.zeros((len(self.labels), ECE_BINS))
        found[np.arange(len(self.labels)), self.bins] = self.right - self.confidence
        return found

    @cached_property
    def rankings(self) -> list[Ranking]:
        """One ranking for each class with images."""
        found = []
        for k in np.flatnonzero(self.support):
            scores = self.probabilities[:, k]
            others = np.flatnonzero(self.labels != k)
            others = others[np.argsort(scores[others], kind="stable")]
            below, up_to = (
                np.searchsorted(scores[others], scores[self.rows[k]], side=side)
                for side in ("left", "right")
            )
            starts = np.unique(np.concatenate([[0], below, up_to]))
            starts = starts[starts < len(others)]
            blocks = (np.searchsorted(starts, places) for places in (below, up_to))
            found.append(Ranking(self.rows[k], others, starts, *blocks))
        return found

    @cached_property
    def plain(self) -> "Weighted":
        """The sample with all weights 1."""
        return Weighted(self, np.ones((1, len(self.labels))))


class Weighted:
    """A sample under R rows of image ``weights (R, N)``.

    ``confusion (R, K, K)`` has true classes as rows; ``support`` and ``predicted (R, K)`` are its
    row and column sums, ``images`` and ``hits (R,)`` the totals. ``recall``, ``precision`` and
    ``f1 (R, K)`` are nan for a class without images.
    """

    def __init__(self, sample: Sample, weights: Floats) -> None:
        self.sample, self.weights = sample, weights
        self.confusion: Floats = np.stack(
            [weights[:, own] @ sample.one_hot[own] for own in sample.rows], axis=1
        )
        self.support: Floats = self.confusion.sum(axis=2)
        self.predicted: Floats = self.confusion.sum(axis=1)
        self.images: Floats = self.support.sum(axis=1)
        self.hits: Floats = np.trace(self.confusion, axis1=1, axis2=2)
        self.recall = recalls(self.confusion)
        self.precision = precisions(self.confusion)
        self.f1 = f1s(self.confusion)
