"""Labels and probabilities of a part, and the registry of metrics with formulas and definitions.

A resample is a weight for every image, so one formula gives a metric's value (all weights 1) and
its bootstrap (R rows of weights). What several metrics need is computed once. Means over classes
leave out classes without images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.proportions import Floats, Labels, Probabilities
from lmd.scoring.tiers import TIERS

PER_CLASS = ("recall", "precision", "f1")  # of ``Weighted``; shown in per cent
ECE_BINS = 15
Indices = NDArray[np.intp]


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> NDArray[np.int64]:
    """Count images of each true class (rows) by predicted class (columns), ``(K, K)``.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    array([[1, 1],
           [0, 1]])
    """
    cells = labels.astype(np.int64) * classes + predicted
    counts = np.bincount(cells, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def class_rates(confusion: NDArray[np.int64] | Floats) -> tuple[Floats, Floats, Floats]:
    """Return recall, precision and F1 of each class, ``(…, K)``; nan for one without images.

    The precision of a class that is never predicted is 0.
    """
    hits: NDArray[Any] = np.diagonal(confusion, axis1=-2, axis2=-1)
    support, predicted = confusion.sum(-1), confusion.sum(-2)
    precision = np.where(support > 0, _ratio(hits, predicted, empty=0.0), np.nan)
    f1 = np.where(support > 0, _ratio(2 * hits, support + predicted), np.nan)
    return _ratio(hits, support), precision, f1


def mean_over_classes(values: Floats) -> Floats:
    """Return the mean ``(…,)`` of ``(…, K)`` without nan; nan if all are."""
    valid = ~np.isnan(values)
    return _ratio(np.where(valid, values, 0.0).sum(-1), valid.sum(-1))


def class_recalls(labels: Labels, predicted: Labels, classes: int) -> Floats:
    """Return the recall of each class, ``(K,)``, from labels and predicted classes ``(N,)``."""
    return class_rates(confusion_matrix(labels, predicted, classes))[0]


def mean_recall(labels: Labels, predicted: Labels) -> float:
    """Return the mean recall of the classes among ``labels (N,)``: balanced accuracy.

    >>> mean_recall(np.array([0, 0, 2]), np.array([0, 1, 2]))
    0.75
    """
    classes = 1 + max(labels.max(initial=0), predicted.max(initial=0))
    return float(mean_over_classes(class_recalls(labels, predicted, int(classes))))


def _ratio(part: Any, whole: Any, empty: float = np.nan) -> Floats:
    """Return ``part / whole``, and ``empty`` where the whole is 0."""
    ratio = np.full(np.shape(whole), empty)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


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
        order = np.argsort(labels, kind="stable")
        self.labels = labels[order]
        self.probabilities: Floats = probabilities[order].astype(np.float64)
        self.groups = None if groups is None else groups[order]
        self.tiers = np.array([""] * classes if tiers is None else tiers)
        self.support = np.bincount(labels, minlength=classes)
        self.predicted: Indices = self.probabilities.argmax(axis=1)
        self.right: NDArray[np.bool_] = self.predicted == self.labels
        self.confidence: Floats = self.probabilities.max(axis=1)
        self.bins = np.searchsorted(np.linspace(0, 1, ECE_BINS + 1)[1:-1], self.confidence)
        self.rows = [slice(a, b) for a, b in pairwise(np.cumsum([0, *self.support]).tolist())]

    def members(self, tier: str | None) -> NDArray[np.bool_]:
        """Return whether each class is of a tier, ``(K,)``; all are of ``None``."""
        return np.full(len(self.tiers), True) if tier is None else self.tiers == tier

    def groups_in(self, rows: slice | NDArray[np.bool_]) -> NDArray[np.integer[Any]] | None:
        """Return the groups of some rows, if groups are known."""
        return None if self.groups is None else self.groups[rows]

    @cached_property
    def units(self) -> Indices:
        """The number of patients or lesions of each class, ``(K,)``; without groups, of images."""
        if self.groups is None:
            return self.support
        return np.array([len(np.unique(self.groups[rows])) for rows in self.rows])

    @cached_property
    def one_hot(self) -> Floats:
        """The predicted class of each image, one-hot ``(N, K)``."""
        return np.eye(len(self.support))[self.predicted]

    @cached_property
    def gaps(self) -> Floats:
        """Hit minus confidence of each image, in the column of its bin, ``(N, ECE_BINS)``."""
        gaps = np.zeros((len(self.labels), ECE_BINS))
        gaps[np.arange(len(self.labels)), self.bins] = self.right - self.confidence
        return gaps

    @cached_property
    def rankings(self) -> list[tuple[slice, Indices, Indices, Indices, Indices]]:
        """The order of images by the probability of each class that has any: five parts.

        First the rows of the class. Second all other rows from low to high, cut into blocks
        that begin at the third; no image of the class is inside a block. Fourth and fifth, for each
        image of the class, how many blocks of others have a lower, and a lower or equal,
        probability.
        """
        rankings = []
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
            below, up_to = (np.searchsorted(starts, places) for places in (below, up_to))
            rankings.append((self.rows[k], others, starts, below, up_to))
        return rankings

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
            [weights[:, rows] @ sample.one_hot[rows] for rows in sample.rows], axis=1
        )
        self.support: Floats = self.confusion.sum(axis=2)
        self.predicted: Floats = self.confusion.sum(axis=1)
        self.images: Floats = self.support.sum(axis=1)
        self.hits: Floats = np.trace(self.confusion, axis1=1, axis2=2)
        self.recall, self.precision, self.f1 = class_rates(self.confusion)


def mean_recall_of(drawn: Weighted, tier: str | None = None) -> Floats:
    """Return the mean recall of the classes of a tier, or of all; nan if none is present."""
    return mean_over_classes(drawn.recall[:, drawn.sample.members(tier)])


def macro_auc(drawn: Weighted) -> Floats:
    """Return the mean one-vs-rest area under the ROC curve of the classes present.

    The area is the share of pairs (image of the class, image of another class) that the class's
    probability orders correctly, where ties count half (Mann and Whitney 1947). It is found by
    cumulative sums of weights, and nan if only one class is present.
    """
    rankings = drawn.sample.rankings
    if len(rankings) < 2:
        return np.full(len(drawn.weights), np.nan)
    areas, weights = np.zeros(len(drawn.weights)), drawn.weights.T
    for rows, others, starts, below, up_to in rankings:
        sums = np.zeros((len(starts) + 1, len(areas)))
        np.cumsum(np.add.reduceat(weights[others], starts, axis=0), axis=0, out=sums[1:])
        inside = weights[rows]
        ordered = np.einsum("nr,nr->r", inside, sums[below] + sums[up_to])
        areas += ordered / (2 * inside.sum(axis=0) * sums[-1])
    return areas / len(rankings)


def quadratic_kappa(drawn: Weighted) -> Floats:
    """Return Cohen's kappa with weights ``(i - j)²`` (1968); nan without possible disagreement."""
    index = np.arange(drawn.confusion.shape[1])
    cost = ((index[:, None] - index) ** 2).astype(np.float64)
    by_chance = np.einsum("ri,ij,rj->r", drawn.support, cost, drawn.predicted, optimize=True)
    observed = np.einsum("rij,ij->r", drawn.confusion, cost) * drawn.images
    return 1 - _ratio(observed, by_chance)


