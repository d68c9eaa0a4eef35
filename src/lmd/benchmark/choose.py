"""Which method to use on one's own data: candidates compared on pseudo-tails of it.

A rare class has too few validation images to choose methods or settings on. In a pseudo-tail, a
frequent class plays the rare one: trained on a few images, it is as hard to learn, and its other
images form a large held-out part. Test images of the data set are never used.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output, check_outside, whole
from lmd.base.text import as_toml, csv_text
from lmd.benchmark.results import Results, RunResult, mean_draws
from lmd.benchmark.trials import HEADLINE
from lmd.data.dataset import fingerprint
from lmd.data.manifest import common_root, written_path
from lmd.data.source import Source
from lmd.data.sources import scan_source
from lmd.data.splits import draw_groups, split, units_of
from lmd.data.table import PARTS, FileImages, Table
from lmd.runs.protocol import Protocol, load_protocol
from lmd.scoring.proportions import interval

# With fewer held-out images a recall says little: one image of forty changes it by 2.5 points.
HELD_OUT = 40
TASKS = 3
Blocks = Sequence[tuple[int, int]]  # a task and a seed


@dataclass(frozen=True)
class PseudoTail:
    """One task: a split table and the classes that play the tail, the rarest first.

    ``warnings`` name classes whose counts whole groups changed much.
    """

    table: Table
    rarest: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def pseudo_tails(
    table: Table, tasks: int | None = None, *, seed: int = 0, held_out: int = HELD_OUT
) -> list[PseudoTail]:
    """Make tasks of the training and validation images of a split table.

    Three by default, or as many as the classes allow. A class takes part if it keeps at least
    ``held_out`` images when it plays the rarest one. The counts are the real task's, evenly by
    rank, but each class keeps at least an eighth of its images for testing. The most frequent
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
    order = np.argsort(-available, kind="stable").tolist()
    donors = [k for k in order if available[k] >= sum(rarest) + held_out]
    if len(donors) < 3:
        raise LmdError(
            f"pseudo-tails need three classes with at least {sum(rarest) + held_out} training and "
            f"validation images ({rarest[0]} + {rarest[1]} as in the rarest class, {held_out} to "
            f"test on); there are {len(donors)}: collect more images, or use a smaller --held-out"
        )
    head, *others = donors
    if tasks is not None and tasks > len(others):
        raise LmdError(
            f"tasks is {tasks}, but only {len(others)} classes can play the rarest: use --tasks "
            f"{len(others)}"
        )
    ranked = np.argsort(-train, kind="stable")
    places = ranked[np.round(np.linspace(0, len(ranked) - 1, len(donors))).astype(int)]
    counts = [(int(train[k]), int(validation[k])) for k in places]
    drawn = []
    for j in range(tasks or min(TASKS, len(others))):
        rare = [others[(j + 1) % len(others)], others[j]]
        roles = [head, *(k for k in others if k not in rare), *rare]
        drawn.append(_task(pool, roles, counts, held_out, f"{seed}/{j}"))
    return drawn


