"""How sure a number is: 95 % intervals, paired differences of two runs, Holm's correction.

A resample of the stratified bootstrap draws, within each true class, as many images as the class
has, with replacement: an integer weight for every image. All metrics of all resamples come from
these weights by matrix products and cumulative sums, without ever copying an image's row. The
formulas are those of ``lmd.metrics``, weighted; the tests hold the two against each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.errors import LmdError

Labels = NDArray[np.integer[Any]]
Probabilities = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Draws = dict[str, Floats]

LEVEL = 0.95
GROUP_KEYS = ("bacc_head", "bacc_medium", "bacc_tail")
KEYS = (
    *("auc", "balanced_accuracy", "macro_f1", "kappa", "macro_precision", "macro_recall"),
    *("accuracy", "mcc", "ece"),
    *GROUP_KEYS,
)

_CHUNK = 1_000_000  # weights held at once: bounds the memory, and stays in the cache
_EDGES = np.linspace(0, 1, 16)[1:-1]


def bootstrap(
    labels: Labels,
    probabilities: Probabilities,
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Draws:
    """Every metric on stratified resamples: ``(R,)`` for each key of ``KEYS``.

    ``recall``, ``precision`` and ``f1`` are ``(R, K)``. ``groups (K,)`` names each class's group;
    without it the three group keys are left out.
    """
    run = _Weighted(labels, probabilities, groups)
    chunks = [run.metrics(w) for w in _weights(run.support, resamples, seed)]
    return {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}


def interval(
    draws: Floats, value: float | None = None, level: float = LEVEL
) -> tuple[float, float]:
    """The percentile interval of bootstrap ``draws (R,)``; nan, nan if none is a number.

    With ``value`` given it is widened to contain it: the resamples of a biased metric (ECE) can
    all lie on one side of the value.

    >>> [round(limit, 6) for limit in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    draws = draws[~np.isnan(draws)]
    if len(draws) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    if value is not None and not np.isnan(value):
        low, high = min(low, value), max(high, value)
    return float(low), float(high)


def wilson(hits: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927); without a trial it is 0 to 1.

    Unlike the bootstrap's it has a width where every trial went the same way.

    >>> [round(limit, 3) for limit in wilson(1, 1)]
    [0.207, 1.0]
    """
    if trials == 0:
        return 0.0, 1.0
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    share = hits / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = np.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At the ends the limit is exactly 0 or 1; rounding must not put the share outside.
    low = 0.0 if hits == 0 else float(centre - half)
    high = 1.0 if hits == trials else float(centre + half)
    return low, high


def mean_recall_interval(
    hits: Sequence[int], support: Sequence[int], level: float = LEVEL
) -> tuple[float, float]:
    """An interval for the mean recall of classes that holds for tiny classes too.

    Wilson's limits of the classes are combined by squares (MOVER; Zou and Donner 2008). Classes
    without an image are left out; nan, nan if all are.
    """
    pairs = [(h, n) for h, n in zip(hits, support, strict=True) if n > 0]
    if not pairs:
        return float("nan"), float("nan")
    recall = np.array([h / n for h, n in pairs])
    low, high = np.array([wilson(h, n, level) for h, n in pairs]).T
    below = np.sqrt(np.sum((recall - low) ** 2)) / len(pairs)
    above = np.sqrt(np.sum((high - recall) ** 2)) / len(pairs)
    return float(recall.mean() - below), float(recall.mean() + above)


def f1_interval(
    hits: int, support: int, predicted: int, images: int, *, draws: int = 4000, seed: int = 0
) -> tuple[float, float]:
    """An interval for the F1 of one class that keeps its width where the class is tiny.

    Recall and false positive rate are drawn from their Beta posteriors under Jeffreys' prior
    (Goutte and Gaussier 2005); the percentiles of the F1 that follows, widened to contain the F1
    of the counts.
    """
    if support == 0:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    others, false = images - support, predicted - hits
    recall = generator.beta(hits + 0.5, support - hits + 0.5, draws)
    alarms = generator.beta(false + 0.5, others - false + 0.5, draws) if others else 0.0
    f1 = 2 * support * recall / (support * recall + support + others * alarms)
    return interval(f1, 2 * hits / (support + predicted))


@dataclass(frozen=True)
class Difference:
    """``value`` of run A minus run B, its interval, and the two-sided ``p_value`` of no gap."""

    value: float
    low: float
    high: float
    p_value: float


def paired_difference(
    labels: Labels,
    probabilities_a: Probabilities,
    probabilities_b: Probabilities,
    metric: str,
    *,
    groups: Sequence[str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Difference:
    """Metric of A minus metric of B on the same images, bootstrapped with the same resamples.

    The p-value is twice the share of resamples whose difference is zero or of the other sign, the
    data counted as one more resample; it is never below ``2 / (resamples + 1)``. A class whose
    handful of images both runs treat alike in every resample makes the interval too narrow.
    """
    valid = [key for key in KEYS if groups is not None or key not in GROUP_KEYS]
    if metric not in valid:
        raise LmdError(
            f"metric {metric!r} cannot be compared{'' if groups is not None else ' without groups'}"
            f"; choose one of {', '.join(valid)}"
        )
    if probabilities_a.shape != probabilities_b.shape:
        raise LmdError(
            "a paired difference needs two runs on the same images and classes, but their "
            f"probabilities are {probabilities_a.shape} and {probabilities_b.shape}"
        )
    runs = [_Weighted(labels, p, groups) for p in (probabilities_a, probabilities_b)]

    def gap(weights: list[Floats]) -> Floats:
        a, b = (run.metrics(weights, auc=metric == "auc")[metric] for run in runs)
        return a - b

    value = float(gap([np.ones((1, n)) for n in runs[0].support])[0])
    draws = np.concatenate([gap(w) for w in _weights(runs[0].support, resamples, seed)])
    if np.isnan(value) or np.isnan(draws).any():
        return Difference(value, float("nan"), float("nan"), float("nan"))
    # A difference of rounding alone is none.
    below, above = np.sum(draws <= 1e-12), np.sum(draws >= -1e-12)
    p_value = min(1.0, 2 * (1 + float(min(below, above))) / (len(draws) + 1))
    return Difference(value, *interval(draws, value), p_value)


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """P-values corrected for their number by Holm's step-down procedure (Holm 1979), in order.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise LmdError(f"p_values must be numbers from 0 to 1; they are {p.tolist()}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def _weights(support: Sequence[int], resamples: int, seed: int) -> Iterator[list[Floats]]:
    """Stratified resamples in chunks: for each class, how often each image was drawn ``(R, n)``."""
    if resamples < 1:
        raise LmdError(f"resamples must be at least 1; it is {resamples}")
    generator = np.random.default_rng(seed)
    size = max(1, _CHUNK // max(1, sum(support)))
    for start in range(0, resamples, size):
        rows = min(size, resamples - start)
        chunk = []
        for n in support:
            drawn = generator.integers(n, size=(rows, n)) if n else np.zeros((rows, 0), np.int64)
            drawn += np.arange(rows)[:, None] * n
            counts = np.bincount(drawn.ravel(), minlength=rows * n)
            chunk.append(counts.reshape(rows, n).astype(np.float64))
        yield chunk


class _Weighted:
    """The metrics of one run as functions of image weights; rows are kept sorted by true class."""

    def __init__(
        self, labels: Labels, probabilities: Probabilities, groups: Sequence[str] | None
    ) -> None:
        images, classes = probabilities.shape
        if labels.shape != (images,) or images == 0:
            raise LmdError(
                "labels and probabilities must have one row for each image and at least one; "
                f"they are {labels.shape} and {probabilities.shape}"
            )
        if groups is not None and len(groups) != classes:
            raise LmdError(f"groups must name {classes} classes; it names {len(groups)}")
        self.groups = groups
        self.support = np.bincount(labels, minlength=classes).tolist()
        self.present = np.array(self.support) > 0
        order = np.argsort(labels, kind="stable")
        self.scores = probabilities[order].astype(np.float64)
        self.labels = labels[order]
        predicted = self.scores.argmax(axis=1)
        self.predicted = np.eye(classes)[predicted]
        confidence = self.scores.max(axis=1)
        bins = np.searchsorted(_EDGES, confidence, side="left")
        self.gaps = (
            np.eye(len(_EDGES) + 1)[bins] * ((predicted == self.labels) - confidence)[:, None]
        )

    def metrics(self, weights: list[Floats], auc: bool = True) -> Draws:
        """All metrics ``(R,)``, those of each class ``(R, K)``; weights are ``(R, n)`` a class."""
        rows = np.cumsum([0, *self.support])
        predicted = [self.predicted[a:b] for a, b in pairwise(rows)]
        confusion = np.stack([w @ p for w, p in zip(weights, predicted, strict=True)], axis=1)
        all_weights = np.concatenate(weights, axis=1)
        values = self._from_confusion(confusion)
        values["ece"] = np.abs(all_weights @ self.gaps).sum(axis=1) / len(self.labels)
        if auc:
            values["auc"] = self._auc(all_weights)
        return values

    def _from_confusion(self, confusion: Floats) -> Draws:
        support, predicted = confusion.sum(2), confusion.sum(1)
        hits = np.diagonal(confusion, axis1=1, axis2=2)
        images = len(self.labels)
        # Maxima only guard 0 / 0, whose numerator is 0; absent classes become nan.
        absent = np.where(self.present, 0.0, np.nan)
        recall = hits / np.maximum(support, 1) + absent
        precision = hits / np.maximum(predicted, 1) + absent
        f1 = 2 * hits / np.maximum(support + predicted, 1) + absent
        values = {"recall": recall, "precision": precision, "f1": f1}
        for key, each in (("macro_precision", precision), ("macro_f1", f1)):
            values[key] = each[:, self.present].mean(axis=1)
        values["balanced_accuracy"] = recall[:, self.present].mean(axis=1)
        values["macro_recall"] = values["balanced_accuracy"]
        values["accuracy"] = hits.sum(axis=1) / images
        for key in GROUP_KEYS if self.groups is not None else ():
            chosen = self.present & (np.array(self.groups) == key.removeprefix("bacc_"))
            nothing = np.full(len(hits), np.nan)
            values[key] = recall[:, chosen].mean(axis=1) if chosen.any() else nothing
        index = np.arange(len(self.support))
        cost = ((index[:, None] - index) ** 2).astype(np.float64)
        by_chance = np.einsum("ri,ij,rj->r", support, cost, predicted, optimize=True) / images
        observed = np.einsum("rij,ij->r", confusion, cost)
        kappa = np.full(len(hits), np.nan)
        np.divide(observed, by_chance, out=kappa, where=by_chance > 0)
        values["kappa"] = 1 - kappa
        agreement = images * hits.sum(1) - (support * predicted).sum(1)
        spread = (images**2 - (support**2).sum(1)) * (images**2 - (predicted**2).sum(1))
        root = np.sqrt(spread)
        values["mcc"] = np.divide(agreement, root, out=np.zeros(len(hits)), where=root > 0)
        return values

    def _auc(self, weights: Floats) -> Floats:
        """Weighted Mann-Whitney areas: what lies below a positive is a cumulative sum."""
        areas = np.zeros(len(weights))
        for k in np.flatnonzero(self.present):
            inside, outside = np.flatnonzero(self.labels == k), np.flatnonzero(self.labels != k)
            if len(outside) == 0:
                return np.full(len(weights), np.nan)
            outside = outside[np.argsort(self.scores[outside, k], kind="stable")]
            sums = np.zeros((len(weights), len(outside) + 1))
            np.cumsum(weights[:, outside], axis=1, out=sums[:, 1:])
            ranked = self.scores[outside, k]
            left = np.searchsorted(ranked, self.scores[inside, k], side="left")
            right = np.searchsorted(ranked, self.scores[inside, k], side="right")
            below = sums[:, left] + sums[:, right]
            areas += np.einsum("rn,rn->r", weights[:, inside], below) / (
                2 * len(inside) * len(outside)
            )
        return areas / int(self.present.sum())
