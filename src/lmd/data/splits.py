"""Split images into parts or folds, and thin classes to a long tail; groups stay whole."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmd.base.errors import LmdError
from lmd.data.table import PARTS, Table

Shape = Literal["pareto", "official"]
# Orders to try: if groups have several classes, some orders leave a class out of a part.
ORDERS = 100


def split(
    table: Table,
    ratios: Sequence[float] = (0.7, 0.1, 0.2),
    seed: int = 0,
    *,
    allow_leak: bool = False,
) -> Table:
    """Return the table with its own parts, or with parts by ``ratios`` within each class.

    Images are ordered by SHA-256 of seed and id, so a split is the same on every machine. Groups
    stay whole: each goes to the part that is furthest below its share of the group's rarest class.
    Every part with a ratio above 0 gets every class. Parts of the source are kept, but every class
    must have training images and, unless ``allow_leak``, no group is in two parts.
    """
    if table.parts is not None:
        require_training(table)
        if not allow_leak:
            check_no_leak(table)
        return table
    units, members, held = units_of(table)
    wanted = [part for part, share in zip(PARTS, ratios, strict=True) if share > 0]
    for name, count in zip(table.classes, (held > 0).sum(axis=0).tolist(), strict=True):
        if count < len(wanted):
            raise LmdError(
                f"class {name!r} has {count} {'images' if table.groups is None else 'groups'}, but "
                f"a split into {', '.join(wanted)} needs at least {len(wanted)}, one for each "
                "part: merge the class with another, remove it, or set the parts yourself in a "
                "split column"
            )
    for salt in _salts(f"{seed}"):
        chosen = _assign(held, hash_order(units, salt), ratios)
        parts = np.array(PARTS, dtype=np.str_)[chosen]
        if all(held[parts == part].sum(axis=0).min() > 0 for part in wanted):
            return replace(table, parts=parts[members])
    raise LmdError(
        "no split was found that has every class in every part, because some groups have several "
        "classes: merge or remove the smallest classes, or set the parts in a split column"
    )


def _salts(salt: str) -> Iterator[str]:
    yield salt
    yield from (f"{salt}/{attempt}" for attempt in range(1, ORDERS))


def check_no_leak(table: Table) -> None:
    """Refuse a table with a group in more than one part."""
    leaks = groups_in_two_parts(table)
    for group, parts in leaks.items():
        where = " and ".join(f"{parts[part]} in {part}" for part in PARTS if parts[part])
        total = len(units_of(table)[0])
        raise LmdError(
            f"{len(leaks)} of {total} groups are in more than one part, for example "
            f"{group!r} with {where}: the model would be tested on groups it was trained on. "
            "Put each group into one part; training can accept this with --set allow_leak=true"
        )


def groups_in_two_parts(table: Table) -> dict[str, Counter[str]]:
    """Return groups in more than one part, with their number of images in each."""
    if table.groups is None or table.parts is None:
        return {}
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for group, part in zip(table.groups.tolist(), table.parts.tolist(), strict=True):
        places[group][part] += 1
    return {group: parts for group, parts in places.items() if len(parts) > 1}


def require_training(table: Table) -> None:
    """Refuse a table with a class without training images."""
    counts = table.part("train").counts()
    names = [repr(name) for name, n in zip(table.classes, counts, strict=True) if n == 0]
    if names:
        raise LmdError(
            f"{table.source or 'the table'} has no training image of class {', '.join(names)}: "
            "move some to train, or remove the class"
        )


def part_sizes(count: int, ratios: Sequence[float]) -> list[int]:
    """Return the sizes of the parts, nearest to the ratios (largest remainder), at least 1 each."""
    exact = [round(count * ratio, 9) for ratio in ratios]  # 30 × 0.1 must be 3
    sizes = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: sizes[i] - exact[i])
    for i in by_remainder[: count - sum(sizes)]:
        sizes[i] += 1
    for i, ratio in enumerate(ratios):
        if ratio > 0 and sizes[i] == 0:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[i] = 1
    return sizes


def hash_order(names: Sequence[str], salt: str) -> list[int]:
    """Return indices of names in an order that depends only on salt and names."""
    keys = [hashlib.sha256(f"{salt}:{name}".encode()).digest() for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def units_of(table: Table) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return groups, or else images, which stay whole: U names, the unit of each image ``(N,)``.

    The last value ``(U, K)`` counts the images of each class in each unit.
    """
    names = table.ids if table.groups is None else table.groups
    units, members = np.unique(names, return_inverse=True)
    held = np.zeros((len(units), len(table.classes)), dtype=np.int64)
    np.add.at(held, (members, table.labels), 1)
    return [str(unit) for unit in units], members, held


