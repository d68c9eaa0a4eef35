"""The stratified bootstrap: every metric on many resamples of the images at once.

A resample draws, within each true class, as many images as the class has, with replacement: an
integer weight for every image. Where several images are of one patient or lesion, these are drawn
instead, each with all its images: what one of them shows, the others show too. All metrics of all
resamples come from the weights by matrix products and cumulative sums, without ever copying an
image's row. The formulas are those of ``lmd.scoring.metrics``, weighted.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError

Labels = NDArray[np.integer[Any]]
Probabilities = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Draws = dict[str, Floats]

GROUP_KEYS = ("bacc_head", "bacc_medium", "bacc_tail")

_CHUNK = 1_000_000  # weights held at once: bounds the memory, and stays in the cache
_EDGES = np.linspace(0, 1, 16)[1:-1]


class Weighted:
    """The metrics of one run as functions of image weights; rows are kept sorted by true class.

    ``units (N,)`` tell which images are of one patient or lesion; without it every image is a unit.
    """

    def __init__(
        self,
        labels: Labels,
        probabilities: Probabilities,
        groups: Sequence[str] | None,
        units: NDArray[Any] | None = None,
    ) -> None:
        images, classes = probabilities.shape
        if labels.shape != (images,) or images == 0:
            raise LmdError(
                "labels and probabilities must have one row for each image and at least one; "
                f"they are {labels.shape} and {probabilities.shape}"
            )
        if groups is not None and len(groups) != classes:
            raise LmdError(f"groups must name {classes} classes; it names {len(groups)}")
        if units is not None and units.shape != (images,):
            raise LmdError(f"units must be ({images},), one for each image; they are {units.shape}")
        self.groups = groups
        self.support = np.bincount(labels, minlength=classes).tolist()
        self.present = np.array(self.support) > 0
        order = np.argsort(labels, kind="stable")
        self.scores = probabilities[order].astype(np.float64)
        self.labels = labels[order]
        self.units = [
            np.arange(b - a)
            if units is None
            else np.unique(units[order[a:b]], return_inverse=True)[1]
            for a, b in pairwise(np.cumsum([0, *self.support]))
        ]
        predicted = self.scores.argmax(axis=1)
        self.predicted = np.eye(classes)[predicted]
        confidence = self.scores.max(axis=1)
        bins = np.searchsorted(_EDGES, confidence, side="left")
        self.gaps = (
            np.eye(len(_EDGES) + 1)[bins] * ((predicted == self.labels) - confidence)[:, None]
        )

    def resamples(self, count: int, seed: int) -> Iterator[list[Floats]]:
        """Stratified resamples in chunks: how often each image of a class was drawn ``(R, n)``.

        Units are drawn with all their images of the class.
        """
        if count < 1:
            raise LmdError(f"resamples must be at least 1; it is {count}")
        generator = np.random.default_rng(seed)
        size = max(1, _CHUNK // len(self.labels))
        for start in range(0, count, size):
            rows = min(size, count - start)
            yield [_drawn(unit, rows, generator) for unit in self.units]

    def metrics(self, weights: list[Floats], auc: bool = True) -> Draws:
        """All metrics ``(R,)``, those of each class ``(R, K)``; weights are ``(R, n)`` a class."""
        rows = np.cumsum([0, *self.support])
        predicted = [self.predicted[a:b] for a, b in pairwise(rows)]
        confusion = np.stack([w @ p for w, p in zip(weights, predicted, strict=True)], axis=1)
        all_weights = np.concatenate(weights, axis=1)
        values = self._from_confusion(confusion)
        values["ece"] = np.abs(all_weights @ self.gaps).sum(axis=1) / all_weights.sum(axis=1)
        if auc:
            values["auc"] = self._auc(all_weights)
        return values

    def _from_confusion(self, confusion: Floats) -> Draws:
        support, predicted = confusion.sum(2), confusion.sum(1)
        hits = np.diagonal(confusion, axis1=1, axis2=2)
        images = support.sum(axis=1)
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
            own = weights[:, inside]
            areas += np.einsum("rn,rn->r", own, below) / (2 * own.sum(axis=1) * sums[:, -1])
        return areas / int(self.present.sum())


def _drawn(unit: NDArray[np.integer[Any]], rows: int, generator: np.random.Generator) -> Floats:
    """How often each of n images was drawn ``(R, n)``; ``unit (n,)`` counts their units from 0."""
    n = int(unit.max()) + 1 if len(unit) else 0
    drawn = generator.integers(n, size=(rows, n)) if n else np.zeros((rows, 0), np.int64)
    drawn += np.arange(rows)[:, None] * n
    times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
    return (times if n == len(unit) else times[:, unit]).astype(np.float64)
