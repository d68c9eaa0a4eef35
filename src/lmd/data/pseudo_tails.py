"""Pseudo-tails: tasks in which frequent classes play the rare ones, with many images held out.

A rare class has too few validation images to choose methods or settings on. A frequent class that
is trained on a few images is as hard to learn, and its other images form a large held-out part.
Test images of the data set are never used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.data.cache import IN_MEMORY
from lmd.data.imbalance import draw_groups
from lmd.data.sources.csv_file import csv_bytes
from lmd.data.table import PARTS, Table

# With fewer held-out images a recall says little: one image of forty changes it by 2.5 points.
HELD_OUT = 40


@dataclass(frozen=True)
class PseudoTail:
    """One task: a split table and the classes that play the tail, the rarest first."""

    table: Table
    rarest: tuple[str, ...]


def pseudo_tails(
    table: Table, tasks: int = 3, *, seed: int = 0, held_out: int = HELD_OUT
) -> list[PseudoTail]:
    """Tasks made of the training and validation images of a split table.

    A class takes part if it keeps at least ``held_out`` images when it plays the rarest one. The
    counts are those of the real task, evenly by rank, but each class keeps at least an eighth of
    its images for testing. The most frequent class always stays the head. In task j the j-th of the
    others plays the rarest class, the next one the second rarest, and the rest keep their order.
    Groups stay whole.
    """
    if table.parts is None:
        raise LmdError("pseudo-tails need a table with parts: split it first")
    if tasks < 1:
        raise LmdError(f"tasks is {tasks}; expected 1 or more")
    train, validation = (table.part(part).counts() for part in PARTS[:2])
    pool = table.take(table.parts != "test")
    available = pool.counts()
    rarest = int(train.min()), int(validation[np.argmin(train)])
    donors = [int(k) for k in np.argsort(-available, kind="stable")]
    donors = [k for k in donors if available[k] >= sum(rarest) + held_out]
    if len(donors) < 3:
        raise LmdError(
            f"pseudo-tails need three classes with at least {sum(rarest) + held_out} training and "
            f"validation images ({rarest[0]} + {rarest[1]} as in the rarest class, {held_out} to "
            f"test on); there are {len(donors)}: collect more images, or use a smaller --held-out"
        )
    if tasks > len(donors) - 1:
        raise LmdError(f"tasks is {tasks}, but only {len(donors) - 1} classes can play the rarest")
    profile = _profile(train, validation, len(donors))
    return [_task(pool, _roles(donors, j), profile, held_out, f"{seed}/{j}") for j in range(tasks)]


def write_tasks(
    tasks: Sequence[PseudoTail], folder: Path, *, overwrite: bool = False
) -> list[Path]:
    """Write one manifest for each task; images keep the names that they have in the source."""
    if tasks[0].table.kind in IN_MEMORY:
        raise LmdError("pseudo-tails need image files: give a folder or a manifest, not arrays")
    paths = [folder / f"task-{j + 1}.csv" for j in range(len(tasks))]
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        raise LmdError(
            f"{existing[0]} exists: choose another folder, or replace it with --overwrite"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, task in zip(paths, tasks, strict=True):
        table = task.table
        assert table.parts is not None
        columns = {"image": table.ids, "label": table.label_names()}
        columns |= {} if table.groups is None else {"group": table.groups}
        columns |= {"split": table.parts}
        atomic_write(path, csv_bytes([*columns], zip(*columns.values(), strict=True)))
    return paths


def _roles(donors: Sequence[int], j: int) -> list[int]:
    """Classes in order of their roles, the most frequent first; the head keeps its own."""
    others = donors[1:]
    rare = [others[(j + 1) % len(others)], others[j]]
    return [k for k in donors if k not in rare] + rare


def _profile(
    train: NDArray[np.int64], validation: NDArray[np.int64], classes: int
) -> list[tuple[int, int]]:
    """Training and validation counts of the roles: those of the real task, evenly by rank."""
    ranked = np.argsort(-train, kind="stable")
    places = np.round(np.linspace(0, len(ranked) - 1, classes)).astype(int)
    return [(int(train[k]), int(validation[k])) for k in ranked[places]]


def _task(
    pool: Table, roles: Sequence[int], profile: Sequence[tuple[int, int]], held_out: int, salt: str
) -> PseudoTail:
    parts = np.full(len(pool), "", dtype="<U10")
    for k, role in zip(roles, profile, strict=True):
        rows = np.flatnonzero(pool.labels == k)
        room = len(rows) - max(held_out, len(rows) // 8)
        # A class that is too small for its role has fewer images, a fifth for validation.
        train = min(role[0], max(1, 4 * room // 5))
        validation = min(role[1], room - train)
        parts[rows] = "test"
        for part, count in (("train", train), ("validation", validation)):
            free = rows[parts[rows] == "test"]
            drawn = draw_groups(pool, free, count, f"{part} {salt}") if count else []
            parts[drawn] = part
    chosen = pool.take(parts != "")
    names = tuple(pool.classes[k] for k in sorted(roles))
    labels = np.searchsorted(sorted(roles), chosen.labels).astype(np.int64)
    table = replace(chosen, labels=labels, classes=names, parts=parts[parts != ""])
    return PseudoTail(table, tuple(pool.classes[k] for k in roles[:-3:-1]))