def _assign(
    held: NDArray[np.int64], order: Sequence[int], shares: Sequence[float]
) -> NDArray[np.int64]:
    """Return the part of each unit ``(U,)``, rarest class first, in ``order`` within a class.

    ``held (U, K)`` counts the images of each class in each unit. A class with a single unit has it
    in the training part.
    """
    sizes, units = held.sum(axis=0).tolist(), (held > 0).sum(axis=0)
    targets = [
        part_sizes(n, shares) if u > 1 else (n, 0, 0) for n, u in zip(sizes, units, strict=True)
    ]
    target = np.array(targets, dtype=np.float64)
    filled = np.zeros_like(target)
    chosen = np.full(len(held), -1, dtype=np.int64)
    queue = np.array(order)
    for c in np.argsort(units, kind="stable"):
        for unit in queue[(held[queue, c] > 0) & (chosen[queue] < 0)]:
            usable = target[c] > 0
            share = np.divide(filled[c], target[c], out=np.full(len(shares), np.inf), where=usable)
            part = int(np.argmin(share))
            chosen[unit] = part
            filled[:, part] += held[unit]
    return chosen


def grouped_folds(table: Table, count: int = 5, seed: int | str = 0) -> NDArray[np.int64]:
    """Return a fold for each image ``(N,)``, stratified by class; groups stay whole.

    -1 is in no fold: images of a class with a single image (group) are always for training.
    """
    units, members, held = units_of(table)
    of_class = (held > 0).sum(axis=0)
    queue = np.array(hash_order(units, f"{seed}/folds"))
    filled = np.zeros((count, len(table.classes)))
    chosen = np.full(len(units), -2, dtype=np.int64)
    chosen[(held[:, of_class == 1] > 0).any(axis=1)] = -1
    for c in np.argsort(of_class, kind="stable"):
        for unit in queue[(held[queue, c] > 0) & (chosen[queue] == -2)]:
            chosen[unit] = min(range(count), key=lambda f: (filled[f, c], filled[f].sum()))
            filled[chosen[unit]] += held[unit]
    if not (chosen >= 0).any():
        raise LmdError(
            f"{table.source or 'the table'} has no class with two training images (groups): give a "
            "validation part, or more images"
        )
    return chosen[members]


def without_parts(table: Table, split_column: str | None) -> Table:
    """Return a table for folds; refuse parts of its own unless ``split_column`` is empty."""
    if table.parts is not None and split_column != "":
        raise LmdError(
            f"{table.source or 'the data'} has parts of its own, and folds would mix them: train "
            'without folds, or ignore the parts with --split-column ""'
        )
    return replace(table, parts=None)


