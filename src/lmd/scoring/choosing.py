"""The choice among classifiers on held-out images: the simplest within one standard error."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.confusion import Labels

Right = NDArray[np.bool_]


def balanced_difference(
    first: Right, second: Right, labels: Labels, groups: NDArray[Any] | None = None
) -> tuple[float, float]:
    """First minus second in balanced accuracy, and the standard error of this difference.

    ``first (N,)`` and ``second (N,)`` say which images are right. Both are tried on the same
    images, so an image counts only if they disagree. Images of one group count together. To a class
    with a disagreement one image is added in favour of each, so that one image does not look
    certain.

    >>> right, wrong = np.array([True, True, True, False]), np.array([True, True, False, False])
    >>> balanced_difference(right, wrong, np.array([0, 0, 0, 1]))[0].__round__(3)
    0.167
    """
    gain = first.astype(np.float64) - second
    present = np.unique(labels)
    total = variance = 0.0
    for k in present:
        own = labels == k
        each = gain[own]
        if groups is not None:
            each = np.bincount(np.unique(groups[own], return_inverse=True)[1], weights=each)
        images = int(own.sum())
        share = images / len(each)  # images of a group, on average
        mean = float(each.sum()) / images
        total += mean
        if each.any():
            spread = float(((each - mean * share) ** 2).sum()) + 2 * share**2
            variance += spread / (images + 2 * share) ** 2
    return total / len(present), variance**0.5 / len(present)


def simplest(
    tried: Sequence[Right],
    scores: Sequence[float],
    labels: Labels,
    groups: NDArray[Any] | None = None,
) -> int:
    """The first of ``tried`` that is within one standard error of the best.

    ``tried`` are ordered from simple to complex, or from strong to weak regularisation; ``scores``
    are their balanced accuracies. The standard error is that of the difference to the best.
    """
    best = max(range(len(tried)), key=lambda i: (scores[i], -i))
    for i, right in enumerate(tried[:best]):
        difference, error = balanced_difference(tried[best], right, labels, groups)
        if difference <= error:
            return i
    return best