def mcc(drawn: Weighted) -> Floats:
    """Return Matthews' correlation for K classes (Gorodkin 2004).

    It is 0 if only one class is true or predicted.
    """
    true, predicted, images = drawn.support, drawn.predicted, drawn.images
    agreement = images * drawn.hits - (true * predicted).sum(1)
    spread = np.sqrt((images**2 - (true**2).sum(1)) * (images**2 - (predicted**2).sum(1)))
    return _ratio(agreement, spread, empty=0.0)


def expected_calibration_error(drawn: Weighted) -> Floats:
    """Return the mean gap between top probability and accuracy over equal-width bins.

    Guo et al. 2017, equations 2 and 3.
    """
    return np.asarray(np.abs(drawn.weights @ drawn.sample.gaps).sum(axis=1) / drawn.images)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a part: its formula, titles and definition.

    ``short`` is the title in tables, where a ``rate`` is shown in per cent. ``undefined`` says when
    it cannot be computed. ``mean_of`` marks means over the classes of ``tier``, or over all; those
    of an area under a curve have no limits for each class.
    """

    key: str
    title: str
    short: str
    definition: str
    function: Callable[[Weighted], Floats]
    rate: bool = True
    higher_is_better: bool = True
    undefined: str = ""
    mean_of: Literal["recall", "precision", "f1", "area"] | None = None
    tier: str | None = None

    def value(self, sample: Sample) -> float:
        """Return the value on a sample; nan where it cannot be computed."""
        return float(self.function(sample.plain)[0])


_ABSENT = "Classes without images in the part are left out of the mean, and a note names them."
_NEVER = "The precision of a class that is never predicted is 0."

_METRICS = (
    Metric(
        key="auc",
        title="Macro AUC",
        short="AUC",
        definition="Mean over classes of the area under the one-vs-rest ROC curve of the class's "
        f"probability; tied probabilities count half. {_ABSENT}",
        function=macro_auc,
        mean_of="area",
        rate=False,
        undefined="all images are of one class",
    ),
    Metric(
        key="balanced_accuracy",
        title="Balanced accuracy",
        short="BACC",
        definition="Mean over classes of the recall: rare and frequent classes weigh the same. "
        + _ABSENT,
        function=mean_recall_of,
        mean_of="recall",
    ),
    Metric(
        key="macro_f1",
        title="Macro F1",
        short="F1",
        definition="Mean over classes of F1, the harmonic mean of precision and recall. "
        f"{_NEVER} {_ABSENT}",
        function=lambda drawn: mean_over_classes(drawn.f1),
        mean_of="f1",
    ),
    Metric(
        key="kappa",
        title="Quadratic kappa",
        short="Kappa",
        definition="Cohen's kappa with quadratic weights: a confusion of classes i and j costs "
        "(i - j)². It depends on the order in which the classes are listed, so for diagnoses "
        "without a natural order compare it only between runs with the same order. It cannot be "
        "computed if all images are of one class and predicted as that class.",
        function=quadratic_kappa,
        rate=False,
        undefined="all images are of one class and predicted as that class",
    ),
    Metric(
        key="macro_precision",
        title="Macro precision",
        short="Precision",
        definition=f"Mean over classes of the precision. {_NEVER} {_ABSENT}",
        function=lambda drawn: mean_over_classes(drawn.precision),
        mean_of="precision",
    ),
    Metric(
        key="macro_recall",
        title="Macro recall",
        short="Recall",
        definition="Mean over classes of the recall: the same number as balanced accuracy. "
        + _ABSENT,
        function=mean_recall_of,
        mean_of="recall",
    ),
    Metric(
        key="accuracy",
        title="Accuracy",
        short="Accuracy",
        definition="Share of images that are predicted right; frequent classes dominate it.",
        function=lambda drawn: drawn.hits / drawn.images,
    ),
    Metric(
        key="mcc",
        title="MCC",
        short="MCC",
        definition="Matthews' correlation coefficient between true and predicted classes; 0 if all "
        "images are of one class or all are predicted as one class.",
        function=mcc,
        rate=False,
    ),
    Metric(
        key="ece",
        title="ECE",
        short="ECE",
        definition=f"Expected calibration error: over {ECE_BINS} equal-width bins of the top "
        "probability, the mean gap between that probability and the accuracy, weighted by images. "
        "Lower is better; in a small part it is biased upwards.",
        function=expected_calibration_error,
        rate=False,
        higher_is_better=False,
    ),
    *(
        Metric(
            key=f"bacc_{tier}",
            title=f"Balanced accuracy, {tier}",
            short=tier.capitalize(),
            definition=f"Mean recall over the {tier} classes, by the rule declared for the run. "
            + _ABSENT,
            function=partial(mean_recall_of, tier=tier),
            undefined=f"no class of the {tier} has an image in this part",
            mean_of="recall",
            tier=tier,
        )
        for tier in TIERS
    ),
)
METRICS: dict[str, Metric] = {metric.key: metric for metric in _METRICS}
