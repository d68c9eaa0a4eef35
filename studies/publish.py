"""Publish finished benchmarks in docs/results: records, predictions, tables and figures.

    python studies/publish.py GRID... --runs RUNS [--results docs/results]

RUNS/GRID is the folder of each benchmark. Then every page of the documentation that shows a
published table gets the newest one: a page says ``<!-- FILE -->`` before the table and
``<!-- end -->`` after it, where FILE is relative to the page. Nothing is trained.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "README.md", *sorted(RESULTS.rglob("*.md")))
TABLES = {"text": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}
COMPARISON = ("recall", "cost")
FIGURES = {
    "synthetic": (*COMPARISON, "ablation", "tsne"),
    "synthetic-iterations": ("sweep",),
    "synthetic-lambda-1": ("sweep",),
    "synthetic-virtual-features": ("sweep", "classes"),
    "ham10000-lt": (*COMPARISON, "ablation", "cd", "tsne"),
    "ham10000-natural": COMPARISON,
    "ham10000-resnet18": COMPARISON,
}
EMBEDDED = ("ce", "decoupling", "lmd")  # the rows of t-SNE, with the first seed
BLOCK = re.compile(r"(<!-- (\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def lmd(*words: str | Path) -> None:
    """Run a command of lmd; an error ends the program."""
    print("$ lmd", *map(str, words), flush=True)
    subprocess.run([sys.executable, "-m", "lmd", *map(str, words)], check=True)


def copy_runs(runs: Path, target: Path) -> None:
    """Copy what tables need of finished runs; the folders of this machine are left out."""
    target.mkdir(parents=True, exist_ok=True)
    rejected = set()
    if (runs / "choices.json").exists():
        shutil.copy(runs / "choices.json", target)
        rejected = _rejected(json.loads((runs / "choices.json").read_text(encoding="utf-8")))
    for record in sorted(runs.glob("*/record.json")):
        text = record.read_text(encoding="utf-8")
        if json.loads(text)["status"] != "finished":
            continue
        place = target / record.parent.name
        place.mkdir(exist_ok=True)
        text = text.replace(f"{runs.parents[1]}{os.sep}", "")
        (place / "record.json").write_text(text, encoding="utf-8")
        if record.parent.name not in rejected:
            shutil.copy(record.parent / "predictions.npz", place)


def _rejected(choices: dict[str, Any]) -> set[str]:
    """Trial runs whose value was not chosen; nothing needs their predictions any more."""
    return {
        trial["run"]
        for choice in choices["choices"]
        for trial in choice["trials"]
        if trial["label"] != choice["chosen"]
    }


def make_tables(grid: str, target: Path) -> None:
    """Write every form of the grid's table in every format."""
    from lmd.benchmark.grid import load_grid

    for form in dict.fromkeys((load_grid(grid).form, "metrics")):
        for kind, ending in TABLES.items():
            shape = ["--form", form, "--format", kind]
            file = target / f"{form}.{ending}"
            lmd("table", grid, "--runs", target / "runs", *shape, "--out", file)


def make_figures(grid: str, runs: Path, target: Path) -> None:
    """Draw the figures of a grid; t-SNE only where the models are."""
    for name in FIGURES.get(grid, ()):
        places: list[str | Path] = [target / "runs"]
        if name == "tsne":
            places = [runs / run for run in _embedded(runs)]
            if not places or not all((Path(p) / "model.safetensors").exists() for p in places):
                print(f"{grid}: no t-SNE, because the models are not in {runs}")
                continue
        width = ["--width", "7in"] if name in ("cd", "tsne", "cost", "classes") else []
        lmd("figure", name, *places, *width, "--out", target / "figures" / f"{name}.svg")


def _embedded(runs: Path) -> list[str]:
    """The runs of the first seed with the chosen values."""
    names = {key: f"{key}-seed0" for key in EMBEDDED}
    if (runs / "choices.json").exists():
        for choice in json.loads((runs / "choices.json").read_text(encoding="utf-8"))["choices"]:
            if choice["method"] in names:
                chosen = (t["run"] for t in choice["trials"] if t["label"] == choice["chosen"])
                names[choice["method"]] = next(chosen)
    return list(names.values())


def fill(page: Path) -> None:
    """Put the newest tables into a page."""

    def table(match: re.Match[str]) -> str:
        text = (page.parent / match[2]).read_text(encoding="utf-8")
        return f"{match[1]}\n{text.strip()}\n\n{match[3]}"

    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(table, text), encoding="utf-8")


def publish(grids: Sequence[str], runs: Path, results: Path) -> None:
    """Publish the grids that have runs; a grid without any is left out."""
    for grid in grids:
        if (runs / grid).exists():
            copy_runs(runs / grid, results / grid / "runs")
            make_tables(grid, results / grid)
            make_figures(grid, runs / grid, results / grid)


def main(words: Sequence[str] | None = None) -> None:
    """Publish, and bring the pages up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", nargs="*", help="names of shipped grids; none: the pages only")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the benchmarks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to publish in")
    options = parser.parse_args(words)
    publish(options.grids, options.runs.resolve(), options.results.resolve())
    for page in PAGES:
        fill(page)


if __name__ == "__main__":
    main()
