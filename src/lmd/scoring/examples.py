"""Which images are worth a look."""

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.confusion import Labels
from lmd.scoring.sample import Probabilities

EACH = 8


def confident_mistakes(
    labels: Labels, probabilities: Probabilities, most: int = EACH
) -> NDArray[np.int64]:
    """Places of the wrong images, those with the most confident prediction first.

    >>> confident_mistakes(np.array([0, 0, 1]), np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]]))
    array([0, 2])
    """
    wrong = np.flatnonzero(probabilities.argmax(1) != labels)
    order = np.argsort(-probabilities.max(1)[wrong], kind="stable")
    return np.asarray(wrong[order][:most])


def uncertain_hits(
    labels: Labels, probabilities: Probabilities, most: int = EACH
) -> NDArray[np.int64]:
    """Places of the right images, those with the least confident prediction first."""
    right = np.flatnonzero(probabilities.argmax(1) == labels)
    order = np.argsort(probabilities.max(1)[right], kind="stable")
    return np.asarray(right[order][:most])
