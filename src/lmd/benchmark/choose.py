"""Which method to use on one's own data: candidates compared on pseudo-tails of it."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_outside, whole
from lmd.base.text import as_toml
from lmd.benchmark.pseudo_tails import HELD_OUT, images_root, pseudo_tails, write_tasks
from lmd.benchmark.tables.results import Results, RunResult
from lmd.data.dataset import fingerprint
from lmd.data.source import Source
from lmd.data.sources import scan_source
from lmd.data.splits import split
from lmd.data.table import Table
from lmd.methods import find_method
from lmd.runs.protocol import Protocol, load_protocol
from lmd.scoring.proportions import interval

METRIC = "balanced_accuracy"
Blocks = Sequence[tuple[int, int]]  # a task and a seed


@dataclass(frozen=True)
class Candidate:
    """A method on all complete blocks (a task with a seed).

    ``behind`` is its mean minus that of the best method, with its interval; ``best`` the share of
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


@dataclass(frozen=True)
class ChoiceGrid:
    """A study's grid file and the classes it excludes as too small."""

    grid: Path
    left_out: tuple[str, ...]


def write_answer(
    study: ChoiceGrid, candidates: Sequence[Candidate], blocks: Blocks, planned: int
) -> Path:
    """Write what the study says so far to ``choice.json``: every candidate, the best first."""
    answer = {
        "use": candidates[0].key,
        "metric": METRIC,
        "blocks": len(blocks),
        "planned": planned,
        "tasks": len({task for task, _ in blocks}),
        "classes_left_out": list(study.left_out),
        "candidates": [asdict(candidate) for candidate in candidates],
    }
    path = study.grid.with_name("choice.json")
    atomic_write(path, (json.dumps(answer, indent=1) + "\n").encode())
    return path


def write_study(
    source: Source,
    folder: Path,
    *,
    methods: Sequence[str],
    tasks: int | None,
    seeds: int,
    protocol: str | None,
    held_out: int = HELD_OUT,
    warn: Callable[[str], object] = lambda text: None,
) -> ChoiceGrid:
    """Write pseudo-tails of the data and a grid of the candidates on them.

    The test part is never used: it is left out before the tasks are drawn. Re-running on the same
    data continues with the new candidates, seeds and tasks. ``warn`` gets warnings.
    """
    rules = _checked(methods, protocol)
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
    for j, task in enumerate(drawn):
        for warning in task.warnings:
            warn(f"task {j + 1}: {warning}")
    outside = ", allow_outside = true" if columns.get("allow_outside") else ""
    lines = [
        *about,
        'title = "Candidates on pseudo-tails"',
        f"methods = {as_toml(list(methods))}",
        f"seeds = {as_toml(list(range(seeds)))}",
        f"reference = {as_toml(methods[0])}",
        f"protocol = {as_toml(_protocol(protocol))}",
        *(["skip_bad = true"] if source.skip_bad else []),
        f"columns = {{ root = {as_toml(str(root))}{outside} }}",
        "[sweep.data]",
        *(f'"task {j + 1}" = "tasks/task-{j + 1}.csv"' for j in range(len(drawn))),
    ]
    text = "\n".join(lines) + "\n"
    if not grid.exists() or grid.read_text(encoding="utf-8") != text:
        write_tasks(drawn, folder / "tasks", root, overwrite=True)
        atomic_write(grid, text.encode())
    taking_part = drawn[0].table.classes
    return ChoiceGrid(grid, tuple(name for name in table.classes if name not in taking_part))


def _checked(methods: Sequence[str], protocol: str | None) -> Protocol:
    """The protocol; what no training could follow is refused before anything is written."""
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


def _protocol(protocol: str | None) -> dict[str, Any]:
    """The protocol of the tasks, whose classes are not all that the tiers may name."""
    if protocol is None:
        return {"tiers": "thirds"}
    # The paths of a grid start from its own folder.
    base = str(Path(protocol).resolve()) if protocol.endswith(".toml") else protocol
    return {"base": base, "tiers": "thirds"}


def _identity(table: Table) -> str:
    """A hash of what the tasks are drawn from."""
    assert table.parts is not None
    found = fingerprint(table.ids, table.label_names(), table.parts)
    if table.groups is None:
        return found
    lines = sorted(f"{i}\t{g}" for i, g in zip(table.ids, table.groups, strict=True))
    return hashlib.sha256("\n".join([found, *lines]).encode()).hexdigest()


def compare(results: Results, *, seed: int = 0) -> tuple[list[Candidate], Blocks]:
    """Return the candidates, best first, and the complete blocks that they were compared on.

    A mean is that over tasks, of the mean over the seeds of each. Every resample draws tasks with
    replacement, and test images within each task, the same for all methods: so the shares and
    intervals speak of other tasks and other images. With one task they speak of its images alone.
    """
    keys = [row.key for row in results.plan.rows]
    blocks = _complete_blocks(results, keys)
    if not blocks:
        raise LmdError(
            "no task was finished by every method within the budget: repeat the command to "
            "continue, or give a larger --budget, fewer --methods or fewer epochs"
        )
    tasks = sorted({point for point, _ in blocks})
    # (method, task): mean over the seeds of a task, of the values and of each resample.
    values = np.array([[_mean(blocks, t, k) for t in tasks] for k in keys])
    draws = np.array([[_mean_draws(blocks, t, k) for t in tasks] for k in keys])
    chosen = np.random.default_rng(seed).integers(len(tasks), size=(draws.shape[2], len(tasks)))
    resampled = draws[:, chosen, np.arange(draws.shape[2])[:, None]].mean(axis=2)
    means = values.mean(axis=1)
    top = int(np.argmax(means))
    # Rows that are equal in a resample share it.
    first = resampled >= resampled.max(axis=0) - 1e-12
    wins = (first / first.sum(axis=0)).mean(axis=1)
    candidates = []
    for i, row in enumerate(results.plan.rows):
        behind = float(means[i] - means[top])
        low, high = interval(resampled[i] - resampled[top], behind)
        runs = [block[row.key] for block in blocks.values()]
        minutes = fmean(sum(s.seconds for s in run.record.stages) / 60 for run in runs)
        candidates.append(
            Candidate(row.key, row.title, means[i], behind, low, high, float(wins[i]), minutes)
        )
    return sorted(candidates, key=lambda one: -one.mean), sorted(blocks)


def _complete_blocks(
    results: Results, keys: Sequence[str]
) -> dict[tuple[int, int], dict[str, RunResult]]:
    """The runs of each (task, seed) that every method has finished."""
    blocks: dict[tuple[int, int], dict[str, RunResult]] = {}
    for (key, point), entry in results.entries.items():
        for run in entry.runs:
            blocks.setdefault((point, run.seed), {})[key] = run
    return {block: runs for block, runs in blocks.items() if set(runs) == set(keys)}


def _mean(blocks: dict[tuple[int, int], dict[str, RunResult]], task: int, key: str) -> float:
    values = [
        runs[key].recorded(METRIC).value for (point, _), runs in blocks.items() if point == task
    ]
    return fmean(value for value in values if value is not None)


def _mean_draws(
    blocks: dict[tuple[int, int], dict[str, RunResult]], task: int, key: str
) -> NDArray[np.float64]:
    drawn = [runs[key].draws(METRIC) for (point, _), runs in blocks.items() if point == task]
    mean: NDArray[np.float64] = np.stack(drawn).mean(axis=0)
    return mean
