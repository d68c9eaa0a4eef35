"""Decide changes of a method on pseudo-tails, one at a time, by a rule that is fixed beforehand.

    python studies/laboratory.py DECISIONS.toml --manifest ham10000-lt.csv --out lab

The file lists changes. Each is compared with all that was adopted before it, on every pseudo-tail
task and seed. A change is adopted if its mean paired gain in balanced accuracy exceeds the standard
error of that mean and no task loses more than one point on average over its seeds. A change with
``removes = true`` takes a piece away; the piece stays only if it passes this rule itself. A change
whose ``needs`` differ from the settings in force is passed over (a list allows several values). The
held-out images of the tasks come from the training and validation parts of the data set; its test
part is never read. Runs are kept, so an interrupted study goes on where it stopped.

``draw`` in the file is the seed of the tasks' images (default 0), ``held_out`` that of `lmd data
pseudo-tails`, and ``training`` has settings of the protocol for all runs. ``references`` names
methods that are trained on the same tasks with their defaults, to show where the adopted settings
stand; they decide nothing.

``--known decisions.json`` takes over the decisions of an earlier study, for example on another
machine, up to the first change that is new. What was adopted by then is trained again here, so that
both sides of every new comparison come from one machine. ``--table decisions.json`` prints
decisions as a Markdown table.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Block = tuple[int, int]  # a task and a seed


def gain(before: Mapping[Block, float], after: Mapping[Block, float]) -> dict[str, Any]:
    """Mean paired gain in points, its standard error, that of each task, and whether to adopt."""
    pairs = {block: 100 * (after[block] - before[block]) for block in before}
    tasks = sorted({task for task, _ in pairs})
    by_task = {task: fmean(v for (t, _), v in pairs.items() if t == task) for task in tasks}
    mean = fmean(pairs.values())
    error = stdev(pairs.values()) / math.sqrt(len(pairs))
    adopted = mean > error and min(by_task.values()) >= -1
    return {"gain": mean, "error": error, "tasks": list(by_task.values()), "adopted": adopted}


def run(job: Mapping[str, Any]) -> None:
    """Train one run in this process; a finished one is left as it is."""
    import torch

    import lmd

    torch.set_num_threads(1)
    folder = Path(job["out"])
    begun = (folder / "record.json").exists()
    lmd.train(
        None if begun else job["data"],
        method=job["method"],
        protocol=job["protocol"],
        settings={**job["settings"], "seed": job["seed"], "workers": 0},
        columns=job["columns"],
        out=folder,
        resume=True,
        quiet=True,
        first_stages=job["first_stages"],
    )


def score(folder: Path) -> float:
    """Balanced accuracy on the held-out part of a task."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return float(record["metrics"]["test"]["balanced_accuracy"]["value"])


def named(scores: Mapping[Block, float]) -> dict[str, float]:
    """The scores as ``decisions.json`` has them."""
    return {f"task {task}, seed {seed}": value for (task, seed), value in scores.items()}


def allowed(settings: Mapping[str, Any], needs: Mapping[str, Any]) -> bool:
    """Whether the settings in force, as far as they are known, are what a change needs."""
    values = {key: value if isinstance(value, list) else [value] for key, value in needs.items()}
    return all(settings.get(key, ok[0]) in ok for key, ok in values.items())


