"""Names of classes and parts, for all kinds of sources."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError

PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def part_name(word: str) -> str | None:
    """The part that a word in a source means, or ``None``.

    >>> part_name("Val")
    'validation'
    """
    return PART_NAMES.get(word.strip().lower())


def class_order(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in the order of their index: numeric if all are numbers, else alphabetic.

    >>> class_order(["10", "2", "2"])
    ('2', '10')
    """
    distinct = set(names)
    numbers = all(name.isascii() and name.isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numbers else 0, name)))


def encode(names: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """The index of each name in ``classes``: ``(N,)``."""
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[name] for name in names], dtype=np.int64)


def require_classes(present: Iterable[str], source: object) -> None:
    """An ``LmdError`` if there is only one class."""
    names = sorted(set(present))
    if len(names) == 1:
        raise LmdError(
            f"{source} has only one class ({names[0]!r}): provide images of at least two classes"
        )
