"""Publish finished benchmarks in docs/results: records, predictions, tables and figures.

    python studies/publish.py GRID... --runs RUNS [--results docs/results]

RUNS/GRID is the folder of each benchmark; its runs become one archive, RESULTS/GRID/runs.tar.xz,
with rounded predictions. Then every page of the documentation that shows a published table gets the
newest one: a page says ``<!-- FILE -->`` before the table and ``<!-- end -->`` after it, where FILE
is relative to the page. Nothing is trained.
"""

import argparse
import csv
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.runs.folder import PARTS, UNIT

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "README.md", *sorted(RESULTS.rglob("*.md")))
ARCHIVE = "runs.tar.xz"
TABLES = {"text": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}
SWEEPS = {
    "iterations": ("sweep",),
    "lambda-1": ("sweep",),
    "virtual-features": ("sweep", "classes"),
}
FIGURES = {
    "synthetic": ("recall", "difference", "cost", "ablation", "tsne"),
    "ham10000-lt": ("recall", "difference", "cost", "ablation", "cd", "tsne"),
    "ham10000-ablations": ("ablation",),
    "ham10000-natural": ("recall", "difference"),
    "ham10000-resnet18": ("difference",),
    **{f"{data}-{of}": SWEEPS[of] for data in ("synthetic", "ham10000") for of in SWEEPS},
}
RANKED = ("synthetic", "ham10000-lt")  # the benchmarks of the critical-difference diagram
HEADLINE = "balanced_accuracy"
TIERS = ("bacc_head", "bacc_medium", "bacc_tail")
WIDTH = "7in"  # of figures on a page
EMBEDDED = ("ce", "decoupling", "lmd")  # the rows of t-SNE, with the first seed
STEPS = (UNIT // 500, 1)  # of published probabilities; the first almost always fits
# Most bytes are pairs: probabilities as uint16.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 1}]
BLOCK = re.compile(r"(<!-- (\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def lmd(*words: str | Path) -> bool:
    """Run a command of lmd; whether it ended without an error."""
    print("$ lmd", *map(str, words), flush=True)
    command = [sys.executable, "-m", "lmd", *map(str, words)]
    return subprocess.run(command, check=False).returncode == 0


def pack_runs(runs: Path, archive: Path, base: Path) -> None:
    """Pack what tables need of finished runs, without ``base``, a folder of this machine."""
    files: dict[str, bytes] = {}
    rejected = set()
    if (runs / "choices.json").exists():
        files["choices.json"] = (runs / "choices.json").read_bytes()
        rejected = _rejected(json.loads(files["choices.json"]))
    finished = []
    for record in sorted(runs.glob("*/record.json")):
        text = record.read_text(encoding="utf-8")
        if json.loads(text)["status"] == "finished":
            finished.append(record.parent)
            text = text.replace(f"{base}{os.sep}", "").replace(str(base), ".")
            files[f"{record.parent.name}/record.json"] = text.encode()
    orders: dict[bytes, NDArray[Any]] = {}
    for run in finished:
        if run.name not in rejected:
            files[f"{run.name}/predictions.npz"] = _predictions(run / "predictions.npz", orders)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (
        lzma.open(archive, "wb", filters=FILTERS) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _predictions(path: Path, orders: dict[bytes, NDArray[Any]]) -> bytes:
    """Return a file of rounded predictions, with images that are alike side by side.

    The archive compresses it, with those of other runs: images have the same order in all of them.
    """
    arrays = read_npz(path)
    for part in PARTS:
        if f"{part}_labels" in arrays:
            values, labels = arrays[f"{part}_probabilities"], arrays[f"{part}_labels"]
            alike = np.lexsort((values[np.arange(len(labels)), labels], labels))
            order = orders.setdefault(arrays[f"{part}_ids"].tobytes(), alike)
            arrays[f"{part}_probabilities"] = rounded(values, labels)
            arrays |= {key: a[order] for key, a in arrays.items() if key.startswith(f"{part}_")}
    buffer = io.BytesIO()
    np.savez(buffer, **{key: np.asfortranarray(array) for key, array in arrays.items()})
    return buffer.getvalue()


def rounded(probabilities: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return probabilities ``(N, K)`` as uint16 in ``UNIT`` parts of one, most in large steps.

    No table changes: predicted classes stay, and so does the order of any image of a class and any
    other image by the probability of the class (AUC). A value has more digits where this needs
    them; probabilities for which it fails are returned as they are.
    """
    images, top = np.arange(len(labels)), probabilities.argmax(axis=1)
    for step in STEPS:
        units = np.rint(probabilities * np.float64(UNIT / step)).astype(np.int64) * step
        for _ in range(100):  # each repair can break another one
            others = units.copy()
            others[images, top] = -1
            units[images, top] = np.maximum(units[images, top], others.max(axis=1) + 1)
            for k in range(units.shape[1]):
                units[:, k] = _in_order(units[:, k], probabilities[:, k], labels == k)
            if np.array_equal(units.argmax(axis=1), top):
                break
        kept = np.array_equal(units.argmax(axis=1), top) and units.max() <= UNIT * 1.001
        if kept and np.abs(units.sum(axis=1) - UNIT).max() < UNIT // 100:
            return units.astype(np.uint16)
    return probabilities


def _in_order(
    units: NDArray[np.int64], values: NDArray[Any], own: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Raise units until images of a class and others are in the order of their values."""
    distinct, places = np.unique(values, return_inverse=True)
    lowest = np.zeros(len(distinct), np.int64)
    np.maximum.at(lowest, places, units)
    of_class, of_others = (np.bincount(places[m], minlength=len(distinct)) > 0 for m in (own, ~own))
    apart = (of_class[1:] & of_others[:-1]) | (of_others[1:] & of_class[:-1])
    gaps = np.concatenate(([0], np.cumsum(apart)))
    return (np.maximum.accumulate(lowest - gaps) + gaps)[places]


def _rejected(choices: dict[str, Any]) -> set[str]:
    """Trial runs whose value was not chosen; nothing needs their predictions any more."""
    return {
        trial["run"]
        for choice in choices["choices"]
        for trial in choice["trials"]
        if trial["label"] != choice["chosen"]
    }


def make_tables(grid: str, target: Path) -> None:
    """Write every form of the grid's table in every format, as `lmd table` does."""
    from lmd.benchmark.plan import load_grid
    from lmd.benchmark.planning import plan_grid
    from lmd.benchmark.results import read_results, unpacked
    from lmd.benchmark.tables import drawn_metrics, make_tables

    results = read_results(plan_grid(grid), unpacked(target / ARCHIVE))
    forms = ("sweep",) if load_grid(grid).form == "sweep" else ("tiers", "metrics")
    # The resamples are drawn once for all tables.
    results.resample({key for form in forms for key in drawn_metrics(results, form)})
    for form in forms:
        for kind, ending in TABLES.items():
            file = target / f"{form}.{ending}"
            text = make_tables(results, form=form, format=kind)
            file.write_text(text + "\n", encoding="utf-8")
            print(f"{file}: lmd table {grid} --form {form} --format {kind}", flush=True)


def summarise(grid: str, target: Path, best: int = 5) -> None:
    """Write ``summary.md``: the first row, the best ones without ablations, and the reference.

    A grid of one method has none.
    """
    from lmd.benchmark.planning import plan_grid

    plan = plan_grid(grid)
    if len(plan.rows) == 1:
        return
    with (target / "tiers.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["Method"]: row for row in csv.DictReader(file) if row[HEADLINE]}
    others = [row.title for row in plan.rows if not row.own and row.title in rows]
    ranked = sorted(others[1:], key=lambda title: -float(rows[title][HEADLINE]))[:best]
    reference = [r.title for r in plan.rows if r.key == plan.reference and r.title in rows]
    lines = [
        "| method | balanced accuracy (95 %) | head | medium | tail |",
        "|---|---|---|---|---|",
        *(_line(rows[title]) for title in (*others[:1], *ranked, *reference)),
    ]
    (target / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(row: dict[str, str]) -> str:
    value, low, high, *tiers = (
        f"{100 * float(row[key]):.1f}"
        for key in (HEADLINE, f"{HEADLINE}_low", f"{HEADLINE}_high", *TIERS)
    )
    return f"| {row['Method']} | {value} ({low} to {high}) | {' | '.join(tiers)} |"


def make_figures(grid: str, runs: Path, target: Path) -> bool:
    """Draw the figures of a grid; t-SNE only where the models are."""
    good = True
    (target / "figures").mkdir(exist_ok=True)
    for name in FIGURES.get(grid, ()):
        places: list[str | Path] = [grid, "--runs", target / ARCHIVE]
        if name == "tsne":
            places = [runs / run for run in _embedded(runs)]
            if not places or not all((Path(p) / "model.safetensors").exists() for p in places):
                print(f"{grid}: no t-SNE, because the models are not in {runs}")
                continue
        file = target / "figures" / f"{name}.svg"
        good &= lmd("figure", name, *places, "--width", WIDTH, "--out", file)
    return good


def make_common_figures(results: Path) -> bool:
    """Draw what belongs to no single grid: ranks over several of them, and the stages of LMD."""
    out = results / "figures"
    out.mkdir(exist_ok=True)
    ranked = [results / grid / ARCHIVE for grid in RANKED]
    good = True
    if all(archive.exists() for archive in ranked):
        words = ["--no-ablations", "--width", WIDTH, "--out", out / "cd.svg"]
        good &= lmd("figure", "cd", *ranked, *words)
    for stage in ("1", "2"):
        words = ["--profile", "corrected", "--stage", stage, "--width", WIDTH]
        good &= lmd("figure", "method", "lmd", *words, "--out", out / f"stage{stage}.svg")
    return good


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


def publish(grid: str, runs: Path, target: Path) -> bool:
    """Publish one grid; whether all of its figures could be made."""
    pack_runs(runs, target / ARCHIVE, runs.parents[1])
    make_tables(grid, target)
    if (target / "tiers.csv").exists():
        summarise(grid, target)
    return make_figures(grid, runs, target)


def main(words: Sequence[str] | None = None) -> None:
    """Publish the grids that have runs, and bring the pages up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", nargs="*", help="names of shipped grids; none: the pages only")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the benchmarks")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to publish in")
    parser.add_argument(
        "--choice",
        nargs=2,
        metavar=("NAME", "FOLDER"),
        help="the FOLDER of a study by `lmd choose`, to be published as NAME",
    )
    options = parser.parse_args(words)
    runs, results = options.runs.resolve(), options.results.resolve()
    if options.choice:
        name, folder = options.choice[0], Path(options.choice[1]).resolve()
        pack_runs(folder, results / name / ARCHIVE, folder.parent)
        shutil.copy(folder / "choice.json", results / name)
    done = [g for g in options.grids if (runs / g).exists()]
    bad = [grid for grid in done if not publish(grid, runs / grid, results / grid)]
    if done and not make_common_figures(results):
        bad.append("all of them together")
    for page in PAGES:
        fill(page)
    if bad:
        sys.exit(f"not everything could be made of {', '.join(bad)}: see the errors above")


if __name__ == "__main__":
    main()
