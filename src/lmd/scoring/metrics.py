"""The registry of metrics, each with its formula, titles and definition.

A formula takes a sample under R rows of image weights and returns ``(R,)`` values. Means over
classes leave out classes without images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from lmd.scoring.proportions import Floats
from lmd.scoring.sample import ECE_BINS, Sample, Weighted, mean_over_classes
from lmd.scoring.tiers import TIERS

PER_CLASS = ("recall", "precision", "f1")  # of ``Weighted``; shown in per cent


def mean_recall_of(drawn: Weighted, tier: str | None = None) -> Floats:
    """Mean recall of the classes of a tier, or of all classes; nan if none is present."""
    return mean_over_classes(drawn.recall[:, drawn.sample.members(tier)])


def macro_auc(drawn: Weighted) -> Floats:
    """Mean one-vs-rest area under the ROC curve of the classes present; ties count half.

    The area is the share of pairs (image of the class, image of another class) that the class's
    probability orders correctly (Mann and Whitney 1947), found by cumulative sums of weights.
    nan if only one class is present.
    """
    rankings = drawn.sample.rankings
    if len(rankings) < 2:
        return np.full(len(drawn.weights), np.nan)
    areas, weights = np.zeros(len(drawn.weights)), drawn.weights.T
    for ranking in rankings:
        sums = np.zeros((len(ranking.starts) + 1, len(areas)))
        blocks = np.add.reduceat(weights[ranking.others], ranking.starts, axis=0)
        np.cumsum(blocks, axis=0, out=sums[1:])
        own = weights[ranking.own]
        below = sums[ranking.below] + sums[ranking.up_to]
        areas += np.einsum("nr,nr->r", own, below) / (2 * own.sum(axis=0) * sums[-1])
    return areas / len(rankings)


def quadratic_kappa(drawn: Weighted) -> Floats:
    """Cohen's kappa with weights ``(i - j)²`` (Cohen 1968); nan if no disagreement is possible."""
    index = np.arange(drawn.confusion.shape[1])
    cost = ((index[:, None] - index) ** 2).astype(np.float64)
    by_chance = np.einsum("ri,ij,rj->r", drawn.support, cost, drawn.predicted, optimize=True)
    observed = np.einsum("rij,ij->r", drawn.confusion, cost) * drawn.images
    disagreement = np.full(len(observed), np.nan)
    np.divide(observed, by_chance, out=disagreement, where=by_chance > 0)
    return 1 - disagreement


def mcc(drawn: Weighted) -> Floats:
    """Matthews' correlation for K classes (Gorodkin 2004); 0 if one class is true or predicted."""
    true, given, images = drawn.support, drawn.predicted, drawn.images
    agreement = images * drawn.hits - (true * given).sum(1)
    spread = np.sqrt((images**2 - (true**2).sum(1)) * (images**2 - (given**2).sum(1)))
    found = np.zeros(len(images))
    np.divide(agreement, spread, out=found, where=spread > 0)
    return found


def expected_calibration_error(drawn: Weighted) -> Floats:
    """Mean gap between top probability and accuracy over equal-width bins (Guo et al. 2017)."""
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
        """The value on a sample; nan where it cannot be computed."""
        return float(self.function(sample.plain)[0])


_ABSENT = "Classes without images in the part are left out of the mean, and a note names them."
_NEVER = "The precision of a class that is never predicted is 0."

_ALL = (
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
METRICS: dict[str, Metric] = {metric.key: metric for metric in _ALL}


def number_form(key: str) -> str:
    """Return how a metric is shown, for ``number_text``: shares of images are in per cent.

    >>> number_form("balanced_accuracy"), number_form("ece")
    ('.1%', '.3f')
    """
    rate = key in PER_CLASS or (key in METRICS and METRICS[key].rate)
    return ".1%" if rate else ".3f"
