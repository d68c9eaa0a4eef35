"""Prediction sets that contain the true class with a stated probability, for every class.

Class-conditional (Mondrian) conformal prediction: the classes whose probability is at least a
threshold of their own are the set of an image. The threshold of a class is an exact quantile of the
probabilities that held-out images of the class have for it (Vovk, Gammerman and Shafer 2005,
Section 4.5; Sadinle, Lei and Wasserman, JASA 2019, show that these sets are the smallest on average
if the probabilities are right). Coverage holds for images that are exchangeable with the held-out
ones of their class, counted by image, not by patient.

There is no dependency for this: libraries for conformal prediction bring scikit-learn with them and
fit estimators, while all that is needed here is one order statistic for each class, from numbers
that fit into the model's own files, and a rule for classes that have too few images for any.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.confusion import Labels
from lmd.scoring.intervals import LEVEL
from lmd.scoring.sample import Probabilities

Level = Literal["class", "tier", "all", "always"]
OPTION = "--coverage"


@dataclass(frozen=True)
class Guarantee:
    """For which images the coverage of a class is guaranteed, and how exact it is.

    ``level`` is ``class`` (images of the class), ``tier`` (images of all classes of its tier, in
    the mix of the validation part), ``all`` (all images, likewise) or ``always`` (the class is in
    every set, because there are too few images for any threshold). ``images`` were held out for
    the threshold. With other held-out images the coverage would vary: ``low`` to ``high`` holds
    95 % of its distribution, and ``mean`` is its mean.
    """

    level: Level
    images: int
    threshold: float
    mean: float
    low: float
    high: float


def true_probabilities(labels: Labels, probabilities: Probabilities) -> list[NDArray[Any]]:
    """Of the images of each class, the probability of that class, sorted: K arrays ``(n_k,)``."""
    own = probabilities[np.arange(len(labels)), labels]
    return [np.sort(own[labels == k]) for k in range(probabilities.shape[1])]


def rank(images: int, coverage: float) -> int:
    """How many of ``images`` held-out images reach the threshold: ``⌈(n + 1) · coverage⌉``.

    More than ``images`` if they are too few, that is below ``1 / (1 - coverage) - 1``.

    >>> rank(9, 0.9), rank(8, 0.9), rank(99, 0.9), rank(9, 1e-20)
    (9, 9, 90, 1)
    """
    # The small number keeps products such as 100 * 0.29 from rounding up to one rank more.
    return max(math.ceil((images + 1) * coverage - 1e-9), 1)


def guarantees(
    held_out: Sequence[NDArray[Any]], tiers: Sequence[str], coverage: float
) -> list[Guarantee]:
    """The threshold of each class with its guarantee, from ``true_probabilities``.

    A class with too few images takes the threshold of all images of its tier, or of all images. For
    that guarantee to be true, no class that shares it may have a higher threshold, so those of
    the other classes of the tier (or of all classes) are lowered to it where they are higher.
    """
    if not 0 < coverage < 1:
        raise LmdError(f"{OPTION} must be above 0 and below 1, such as 0.9; it is {coverage:g}")
    everyone = range(len(held_out))
    found: list[Guarantee] = []
    shared: list[tuple[list[int], float]] = []
    for k in everyone:
        pools: list[tuple[Level, list[int]]] = [
            ("class", [k]),
            ("tier", [j for j in everyone if tiers[j] == tiers[k]]),
            ("all", list(everyone)),
        ]
        for level, members in pools:
            pool = np.sort(np.concatenate([held_out[j] for j in members]))
            if rank(len(pool), coverage) <= len(pool):
                found.append(_guarantee(level, pool, coverage))
                shared += [(members, found[-1].threshold)] if level != "class" else []
                break
        else:
            found.append(Guarantee("always", 0, 0.0, 1.0, 1.0, 1.0))
    lowest = [
        min([one.threshold, *(t for m, t in shared if k in m)]) for k, one in enumerate(found)
    ]
    return [
        one if low == one.threshold else _lowered(one, low, held_out[k])
        for k, (one, low) in enumerate(zip(found, lowest, strict=True))
    ]


def _lowered(one: Guarantee, threshold: float, own: NDArray[Any]) -> Guarantee:
    """What to expect of a class whose threshold was lowered for the sake of others."""
    reached, images = int((own >= threshold).sum()), len(own)
    if one.level != "class":  # what is expected holds for the images of all, not of this class
        return Guarantee(one.level, one.images, threshold, one.mean, one.low, one.high)
    low, high = coverage_interval(images, reached)
    return Guarantee(one.level, one.images, threshold, reached / (images + 1), low, high)


def prediction_sets(probabilities: Probabilities, thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """Which classes are in the set of each image, ``(N, K)``."""
    return np.asarray(probabilities >= np.asarray(thresholds, dtype=probabilities.dtype))


def coverage_interval(images: int, reached: int) -> tuple[float, float]:
    """95 % of the distribution Beta(r, n + 1 - r) of the coverage of a threshold that r of n reach.

    Vovk, Conditional validity of inductive conformal predictors, ACML 2012, Section 2. The
    quantiles come from ``P(Beta(r, n + 1 - r) ≤ x) = P(Binomial(n, x) ≥ r)`` by bisection.

    >>> [round(limit, 3) for limit in coverage_interval(1, 1)]
    [0.025, 0.975]
    """
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, images + 1)))])
    hits = np.arange(reached, images + 1)
    ways = logs[images] - logs[hits] - logs[images - hits]

    def quantile(share: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            x = (low + high) / 2
            tail = np.exp(ways + hits * math.log(x) + (images - hits) * math.log1p(-x)).sum()
            low, high = (x, high) if tail < share else (low, x)
        return (low + high) / 2

    return quantile((1 - LEVEL) / 2), quantile((1 + LEVEL) / 2)


def _guarantee(level: Level, pool: NDArray[Any], coverage: float) -> Guarantee:
    n = len(pool)
    reached = rank(n, coverage)
    return Guarantee(
        level, n, float(pool[n - reached]), reached / (n + 1), *coverage_interval(n, reached)
    )
