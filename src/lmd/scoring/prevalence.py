"""The mix of classes: exchange one for another, and weight images to it."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.sample import Floats, Labels, Probabilities

Kind = Literal["uniform", "training"]


def class_mix(kind: Kind, counts: Sequence[int] | NDArray[np.integer[Any]]) -> Floats:
    """The shares ``(K,)`` of a prior; a class without training images counts as one image.

    >>> class_mix("training", [30, 10, 0]).round(3).tolist()
    [0.732, 0.244, 0.024]
    """
    images = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    weights = images if kind == "training" else np.ones(len(images))
    return np.asarray(weights / weights.sum())


def reweighted(probabilities: Probabilities, old: Floats, new: Floats) -> Floats:
    """Probabilities ``(N, K)`` for the mix ``new (K,)`` in place of ``old (K,)``.

    ``p_k · new_k / old_k``, normalised in each row: Bayes' rule where only the mix of the classes
    differs (Saerens, Latinne and Decaestecker, Neural Computation 2002, Eq. 2.4).

    >>> reweighted(np.array([[0.5, 0.5]]), np.array([0.5, 0.5]), np.array([0.9, 0.1])).tolist()
    [[0.9, 0.1]]
    """
    # The smallest number keeps a row whose only possible classes have probability 0 finite.
    p = np.maximum(probabilities.astype(np.float64), np.finfo(np.float64).tiny)
    weighted = p * (new / old)
    return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))


def mix_weights(labels: Labels, mix: Floats) -> Floats:
    """The weight of each image ``(N,)`` with which the classes have the mix ``(K,)``.

    >>> mix_weights(np.array([0, 0, 1]), np.array([0.5, 0.5])).tolist()
    [0.25, 0.25, 0.5]
    """
    counts = np.bincount(labels, minlength=len(mix))
    return np.asarray((mix / np.maximum(counts, 1))[labels])
