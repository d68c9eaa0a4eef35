"""Long tails with a chosen imbalance factor: how many images each class keeps, and which."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmd.base.errors import LmdError
from lmd.data.splits import hash_order
from lmd.data.table import Table

Shape = Literal["pareto", "official"]


def pareto_counts(head_size: int, factor: float, classes: int) -> NDArray[np.int64]:
    """Return the paper's long tail: N_c = N_0 r^(-c / (K - 1)) to the nearest integer ``(K,)``.

    >>> pareto_counts(1000, 100, 5)
    array([1000,  316,  100,   32,   10])
    """
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
    """Divide the size of the largest class by the smallest; infinite if that is empty.

    >>> imbalance_factor([500, 40, 5])
    100.0
    """
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

    With a factor the largest class keeps ``head_size`` images (all, if ``None``). The smallest
    keeps that number divided by the factor. A class in between with too few images keeps them all.
    In a table with parts only training is thinned. Which images stay depends only on seed and ids.
    Groups stay or go whole (within a class), as near to the count as possible, at least one stays.
    """
    if table.parts is not None and shape == "official":
        raise LmdError(
            "shape 'official' thins a whole set before it is split, but this set is split already: "
            "use shape 'pareto', or ignore its split column"
        )
    thinned = np.ones(len(table), bool) if table.parts is None else table.parts == "train"
    available = np.bincount(table.labels[thinned], minlength=len(table.classes)).astype(np.int64)
    if isinstance(target, (int, float)):
        wanted = _by_factor(table, available, float(target), shape, head_size)
    else:
        wanted = _by_counts(table, available, target)
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


def _by_counts(
    table: Table, available: NDArray[np.int64], target: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.int64]:
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
    return wanted


def draw_groups(table: Table, rows: NDArray[np.int64], count: int, salt: str) -> list[int]:
    """Draw about ``count`` of the rows: whole groups, in an order that depends on ``salt``."""
    units: dict[str, list[int]] = {}
    for row in rows.tolist():
        name = str(table.ids[row] if table.groups is None else table.groups[row])
        units.setdefault(name, []).append(row)
    members = list(units.values())
    drawn: list[int] = []
    left: list[list[int]] = []
    for i in hash_order(list(units), salt):
        if len(drawn) + len(members[i]) <= count:
            drawn += members[i]
        else:
            left.append(members[i])
    # A group that is too large may still bring the count nearer.
    if left:
        smallest = min(left, key=len)
        short = count - len(drawn)
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