def make_folds(table: Table, count: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the fold of each image ``(N,)``, from 1 on, stratified by class; groups stay whole.

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
    for salt in _salts(f"{seed}"):
        folds = grouped_folds(table, count, salt) + 1
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
    """Return the table with fold i of n, ``fold``, as its test part; with i = 0 that part is empty.

    The other images are divided into training and validation by the first two ``ratios``. A class
    that has only one image (group) left has it in training.
    """
    number, count = fold
    train, validation, _ = ratios
    shares = (train / (train + validation), validation / (train + validation), 0.0)
    rest = np.ones(len(table), np.bool_)
    if number:
        rest = make_folds(table, count, seed) != number
    units, members, held = units_of(table.take(rest))
    for salt in _salts(f"{seed}/{number}"):
        chosen = _assign(held, hash_order(units, salt), shares)
        if (held[chosen == 0].sum(axis=0) > 0).sum() == (held.sum(axis=0) > 0).sum():
            parts = np.full(len(table), "test", dtype="<U10")
            parts[rest] = np.array(PARTS)[chosen][members]
            return replace(table, parts=parts)
    raise LmdError(
        "no validation part was found that leaves every class in training, because some groups "
        "have several classes: merge or remove the smallest classes, or set split=[0.8,0,0.2]"
    )


def fold_notes(table: Table, count: int) -> list[str]:
    """Return notes on the classes with fewer images (groups) than folds."""
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


def pareto_counts(head_size: int, factor: float, classes: int) -> NDArray[np.int64]:
    """Return the paper's long tail: N_c = N_0 r^(-c / (K - 1)) to the nearest integer ``(K,)``."""
    _check_factor(factor, classes)
    if head_size < 1:
        raise LmdError(f"head_size is {head_size}; the largest class needs at least 1 image")
    exact = head_size * factor ** (-np.arange(classes) / (classes - 1))
    return np.maximum(np.floor(exact + 0.5), 1).astype(np.int64)


def official_counts(counts: ArrayLike, factor: float) -> NDArray[np.int64]:
    """Return the released code's long tail: ⌈n_c μ^c⌉ with μ = (n_0 / (n_min r))^(1 / (K - 1)).

    ``counts (K,)`` may come in any order; c is the rank of a class, the largest first.
    """
    sizes = np.asarray(counts, dtype=np.int64)
    _check_factor(factor, len(sizes))
    if sizes.min() < 1:
        raise LmdError(f"counts are {sizes.tolist()}; every class needs at least 1 image")
    ranks = size_ranks(sizes)
    base = sizes.max() / (sizes.min() * factor)
    exact: NDArray[np.float64] = sizes * base ** (ranks / (len(sizes) - 1))
    # A rounding error must not push n_0 / r up to the next integer.
    return np.ceil(np.round(exact, 6)).astype(np.int64)


def imbalance_factor(counts: ArrayLike) -> float:
    """Divide the size of the largest class by the smallest; infinite if that is empty."""
    sizes = np.asarray(counts, dtype=np.float64)
    return float(sizes.max() / sizes.min()) if sizes.min() > 0 else math.inf


def subsample(
    table: Table,
    target: float | Sequence[int] | NDArray[np.int64],
    *,
    shape: Shape = "pareto",
    head_size: int | None = None,
    seed: int = 0,
) -> Table:
    """Thin a table to ``target``: an imbalance factor, or a count for each class ``(K,)``.

    With a factor the largest class keeps ``head_size`` images (all, if ``None``), the smallest that
    number divided by the factor. In a table with parts only training is thinned. Which images stay
    depends only on seed and ids. Groups stay or go whole (within a class), at least one stays.
    """
    if table.parts is not None and shape == "official":
        raise LmdError(
            "shape 'official' thins a whole set before it is split, but this set is split already: "
            "use shape 'pareto', or ignore its split column"
        )
    thinned = np.ones(len(table), bool) if table.parts is None else table.parts == "train"
    available = table.take(thinned).counts()
    if isinstance(target, (int, float)):
        wanted = _by_factor(table, available, float(target), shape, head_size)
    else:
        wanted = np.asarray(target, dtype=np.int64)
        if wanted.shape != available.shape:
            raise LmdError(
                f"{wanted.size} counts were given for {len(available)} classes "
                f"({', '.join(table.classes)}): give one for each"
            )
    for name, most, count in zip(table.classes, available, wanted, strict=True):
        if not 1 <= count <= most:
            raise LmdError(
                f"{count} images of class {name!r} were asked for, which has {most}: "
                f"choose 1 to {most}"
            )
    keep = ~thinned
    for c, count in enumerate(wanted.tolist()):
        rows = np.flatnonzero(thinned & (table.labels == c))
        keep[draw_groups(table, rows, count, f"subsample {seed}")] = True
    return table.take(keep)


def _by_factor(
    table: Table, available: NDArray[np.int64], factor: float, shape: Shape, head_size: int | None
) -> NDArray[np.int64]:
    largest, smallest = int(np.argmax(available)), int(np.argmin(available))
    if available[smallest] == 0:
        raise LmdError(f"class {table.classes[smallest]!r} has no image to draw from")
    if shape == "official":
        if head_size is not None:
            raise LmdError(
                f"head_size is {head_size}, but shape 'official' always keeps the largest class "
                "whole: leave head_size out, or use shape 'pareto'"
            )
        wanted = official_counts(available, factor)
    elif shape == "pareto":
        head = int(available[largest]) if head_size is None else head_size
        if head > available[largest]:
            raise LmdError(
                f"head_size is {head}, but the largest class {table.classes[largest]!r} "
                f"has {available[largest]} images: choose at most that"
            )
        wanted = pareto_counts(head, factor, len(available))[size_ranks(available)]
    else:
        raise LmdError(f"shape is {shape!r}; expected 'pareto' or 'official'")
    tail = int(wanted[size_ranks(available) == len(available) - 1][0])
    if tail > available[smallest]:
        natural = imbalance_factor(available)
        raise LmdError(
            f"imbalance factor {factor:g} asks for {tail} images of class "
            f"{table.classes[smallest]!r}, which has {available[smallest]}: the set is already "
            f"more imbalanced ({natural:.4g}); choose a larger factor or, with shape 'pareto', "
            f"a head_size of at most {int(available[smallest] * factor)}"
        )
    return np.minimum(wanted, available)


def draw_groups(table: Table, rows: NDArray[np.int64], count: int, salt: str) -> list[int]:
    """Draw about ``count`` of the rows: whole groups, in an order that depends on ``salt``."""
    names = (table.ids if table.groups is None else table.groups)[rows].tolist()
    units: dict[str, list[int]] = defaultdict(list)
    for name, row in zip(names, rows.tolist(), strict=True):
        units[name].append(row)
    members = list(units.values())
    drawn: list[int] = []
    left: list[list[int]] = []
    for i in hash_order(list(units), salt):
        if len(drawn) + len(members[i]) <= count:
            drawn += members[i]
        else:
            left.append(members[i])
    smallest, short = min(left, key=len, default=[]), count - len(drawn)
    # A group that is too large may still bring the count nearer.
    if not drawn or len(smallest) - short < short:
        drawn += smallest
    return drawn


def size_ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each class ``(K,)``: 0 for the largest, equal ones in their order."""
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return ranks


def _check_factor(factor: float, classes: int) -> None:
    if classes < 2:
        raise LmdError(f"an imbalance factor needs at least 2 classes, not {classes}")
    if not (math.isfinite(factor) and factor >= 1):
        raise LmdError(f"imbalance factor is {factor}; expected 1 (balanced) or more")
