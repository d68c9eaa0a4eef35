"""The whole study of HAM10000, from the download to tables and figures.

    python studies/ham10000/run.py DOWNLOAD --out study

DOWNLOAD has ``HAM10000_metadata.csv`` and the folders of images (docs/data.md). The steps are
``data`` (the two manifests), ``decisions`` (what LMD is, on pseudo-tails; the test part is not
read), ``grids`` (the benchmarks), ``choose`` (`lmd choose` on the natural tail) and ``publish``
(records, tables and figures in ``--results``, and the tables in the pages there and in the README).
Run the same command again to continue an interrupted study. Two cores need about a day; ``--steps``
runs some of the steps only. A run that fails does not stop the others; the grids with failed runs
are named at the end. ``ham10000-profiles`` is expected to be one of them: with LMD's profile
``paper`` the loss diverges.

``--published DIR`` first takes over the runs that are published there, so that a study can continue
on another machine.
"""

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from lmd.recipes import RECIPES

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "docs" / "results"
STEPS = ("data", "decisions", "grids", "choose", "publish")
SWEEPS = ("iterations", "virtual-features", "lambda-1", "lambda-e", "sampling")
NATURAL = ("natural", "natural-vs")
OTHERS = ("ablations", "profiles", "long", *NATURAL, "resnet18-rate", "resnet18", *SWEEPS)
GRIDS = ("ham10000-lt", *(f"ham10000-{of}" for of in OTHERS))
MANIFESTS = {"ham10000-lt.csv": ["--head-size", "2000", "--factor", "100"], "ham10000.csv": []}
ROUNDS = ("decisions", "decisions-2", "decisions-3", "decisions-4")
DIVERGING = ("ham10000-profiles",)  # as printed, the paper's method cannot be trained here
CHOICE = "ham10000-choose"  # where the answer of `lmd choose` is published
INTERRUPTED = 130  # the exit code of a command that was interrupted
BUDGET = 60  # minutes of `lmd choose`


def lmd(*words: str | Path, cwd: Path) -> bool:
    """Run a command of lmd; whether it ended without an error. An interrupt ends the study."""
    command = [sys.executable, "-m", "lmd", *map(str, words)]
    print("$ lmd", *map(str, words), flush=True)
    code = subprocess.run(command, cwd=cwd, check=False).returncode
    if code == INTERRUPTED or code < 0:
        sys.exit(code)
    return code == 0


def make_data(download: Path, out: Path) -> None:
    """Write both manifests beside links to the folders of images."""
    for name in RECIPES["ham10000"].folders:
        link = out / name
        if link.is_symlink():
            link.unlink()  # the download may have moved
        if (download / name).is_dir() and not link.exists():
            link.symlink_to(download / name, target_is_directory=True)
    for name, options in MANIFESTS.items():
        if not (out / name).exists():
            places: list[str | Path] = ["--root", download, "--out", out / name]
            if not lmd("data", "make", "ham10000", *places, *options, cwd=out):
                sys.exit(f"{name} could not be made: see above")


def decide(out: Path, workers: int) -> None:
    """Decide the changes of LMD on pseudo-tails, round by round."""
    for name in ROUNDS:
        script = [sys.executable, str(HERE.parent / "laboratory.py"), str(HERE / f"{name}.toml")]
        options = ["--manifest", "ham10000-lt.csv", "--out", name, "--jobs", str(workers)]
        subprocess.run([*script, *options], cwd=out, check=True)


def take_over(published: Path, out: Path) -> None:
    """Unpack published runs and choices where the benchmarks look for them, unless they exist."""
    places = {published / grid: out / "runs" / grid for grid in GRIDS}
    for source, target in (places | {published / CHOICE: out / "choose"}).items():
        if (source / "runs.tar.xz").exists():
            there = {path.name for path in target.glob("*")}
            with tarfile.open(source / "runs.tar.xz") as archive:
                new = [m for m in archive if m.name.partition("/")[0] not in there]
                archive.extractall(target, new, filter="data")


def main(words: Sequence[str] | None = None) -> None:
    """Run the steps that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("download", type=Path, help="folder of HAM10000")
    parser.add_argument("--out", type=Path, default=Path("study"), help="folder of the study")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to publish in")
    parser.add_argument("--published", type=Path, help="published runs to take over")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--grids", nargs="+", choices=GRIDS, default=GRIDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(words)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.published:
        take_over(options.published.resolve(), out)
    if "data" in options.steps:
        make_data(options.download.resolve(), out)
    if "decisions" in options.steps:
        decide(out, options.workers)
    failed = []
    if "grids" in options.steps:
        for grid in options.grids:
            runs = ["--out", f"runs/{grid}", "--workers", str(options.workers)]
            if not lmd("benchmark", grid, *runs, cwd=out):
                failed.append(grid)
    if "choose" in options.steps and not lmd(
        "choose", "ham10000.csv", "--budget", str(BUDGET), "--out", "choose", cwd=out
    ):
        failed.append("lmd choose")
    if "publish" in options.steps:
        script = [sys.executable, str(HERE.parent / "publish.py"), *GRIDS]
        places = ["--runs", out / "runs", "--results", options.results.resolve()]
        if (out / "choose" / "choice.json").exists():
            places += ["--choice", CHOICE, out / "choose"]
        subprocess.run([*script, *map(str, places)], check=True)
    if failed:
        print(f"Runs failed in {', '.join(failed)}: see the messages above.")
    if unexpected := [name for name in failed if name not in DIVERGING]:
        sys.exit(f"not expected: {', '.join(unexpected)}")


if __name__ == "__main__":
    main()