def _task(
    pool: Table, roles: Sequence[int], counts: Sequence[tuple[int, int]], held_out: int, salt: str
) -> PseudoTail:
    """Draw whole groups for one class after another, the rarest first.

    ``roles`` are the classes from the head to the rarest, with their training and validation
    ``counts``. If groups have several classes, images that would exceed a count are left out.
    """
    _, members, held = units_of(pool)
    places = np.full(len(held), "", dtype="<U10")  # of groups that have been drawn
    parts = np.full(len(pool), "", dtype="<U10")
    expected = {}
    for k, role in reversed(list(zip(roles, counts, strict=True))):
        rows = np.flatnonzero(pool.labels == k)
        room = len(rows) - max(held_out, len(rows) // 8)
        # A class that is too small for its role has fewer images, a fifth for validation.
        train = min(role[0], max(1, 4 * room // 5))
        validation = min(role[1], room - train)
        expected[pool.classes[k]] = train
        parts[rows] = "test"
        for part, count in (("train", train), ("validation", validation), ("test", held_out)):
            here = rows[places[members[rows]] == part]  # came with a rarer class
            free = rows[places[members[rows]] == ""]
            chosen, short = here.tolist(), count - len(here)
            if short > 0 and len(free):
                drawn = draw_groups(pool, free, short, f"{part} {salt}")
                if part == "validation" and len(free) - len(drawn) < held_out / 2:
                    drawn = []  # too few would be left to test on
                places[members[drawn]] = part
                chosen += drawn
            elif short < 0 and part != "test":
                parts[here] = ""
                chosen = draw_groups(pool, here, count, f"{part} {salt}") if count else []
            parts[chosen] = part
    # The group of these was drawn later, for a more frequent class.
    parts[(parts == "test") & np.isin(places[members], PARTS[:2])] = ""
    taken = pool.take(parts != "")
    names = tuple(pool.classes[k] for k in sorted(roles))
    labels = np.searchsorted(sorted(roles), taken.labels).astype(np.int64)
    table = replace(taken, labels=labels, classes=names, parts=parts[parts != ""])
    rarest = tuple(pool.classes[k] for k in roles[:-3:-1])
    return PseudoTail(table, rarest, tuple(_check(table, expected, held_out)))


def _check(task: Table, expected: Mapping[str, int], held_out: int) -> Iterator[str]:
    """Warn of counts that whole groups changed much; refuse a class without enough images."""
    for name, train, _, test, _ in task.part_counts()[:-1]:
        if train == 0 or test < held_out / 2:
            raise LmdError(
                f"no pseudo-tail could be made: with whole groups, class {name!r} would have "
                f"{train} images to train and {test} to test on, where {held_out} are asked for; "
                "use a smaller --held-out or fewer tasks, or compare methods on more patients"
            )
        if train > 1.5 * expected[name] or test < 0.75 * held_out:
            yield (
                f"with whole groups, class {name!r} has {train} images to train on, where "
                f"{expected[name]} would be as in the data, and {test} to test on"
            )


def _paths(table: Table) -> tuple[Path, ...]:
    if not isinstance(table.images, FileImages):
        raise LmdError("pseudo-tails need image files: give a folder or a manifest, not arrays")
    return table.images.paths


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
    existing = next((path for path in paths if path.exists()), None)
    if existing and not overwrite:
        raise LmdError(f"{existing} exists: choose another folder, or replace it with --overwrite")
    check_output(paths[0], "--out")
    for path in set(folder.glob("task-*.csv")) - set(paths):
        path.unlink()  # of an earlier call with more tasks
    for path, task in zip(paths, tasks, strict=True):
        table = task.table
        assert table.parts is not None
        images = [written_path(files[row], root) for row in table.rows]
        groups = {} if table.groups is None else {"group": table.groups}
        columns = {"image": images, "label": table.label_names(), **groups, "split": table.parts}
        content = csv_text([*columns], zip(*columns.values(), strict=True), exact=True).encode()
        atomic_write(path, content, parents=True)
    return paths


class ChoiceGrid(NamedTuple):
    """A study's grid file, the classes it excludes as too small, and warnings about its tasks."""

    grid: Path
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def write_study(
    source: Source,
    folder: Path,
    *,
    methods: Sequence[str],
    tasks: int | None,
    seeds: int,
    protocol: str | None,
    held_out: int = HELD_OUT,
) -> ChoiceGrid:
    """Write pseudo-tails of the data and a grid of the candidates on them, or add to a study."""
    rules = _rules(methods, protocol)
    check_outside(folder, str(source.data))
    table = split(
        scan_source(source.data, source.columns).table(skip_bad=source.skip_bad),
        rules.split,
        seed=rules.split_seed,
        allow_leak=rules.allow_leak,
    )
    columns = source.columns.changed()
    root = whole(images_root(table, source))
    reading = {key: value for key, value in columns.items() if key != "root"}
    about = [
        f"# images, labels, patients or lesions, and parts: {_identity(table)}",
        f"# in {as_toml(str(root))}, read with {as_toml(reading)}; {held_out} or more to test on",
    ]
    grid = folder / "choose.toml"
    if grid.exists() and grid.read_text(encoding="utf-8").splitlines()[:2] != about:
        raise LmdError(
            f"{folder} holds a study of other data, or with another --held-out: repeat that "
            "command, or choose another folder with --out"
        )
    drawn = pseudo_tails(table, tasks, held_out=held_out)
    # The classes of a task are not all that the protocol's tiers may name.
    base: dict[str, Any] = {"tiers": "thirds"}
    if protocol is not None:
        # The paths of a grid start from its own folder.
        path = str(Path(protocol).resolve()) if protocol.endswith(".toml") else protocol
        base = {"base": path, **base}
    outside = ", allow_outside = true" if columns.get("allow_outside") else ""
    lines = [
        *about,
        'title = "Candidates on pseudo-tails"',
        f"methods = {as_toml(list(methods))}",
        f"seeds = {as_toml(list(range(seeds)))}",
        f"reference = {as_toml(methods[0])}",
        f"protocol = {as_toml(base)}",
        *(["skip_bad = true"] if source.skip_bad else []),
        f"columns = {{ root = {as_toml(str(root))}{outside} }}",
        "[sweep.data]",
        *(f'"task {j + 1}" = "tasks/task-{j + 1}.csv"' for j in range(len(drawn))),
    ]
    text = "\n".join(lines) + "\n"
    if not grid.exists() or grid.read_text(encoding="utf-8") != text:
        write_tasks(drawn, folder / "tasks", root, overwrite=True)
        atomic_write(grid, text.encode())
    return ChoiceGrid(
        grid,
        tuple(name for name in table.classes if name not in drawn[0].table.classes),
        tuple(f"task {j + 1}: {text}" for j, task in enumerate(drawn) for text in task.warnings),
    )


def _rules(methods: Sequence[str], protocol: str | None) -> Protocol:
    """Return the protocol; refuse what cannot be trained before anything is written."""
    from lmd.methods import find_method

    for name in methods:
        find_method(name)
    if len(set(methods)) < len(methods):
        raise LmdError(f"--methods must differ from one another; they are {', '.join(methods)}")
    rules = load_protocol(protocol)
    if rules.imbalance is not None:
        raise LmdError(
            "pseudo-tails have the class counts of the data, so the protocol cannot thin them out: "
            "remove imbalance from it, or make a manifest with that imbalance first"
        )
    return rules


def _identity(table: Table) -> str:
    """Hash what the tasks are drawn from."""
    assert table.parts is not None
    identity = fingerprint(table.ids, table.label_names(), table.parts)
    if table.groups is None:
        return identity
    lines = sorted(f"{i}\t{g}" for i, g in zip(table.ids, table.groups, strict=True))
    return hashlib.sha256("\n".join([identity, *lines]).encode()).hexdigest()


@dataclass(frozen=True)
class Candidate:
    """A method on all complete blocks (a task with a seed).

    ``behind`` is its mean minus the best method's, with its interval; ``best`` the share of
    resamples in which it comes first; ``minutes`` the time of one training.
    """

    key: str
    title: str
    mean: float
    behind: float
    low: float
    high: float
    best: float
    minutes: float


def compare(results: Results, *, seed: int = 0) -> tuple[list[Candidate], Blocks]:
    """Return the candidates, best first, and the complete blocks that they were compared on.

    A mean is taken over the seeds of each task, then over tasks. Every resample draws tasks with
    replacement, and test images within each task, the same for all methods: so the shares and
    intervals speak of other tasks and other images. With one task they speak of its images alone.
    """
    keys = [row.key for row in results.plan.rows]
    finished: dict[tuple[int, int], dict[str, RunResult]] = {}
    for (key, task), entry in results.entries.items():
        for run in entry.runs:
            finished.setdefault((task, run.seed), {})[key] = run
    blocks = {block: runs for block, runs in finished.items() if set(runs) == set(keys)}
    if not blocks:
        raise LmdError(
            "no task was finished by every method within the budget: repeat the command to "
            "continue, or give a larger --budget, fewer --methods or fewer epochs"
        )
    tasks = sorted({task for task, _ in blocks})
    seeds = [[[r[k] for (t, _), r in blocks.items() if t == task] for task in tasks] for k in keys]
    # The means over the seeds of each method and task, of the values and of each resample.
    values = np.array([[_mean(runs) for runs in row] for row in seeds]).mean(axis=1)
    draws = np.array([[mean_draws(runs, HEADLINE) for runs in row] for row in seeds])
    count = draws.shape[2]
    chosen = np.random.default_rng(seed).integers(len(tasks), size=(count, len(tasks)))
    resampled = draws[:, chosen, np.arange(count)[:, None]].mean(axis=2)
    top = int(np.argmax(values))
    # Rows that are equal in a resample share it.
    first = resampled >= resampled.max(axis=0) - 1e-12
    wins = (first / first.sum(axis=0)).mean(axis=1)
    candidates = []
    for i, row in enumerate(results.plan.rows):
        behind = float(values[i] - values[top])
        low, high = interval(resampled[i] - resampled[top], behind)
        runs = [block[row.key] for block in blocks.values()]
        minutes = fmean(sum(s.seconds for s in run.record.stages) / 60 for run in runs)
        candidates.append(
            Candidate(row.key, row.title, values[i], behind, low, high, float(wins[i]), minutes)
        )
    return sorted(candidates, key=lambda candidate: -candidate.mean), sorted(blocks)


def _mean(runs: Sequence[RunResult]) -> float:
    values = (run.recorded(HEADLINE).value for run in runs)
    return fmean(value for value in values if value is not None)


def write_answer(
    study: ChoiceGrid, candidates: Sequence[Candidate], blocks: Blocks, planned: int
) -> Path:
    """Write what the study says so far to ``choice.json``: every candidate, the best first."""
    answer = {
        "use": candidates[0].key,
        "metric": HEADLINE,
        "blocks": len(blocks),
        "planned": planned,
        "tasks": len({task for task, _ in blocks}),
        "classes_left_out": list(study.left_out),
        "candidates": [asdict(candidate) for candidate in candidates],
    }
    path = study.grid.with_name("choice.json")
    atomic_write(path, (json.dumps(answer, indent=1) + "\n").encode())
    return path
