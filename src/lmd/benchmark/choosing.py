"""Which method to use on one's own data: candidates compared on pseudo-tails of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.text import as_toml
from lmd.benchmark.tables.results import Results, RunResult
from lmd.data.prepare import fingerprint
from lmd.data.pseudo_tails import HELD_OUT, images_root, pseudo_tails, write_tasks
from lmd.data.sources import open_table
from lmd.data.splits import split
from lmd.methods import find_method
from lmd.protocol import load_protocol
from lmd.scoring.intervals import interval

METRIC = "balanced_accuracy"


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


def write_answer(folder: Path, found: Sequence[Candidate], blocks: int, planned: int) -> Path:
    """Keep what the study says so far in ``choice.json``: every candidate, the best first."""
    answer = {"use": found[0].key, "metric": METRIC, "blocks": blocks, "planned": planned}
    path = folder / "choice.json"
    content = answer | {"candidates": [asdict(one) for one in found]}
    atomic_write(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def write_study(
    data: str,
    folder: Path,
    *,
    methods: Sequence[str],
    tasks: int,
    seeds: int,
    protocol: str | None,
    columns: dict[str, Any],
    held_out: int = HELD_OUT,
    skip_bad: bool = False,
) -> Path:
    """Pseudo-tails of the data and a grid of the candidates on them; an existing study is kept.

    The test part is never used: it is left out before the tasks are drawn.
    """
    grid = folder / "choose.toml"
    asked = load_protocol(protocol)
    for name in methods:
        find_method(name)
    if str(protocol).endswith(".toml"):
        protocol = str(Path(str(protocol)).resolve())  # a grid's paths start from its own folder
    where = Path(data).expanduser()
    root = Path(columns.get("root") or (where if where.is_dir() else where.parent))
    table = split(
        open_table(data, skip_bad=skip_bad, **columns),
        asked.split,
        seed=asked.split_seed,
        allow_leak=asked.allow_leak,
    )
    assert table.parts is not None
    root = images_root(table, root).absolute()
    reading = {key: value for key, value in columns.items() if key != "root"}
    outside = ", allow_outside = true" if columns.get("allow_outside") else ""
    lines = [
        f"# images, labels and parts: {fingerprint(table.ids, table.label_names(), table.parts)}",
        f"# read with {as_toml(reading)}; {held_out} images or more to test on",
        'title = "Candidates on pseudo-tails"',
        f"methods = {as_toml(list(methods))}",
        f"seeds = {as_toml(list(range(seeds)))}",
        f"reference = {as_toml(methods[0])}",
        *([f"protocol = {as_toml(str(protocol))}"] if protocol is not None else []),
        *(["skip_bad = true"] if skip_bad else []),
        f"columns = {{ root = {as_toml(str(root))}{outside} }}",
        "[sweep.data]",
        *(f'"task {j + 1}" = "tasks/task-{j + 1}.csv"' for j in range(tasks)),
    ]
    text = "\n".join(lines) + "\n"
    if grid.exists():
        if grid.read_text(encoding="utf-8") != text:
            raise LmdError(
                f"{folder} holds a study of other data, or with other candidates, tasks or seeds: "
                "repeat that command, or choose another folder with --out"
            )
        return grid
    found = pseudo_tails(table, tasks, held_out=held_out)
    write_tasks(found, folder / "tasks", root, overwrite=True)
    atomic_write(grid, text.encode())
    return grid


def compare(results: Results, *, seed: int = 0) -> tuple[list[Candidate], int]:
    """The candidates, best first, and on how many complete blocks they were compared.

    Every resample draws tasks with replacement, and test images within each task, the same for
    all methods: so the shares and intervals speak of other tasks and other images.
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
    found = []
    for i, row in enumerate(results.plan.rows):
        behind = float(means[i] - means[top])
        low, high = interval(resampled[i] - resampled[top], behind)
        runs = [block[row.key] for block in blocks.values()]
        minutes = fmean(sum(s.seconds for s in run.record.stages) / 60 for run in runs)
        found.append(
            Candidate(row.key, row.title, means[i], behind, low, high, float(wins[i]), minutes)
        )
    return sorted(found, key=lambda one: -one.mean), len(blocks)


def _complete_blocks(
    results: Results, keys: Sequence[str]
) -> dict[tuple[int, int], dict[str, RunResult]]:
    """The runs of each (task, seed) that every method has finished."""
    found: dict[tuple[int, int], dict[str, RunResult]] = {}
    for (key, point), entry in results.entries.items():
        for run in entry.runs:
            found.setdefault((point, run.seed), {})[key] = run
    return {block: runs for block, runs in found.items() if set(runs) == set(keys)}


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