class Laboratory:
    """Runs of settings on all tasks and seeds, several at a time."""

    def __init__(self, plan: Mapping[str, Any], options: argparse.Namespace) -> None:
        self.plan, self.options = plan, options
        self.start: dict[str, float] = {}
        self.references: dict[str, dict[str, float]] = {}
        self.blocks = [(t, s) for s in plan["seeds"] for t in range(1, plan["tasks"] + 1)]

    def scores(self, method: str, settings: dict[str, Any]) -> dict[Block, float]:
        """Balanced accuracy of each block; what is missing is trained first."""
        settings = self.plan.get("training", {}) | settings
        text = json.dumps([method, self.plan["protocol"], settings], sort_keys=True)
        name = f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        runs = self.options.out / "runs"
        folders = {b: runs / f"{name}-task{b[0]}-seed{b[1]}" for b in self.blocks}
        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(lambda b: self._train(method, settings, b, folders[b]), self.blocks))
        return {block: score(folder) for block, folder in folders.items()}

    def _train(self, method: str, settings: Mapping[str, Any], block: Block, out: Path) -> None:
        task, seed = block
        record = out / "record.json"
        if record.exists() and json.loads(record.read_text())["status"] == "finished":
            return
        job = {
            "data": str(self.options.out / "tasks" / f"task-{task}.csv"),
            "method": method,
            "protocol": self.plan["protocol"],
            "settings": dict(settings),
            "seed": seed,
            "columns": {"root": str(self.options.root or self.options.manifest.parent)},
            "out": str(out),
            "first_stages": str(self.options.out / "first_stages"),
        }
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        subprocess.run(command, env=environment, check=True)

    def decide(self) -> None:
        """Go through the changes in their order, and write ``decisions.json`` after each."""
        method, settings = self.plan["method"], dict(self.plan["start"])
        changes = decided(self.plan, self.options.known)
        for result in changes:
            settings |= result["settings"] if result["adopted"] else {}
        before = self.scores(method, settings)
        self.start = named(before)
        self._write(before, changes, settings)
        for change in self.plan["change"][len(changes) :]:
            about = {"name": change["name"], "settings": change["settings"]}
            if not allowed(settings, change.get("needs", {})):
                changes.append(about | {"adopted": False, "passed_over": True})
                print(f"{change['name']}: passed over", flush=True)
                continue
            trial = settings | change["settings"]
            after = self.scores(method, trial)
            result = gain(before, after) | about
            if change.get("removes"):
                result |= {"removes": True, "adopted": not gain(after, before)["adopted"]}
            result["scores"] = named(after)
            changes.append(result)
            tasks = " ".join(f"{v:+.1f}" for v in result["tasks"])
            word = "adopted" if result["adopted"] else "not adopted"
            mean = f"{result['gain']:+.2f} ± {result['error']:.2f}"
            print(f"{change['name']}: {mean} (tasks {tasks}): {word}", flush=True)
            if result["adopted"]:
                settings, before = trial, after
            self._write(before, changes, settings)
        for reference in self.plan.get("references", []):
            self.references[reference] = named(self.scores(reference, {}))
            mean = 100 * fmean(self.references[reference].values())
            print(
                f"{reference}: {mean:.2f}; adopted: {100 * fmean(before.values()):.2f}", flush=True
            )
            self._write(before, changes, settings)

    def _write(
        self, scores: Mapping[Block, float], changes: Sequence[Any], settings: Mapping[str, Any]
    ) -> None:
        content = {"settings": settings, "scores": named(scores), "changes": changes}
        content |= {"start": self.start, "references": self.references}
        path = self.options.out / "decisions.json"
        path.with_suffix(".part").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".part").replace(path)


def decided(plan: Mapping[str, Any], known: Path | None) -> list[dict[str, Any]]:
    """The decisions of an earlier study, as far as its changes are the first ones of the plan."""
    if known is None:
        return []
    changes = json.loads(known.read_text(encoding="utf-8"))["changes"]
    same = 0
    for old, new in zip(changes, plan["change"], strict=False):
        if any(old[key] != new[key] for key in ("name", "settings")):
            break
        same += 1
    return list(changes[:same])


def table(changes: Sequence[Mapping[str, Any]]) -> str:
    """The decisions as a Markdown table, in points of balanced accuracy."""
    lines = ["| change | gain | tasks | |", "|---|---|---|---|"]
    for change in changes:
        if change.get("passed_over"):
            lines.append(f"| {change['name']} | | | passed over |")
            continue
        tasks = " ".join(f"{value:+.1f}" for value in change["tasks"])
        word = "**adopted**" if change["adopted"] else "not adopted"
        mean = f"{change['gain']:+.2f} ± {change['error']:.2f}"
        lines.append(f"| {change['name']} | {mean} | {tasks} | {word} |")
    return "\n".join(lines)


def make_tasks(plan: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Draw the pseudo-tails, unless they exist."""
    if (options.out / "tasks" / "task-1.csv").exists():
        return
    root = str(options.root or options.manifest.parent)
    command = [sys.executable, "-m", "lmd", "data", "pseudo-tails", str(options.manifest)]
    command += ["--root", root, "--tasks", str(plan["tasks"]), "--seed", str(plan.get("draw", 0))]
    if "held_out" in plan:
        command += ["--held-out", str(plan["held_out"])]
    command += ["--out", str(options.out / "tasks")]
    subprocess.run(command, check=True)


def main() -> None:
    """Decide all changes of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("decisions", type=Path, nargs="?")
    parser.add_argument("--manifest", type=Path, help="the data set, with parts")
    parser.add_argument("--root", type=Path, help="folder of the images; default: the manifest's")
    parser.add_argument("--out", type=Path, help="folder for tasks, runs and decisions.json")
    parser.add_argument("--known", type=Path, help="decisions.json of an earlier study")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", type=Path, metavar="decisions.json", help="print as Markdown")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run(json.loads(options.job))
        return
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))["changes"]))
        return
    if not (options.decisions and options.manifest and options.out):
        parser.error("DECISIONS, --manifest and --out are needed")
    plan = tomllib.loads(options.decisions.read_text(encoding="utf-8"))
    make_tasks(plan, options)
    Laboratory(plan, options).decide()


if __name__ == "__main__":
    main()
