"""Pseudo-tails: tasks in which frequent classes play the rare ones, with many images held out.

A rare class has too few validation images to choose methods or settings on. A frequent class that
is trained on a few images is as hard to learn, and its other images form a large held-out part.
Test images of the data set are never used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output
from lmd.base.text import csv_text
from lmd.data.imbalance import draw_groups
from lmd.data.manifest import common_root, written_path
from lmd.data.source import Source
from lmd.data.splits import units_of
from lmd.data.table import PARTS, FileImages, Table

# With fewer held-out images a recall says little: one image of forty changes it by 2.5 points.
HELD_OUT = 40
TASKS = 3


@dataclass(frozen=True)
class PseudoTail:
    """One task: a split table and the classes that play the tail, the rarest first.

    ``warnings`` tell where whole groups changed the counts of a class much.
    """

    table: Table
    rarest: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def pseudo_tails(
    table: Table, tasks: int | None = None, *, seed: int = 0, held_out: int = HELD_OUT
) -> list[PseudoTail]:
    """Tasks made of the training and validation images of a split table.

    Three by default, or as many as the classes allow. A class takes part if it keeps at least
    ``held_out`` images when it plays the rarest one. The counts are those of the real task, evenly
    by rank, but each class keeps at least an eighth of its images for testing. The most frequent
    class always stays the head. In task j the j-th of the others plays the rarest class, the next
    one the second rarest, and the rest keep their order. Groups stay whole, so a class may have
    fewer images to test on, but at least half of ``held_out``.
    """
    if table.parts is None:
        raise LmdError("pseudo-tails need a table with parts: split it first")
    if tasks is not None and tasks < 1:
        raise LmdError(f"tasks is {tasks}; expected 1 or more")
    if len(table.classes) < 3:
        raise LmdError(
            f"pseudo-tails need three classes or more; the data has {len(table.classes)}"
        )
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
    most = len(donors) - 1
    if tasks is not None and tasks > most:
        raise LmdError(
            f"tasks is {tasks}, but only {most} classes can play the rarest: use --tasks {most}"
        )
    profile = _profile(train, validation, len(donors))
    return [
        _task(pool, _roles(donors, j), profile, held_out, f"{seed}/{j}")
        for j in range(tasks or min(TASKS, most))
    ]


def images_root(table: Table, source: Source) -> Path:
    """Return the folder that manifests of tasks start from: the data's, or one above all images."""
    data = Path(source.data).expanduser()
    root = Path(source.columns.root or (data if data.is_dir() else data.parent))
    return common_root(root, [_paths(table)[row] for row in table.rows])


def write_tasks(
    tasks: Sequence[PseudoTail], folder: Path, root: Path, *, overwrite: bool = False
) -> list[Path]:
    """Write one manifest for each task; images keep the names that they have below ``root``."""
    files = _paths(tasks[0].table)
    paths = [folder / f"task-{j + 1}.csv" for j in range(len(tasks))]
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        raise LmdError(
            f"{existing[0]} exists: choose another folder, or replace it with --overwrite"
        )
    check_output(paths[0], "--out")
    for path in set(folder.glob("task-*.csv")) - set(paths):
        path.unlink()  # of an earlier call with more tasks
    for path, task in zip(paths, tasks, strict=True):
        table = task.table
        assert table.parts is not None
        columns: dict[str, Sequence[str] | NDArray[np.str_]] = {
            "image": [written_path(files[row], root) for row in table.rows],
            "label": table.label_names(),
        }
        columns |= {} if table.groups is None else {"group": table.groups}
        columns |= {"split": table.parts}
        content = csv_text([*columns], zip(*columns.values(), strict=True), exact=True).encode()
        atomic_write(path, content, parents=True)
    return paths


def _paths(table: Table) -> tuple[Path, ...]:
    if not isinstance(table.images, FileImages):
        raise LmdError("pseudo-tails need image files: give a folder or a manifest, not arrays")
    return table.images.paths


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
    """Draw whole groups for one class after another, the rarest first.

    If groups have several classes, images that would exceed the count of a class are left out.
    """
    _, members, held = units_of(pool)
    places = np.full(len(held), "", dtype="<U10")  # of groups that have been drawn
    parts = np.full(len(pool), "", dtype="<U10")
    wanted = {}
    for k, role in reversed(list(zip(roles, profile, strict=True))):
        rows = np.flatnonzero(pool.labels == k)
        room = len(rows) - max(held_out, len(rows) // 8)
        # A class that is too small for its role has fewer images, a fifth for validation.
        train = min(role[0], max(1, 4 * room // 5))
        validation = min(role[1], room - train)
        wanted[pool.classes[k]] = train
        parts[rows] = "test"
        for part, count in (("train", train), ("validation", validation), ("test", held_out)):
            here = rows[places[members[rows]] == part]  # came with a rarer class
            free = rows[places[members[rows]] == ""]
            kept, short = here.tolist(), count - len(here)
            if short > 0 and len(free):
                drawn = draw_groups(pool, free, short, f"{part} {salt}")
                if part == "validation" and len(free) - len(drawn) < held_out / 2:
                    drawn = []  # too few would be left to test on
                places[members[drawn]] = part
                kept += drawn
            elif short < 0 and part != "test":
                parts[here] = ""
                kept = draw_groups(pool, here, count, f"{part} {salt}") if count else []
            parts[kept] = part
    # The group of these was drawn later, for a more frequent class.
    parts[(parts == "test") & np.isin(places[members], PARTS[:2])] = ""
    chosen = pool.take(parts != "")
    names = tuple(pool.classes[k] for k in sorted(roles))
    labels = np.searchsorted(sorted(roles), chosen.labels).astype(np.int64)
    table = replace(chosen, labels=labels, classes=names, parts=parts[parts != ""])
    rarest = tuple(pool.classes[k] for k in roles[:-3:-1])
    return PseudoTail(table, rarest, tuple(_check(table, wanted, held_out)))


def _check(task: Table, wanted: Mapping[str, int], held_out: int) -> Iterator[str]:
    """Warn of counts that whole groups changed much.

    An ``LmdError`` if groups are so large that a class has nothing to train or test on.
    """
    for name, train, _, test, _ in task.part_counts()[:-1]:
        if train == 0 or test < held_out / 2:
            raise LmdError(
                f"no pseudo-tail could be made: with whole groups, class {name!r} would have "
                f"{train} images to train and {test} to test on, where {held_out} are asked for; "
                "use a smaller --held-out or fewer tasks, or compare methods on more patients"
            )
        if train > 1.5 * wanted[name] or test < 0.75 * held_out:
            yield (
                f"with whole groups, class {name!r} has {train} images to train on, where "
                f"{wanted[name]} would be as in the data, and {test} to test on"
            )
