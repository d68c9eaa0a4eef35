"""The class mix that probabilities answer for, and its exchange for another one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.class_values import by_name, class_values, read_cells
from lmd.scoring.confusion import Floats, Labels
from lmd.scoring.sample import Probabilities

Kind = Literal["uniform", "training"]
Prevalence = str | Path | Mapping[str, float]

OPTION = "--prevalence"
TOLERANCE = 1e-3  # how far from 1 the given shares may sum
_FORMS = 'uniform, training, a .csv file with the columns class,prevalence, or "A=0.7,B=0.3"'


def class_mix(kind: Kind, counts: Sequence[int] | NDArray[np.integer[Any]]) -> Floats:
    """The shares ``(K,)`` of a prior; a class without training images counts as one image.

    >>> class_mix("training", [30, 10, 0]).round(3).tolist()
    [0.732, 0.244, 0.024]
    """
    images = np.maximum(np.asarray(counts, dtype=np.float64), 1)
    weights = images if kind == "training" else np.ones(len(images))
    return np.asarray(weights / weights.sum())


def parse_prevalence(given: Prevalence, classes: Sequence[str], counts: Sequence[int]) -> Floats:
    """The shares ``(K,)`` that a user states; ``counts (K,)`` are those of the training part.

    >>> parse_prevalence("nv=0.9, mel=0.1", ["mel", "nv"], [5, 5]).tolist()
    [0.1, 0.9]
    """
    if isinstance(given, str) and given in ("uniform", "training"):
        return class_mix("uniform" if given == "uniform" else "training", counts)
    values = class_values(_pairs(given), classes, OPTION)
    total = sum(values)
    if abs(total - 1) > TOLERANCE:
        raise LmdError(
            f"{OPTION}: the shares of the classes must sum to 1 within {TOLERANCE:g}; they sum to "
            f"{total:.6g}: give shares, not counts or per cent"
        )
    return np.asarray(values) / total


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


def _pairs(given: Prevalence) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if str(given).lower().endswith(".csv"):
        return _from_file(Path(given))
    words = [word for word in str(given).split(",") if word.strip()]
    split = [tuple(part.strip() for part in word.rpartition("=")[::2]) for word in words]
    if not split or not all(name for name, _ in split):
        raise LmdError(f"{OPTION} must be {_FORMS}; it is {str(given)!r}")
    return by_name(((name, value) for name, value in split), OPTION)


def _from_file(path: Path) -> dict[str, Any]:
    head, *rows = read_cells(path, OPTION) or [[]]
    names = [name.lower() for name in head]
    if names != ["class", "prevalence"] or any(len(row) != 2 for row in rows):
        raise LmdError(
            f"{OPTION}: {path} must have the two columns class,prevalence, with this first line; "
            f"it begins with {','.join(head)!r}"
        )
    return by_name(((row[0], row[1]) for row in rows), OPTION)
