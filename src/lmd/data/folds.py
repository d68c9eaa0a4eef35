"""Cross-validation: every image is in the test part of one fold; groups stay whole."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.splits import ORDERS, assign, checked_shares, grouped_folds, hash_order, units_of
from lmd.data.table import PARTS, Table


def without_parts(table: Table, split_column: str | None) -> Table:
    """A table to be divided into folds; one with parts of its own is refused.

    An empty ``split_column`` ignores them, in sources of any kind.
    """
    if table.parts is not None and split_column != "":
        raise LmdError(
            f"{table.source or 'the data'} has parts of its own, and folds would mix them: train "
            'without folds, or ignore the parts with --split-column ""'
        )
    return replace(table, parts=None)


def make_folds(table: Table, count: int, seed: int = 0) -> NDArray[np.int64]:
    """The fold of each image ``(N,)``, from 1 on, stratified by class; groups stay whole.

    0 is in no fold: the images of a class with a single image (group) are always for training. A
    class with fewer images (groups) than folds is in the test part of some folds only. Without a
    fold, the other images have every class.
    """
    what = "images" if table.groups is None else "groups"
    held = units_of(table)[2] > 0
    units, but = len(held), ""
    if units >= count:
        alone = held[:, held.sum(axis=0) == 1].any(axis=1)
        units, but = int((~alone).sum()), f" that are not the only {what[:-1]} of a class"
    if units < count:
        raise LmdError(
            f"{table.source or 'the data'} has {units} {what}{but}, fewer than {count} folds: ask "
            "for fewer folds"
        )
    every = table.counts() > 0
    for attempt in range(ORDERS):
        folds = grouped_folds(table, count, f"{seed}" if attempt == 0 else f"{seed}/{attempt}") + 1
        others = [table.take(folds != fold).counts() > 0 for fold in range(1, count + 1)]
        if len(np.unique(folds[folds > 0])) == count and all((of == every).all() for of in others):
            return folds
    raise LmdError(
        f"no {count} folds were found that leave every class in training, because some groups have "
        "several classes: ask for fewer folds, or merge or remove the smallest classes"
    )


def fold_split(
    table: Table, fold: tuple[int, int], ratios: Sequence[float], seed: int = 0
) -> Table:
    """The table with fold i of n, ``fold``, as its test part; with i = 0 that part is empty.

    The other images are divided into training and validation by the first two ``ratios``. A class
    that has only one image (group) left has it in training.
    """
    number, count = fold
    train, validation, _ = checked_shares(ratios)
    shares = (train / (train + validation), validation / (train + validation), 0.0)
    folds = make_folds(table, count, seed) if number else np.zeros(len(table), np.int64)
    rest = table.take(folds != number) if number else table
    parts = np.full(len(table), "test", dtype="<U10")
    parts[(folds != number) if number else slice(None)] = _divided(rest, shares, f"{seed}/{number}")
    return replace(table, parts=parts.astype(np.str_))


def _divided(table: Table, shares: tuple[float, ...], salt: str) -> NDArray[np.str_]:
    """Training or validation for each image ``(N,)``, with every class in training."""
    units, members, held = units_of(table)
    for attempt in range(ORDERS):
        chosen = assign(
            held, hash_order(units, salt if attempt == 0 else f"{salt}/{attempt}"), shares
        )
        if (held[chosen == 0].sum(axis=0) > 0).sum() == (held.sum(axis=0) > 0).sum():
            return np.array(PARTS, dtype=np.str_)[chosen][members]
    raise LmdError(
        "no validation part was found that leaves every class in training, because some groups "
        "have several classes: merge or remove the smallest classes, or set split=[0.8,0,0.2]"
    )


def fold_notes(table: Table, count: int) -> list[str]:
    """What to know about the classes with fewer images (groups) than folds."""
    units = (units_of(table)[2] > 0).sum(axis=0)
    what = "image" if table.groups is None else "group (patient or lesion)"
    many = "images" if table.groups is None else "groups (patients or lesions)"
    alone = [name for name, n in zip(table.classes, units, strict=True) if n == 1]
    few = [f"{name} ({n})" for name, n in zip(table.classes, units, strict=True) if 1 < n < count]
    notes = []
    if alone:
        notes.append(
            f"Only one {what} of {', '.join(alone)}: it is for training in every fold and never "
            "tested, so that nothing is known about how well it is recognised."
        )
    if few:
        notes.append(
            f"Fewer {many} than {count} folds of {', '.join(few)}: each is tested once, and some "
            "folds have none in their test part."
        )
    return notes
