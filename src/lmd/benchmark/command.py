"""`lmd benchmark`, `table`, `choose` and `data pseudo-tails`: train many runs and compare them."""

import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from lmd.base.errors import LmdError
from lmd.data.source import Columns, Source

if TYPE_CHECKING:
    from lmd.benchmark.choose import Blocks, Candidate

GridFile = Annotated[
    str, typer.Argument(metavar="FILE", help="Grid file (TOML), or the name of a shipped grid.")
]
Workers = Annotated[int | None, typer.Option(min=1)]
TASKS_HELP = "Pseudo-tail tasks to draw; default 3, or as many as the classes allow."
HELD_OUT_HELP = "Fewest test images of a class in a task; with whole groups, half of that."
Tasks = Annotated[int | None, typer.Option(min=1, help=TASKS_HELP)]
HeldOut = Annotated[int, typer.Option(min=1, help=HELD_OUT_HELP)]


def benchmark(
    file: GridFile,
    *,
    out: Path | None = None,
    workers: Workers = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS")] = None,
    share: Annotated[bool, typer.Option("--share/--no-share")] = True,
    dry_run: bool = False,
) -> None:
    """Train the missing runs of a grid; run the same command again to continue.

    Args:
        out: Folder for the runs; default runs/NAME.
        workers: Number of runs at once; default: one per GPU, or one per core without GPUs.
        ray: Run on a Ray cluster with a shared file system; 'local' starts one here.
        share: Train a first stage that several runs have in common only once; the results are the
            same without sharing.
        dry_run: List the runs and their state without training.
    """
    from lmd.base.files import locked
    from lmd.benchmark.backends import Backend, Local, OnRay
    from lmd.benchmark.planning import identify, plan_grid
    from lmd.benchmark.run import open_board, preview, run_plan
    from lmd.benchmark.trials import read_choices, settled, undecided

    plan = plan_grid(file)
    folder = (out or Path("runs") / plan.name).resolve()
    plan = identify(plan, folder)
    if dry_run:
        for line in preview(plan, folder, Local(folder, workers).slots()):
            typer.echo(line)
        return
    try:
        with locked(folder) as lock:
            make: Callable[[], Backend] = partial(Local, folder, workers, keep=(lock,), share=share)
            if ray is not None:
                make = partial(OnRay, folder, ray, workers, share=share)
            outcome = run_plan(plan, folder, make, open_board())
    except KeyboardInterrupt:
        _warn(f"stopped: run the same command again to continue from the last epochs in {folder}")
        raise typer.Exit(130) from None
    before, now = len(outcome.earlier), len(outcome.finished)
    choices = read_choices(plan, folder)
    names = {run.name for run in settled(plan, choices).runs}
    total = len(names.union(outcome.earlier, outcome.finished, outcome.failed))
    typer.echo(f"{before + now} of {total} runs are finished ({now} now, {before} before)")
    for choice in choices.values():
        typer.echo(f"chosen on validation: {choice.method}: {choice.sentence}")
    for name, why in outcome.diverged.items():
        _warn(f"diverged: {name}: {why}")
    for key, trial in undecided(plan, choices).items():
        _warn(f"waits: {key}: the trials of {trial.method} are not all finished")
    for name, why in outcome.failed.items():
        _warn(f"failed: {name}: {why}", "red")
    where = f" --runs {out}" if out is not None else ""
    typer.secho(f"\nFor the table: lmd table {file}{where}", bold=True)
    if outcome.failed:
        raise typer.Exit(1)


def _warn(text: str, colour: str = "yellow") -> None:
    typer.secho(text, fg=colour, err=True)


def table(
    file: GridFile,
    *,
    runs: Path | None = None,
    form: str | None = None,
    format: str = "text",
    out: Path | None = None,
    resamples: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Print a table in one of the paper's forms from finished runs, without training.

    Args:
        runs: Folder of the benchmark, or its archive (.tar.xz); default runs/NAME.
        form: metrics, tiers, factors or sweep; default: as in the grid.
        format: text, markdown, latex or csv.
        out: File to write instead of printing; an existing one is replaced.
        resamples: Number of bootstrap resamples; default 1000, or 10000 with more than three
            methods.
    """
    from rich.progress import Progress

    from lmd.base.files import atomic_write, check_output
    from lmd.benchmark.plan import grid_hash, load_grid, read_plan
    from lmd.benchmark.results import read_results, unpacked
    from lmd.benchmark.tables import drawn_metrics, make_tables

    if out is not None:
        check_output(out, "--out", ".txt", ".md", ".tex", ".csv")
    folder = unpacked((runs or Path("runs") / load_grid(file).name).resolve())
    if not folder.is_dir():
        raise LmdError(f"no benchmark in {folder}: run `lmd benchmark {file}` or use --runs")
    plan = read_plan(folder)
    if plan is None or plan.source != grid_hash(file):  # planning again would load torch
        from lmd.benchmark.planning import identify, plan_grid

        plan = identify(plan_grid(file))
    results = read_results(plan, folder, resamples=resamples)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        title = f"{results.resamples} resamples of each run"
        task = bar.add_task(title, total=results.resamples * len(results.runs))
        results.resample(drawn_metrics(results, form), lambda done: bar.advance(task, done))
    text = make_tables(results, form=form, format=format)
    if out is None:
        typer.echo(text)
        return
    atomic_write(out, (text + "\n").encode(), parents=True)
    typer.echo(f"Wrote the table to {out}", err=True)


def choose(
    data: str,
    *,
    methods: str | None = None,
    budget: Annotated[float, typer.Option(min=0)] = 60,
    tasks: Tasks = None,
    seeds: Annotated[int, typer.Option(min=1)] = 2,
    held_out: HeldOut = 40,
    protocol: str = "small",
    out: Path | None = None,
    workers: Workers = None,
    columns: Columns = Columns(),
    skip_bad: bool = False,
) -> None:
    """Compare methods on pseudo-tails of your data and say which one to use.

    Frequent classes play the rare ones, so that differences can be measured on many images. The
    test part of the data is not used. The same command continues a study that was interrupted.

    Args:
        data: A folder of class folders or a .csv manifest.
        methods: Candidates, separated by commas; default: five of `lmd methods` that are cheap,
            strong and different from one another.
        budget: Minutes after which training stops.
        seeds: Trainings of each method on each task.
        protocol: A TOML file, or the name of a protocol of lmd.
        out: Folder of the study; default runs/DATA-choose.
        workers: Trainings at once; default one for each core or GPU.
    """
    from lmd.base.files import locked, whole
    from lmd.benchmark.backends import Local
    from lmd.benchmark.choose import compare, write_answer, write_study
    from lmd.benchmark.planning import identify, plan_grid
    from lmd.benchmark.results import read_results
    from lmd.benchmark.run import open_board, run_plan
    from lmd.methods import CANDIDATES

    folder = (out or Path("runs") / f"{whole(data).stem}-choose").resolve()
    study = write_study(
        Source(data, columns, skip_bad),
        folder,
        methods=[name.strip() for name in methods.split(",")] if methods else CANDIDATES,
        tasks=tasks,
        seeds=seeds,
        protocol=protocol,
        held_out=held_out,
    )
    for warning in study.warnings:
        _warn(f"warning: {warning}")
    plan = identify(plan_grid(study.grid), folder)
    deadline = time.monotonic() + 60 * budget
    with locked(folder) as lock:
        start = partial(Local, folder, workers, keep=(lock,))
        outcome = run_plan(plan, folder, start, open_board(), deadline=deadline)
    for name, why in outcome.failed.items():
        _warn(f"failed: {name}: {why}", "red")
    try:
        candidates, blocks = compare(read_results(plan, folder, resamples=1000))
    except LmdError as error:
        if not outcome.failed:
            raise
        raise LmdError(
            "no task was finished by every method, because trainings failed (above): repeat the "
            "command when the cause is removed, or leave these methods out of --methods"
        ) from error
    planned = len(plan.points) * len(plan.seeds)
    _print_candidates(candidates, blocks, planned)
    if study.left_out:
        typer.echo(
            f"Not tested here, because they have too few images: {', '.join(study.left_out)}. "
            "These classes may behave differently; a smaller --held-out may let them take part."
        )
    typer.echo(f"The numbers: {write_answer(study, candidates, blocks, planned)}")
    if outcome.failed:
        raise typer.Exit(1)


def _print_candidates(candidates: "list[Candidate]", blocks: "Blocks", planned: int) -> None:
    table = Table("method", "mean", "behind the best (95 %)", "best in", "minutes")
    for column in table.columns[1:]:
        column.justify = "right"
    for c in candidates:
        behind = f"{100 * c.behind:.1f} ({100 * c.low:.1f} to {100 * c.high:.1f})"
        cells = f"{100 * c.mean:.1f}", "–" if c is candidates[0] else behind
        table.add_row(c.key, *cells, f"{100 * c.best:.0f} %", f"{c.minutes:.1f}")
    Console(highlight=False, markup=False).print(table)
    typer.echo(
        f"Balanced accuracy on held-out images, in per cent, over {len(blocks)} of {planned} "
        "blocks (a task with a seed). 'best in': share of resamples of tasks and images."
    )
    top, equal = candidates[0], [c.key for c in candidates[1:] if c.high >= 0]
    if len({task for task, _ in blocks}) == 1:
        typer.secho(f"\nSo far {top.key} is ahead, on one task.", bold=True)
        typer.echo("Intervals and shares speak of its images alone, not of other tasks.")
    else:
        best = f"best in {100 * top.best:.0f} % of the resamples"
        typer.secho(f"\nUse {top.key} ({best}).", bold=True)
        if equal:
            typer.echo(f"Not clearly worse: {', '.join(equal)}.")
    if len(blocks) < planned:
        typer.echo("The same command continues with the trainings that are missing.")


def pseudo_tails(
    data: str,
    *,
    out: Path,
    tasks: Tasks = None,
    held_out: HeldOut = 40,
    seed: int = 0,
    columns: Columns = Columns(),
    skip_bad: bool = False,
    overwrite: bool = False,
) -> None:
    """Make tasks to choose methods and settings on: frequent classes play the rare ones.

    Only training and validation images are used. The images that are left out of a class that plays
    a rare one are for testing, so that smaller differences between methods become visible.

    Args:
        data: A folder of class folders or a .csv manifest.
        out: Folder to write task-1.csv, task-2.csv, … to.
        seed: Seed of the drawn images.
        overwrite: Replace existing tasks in --out.
    """
    from lmd.base.files import check_outside
    from lmd.benchmark.choose import images_root, write_tasks
    from lmd.benchmark.choose import pseudo_tails as draw_tasks
    from lmd.data.sources import scan_source
    from lmd.data.splits import split
    from lmd.recipes.command import print_counts

    check_outside(out, data)
    table = split(scan_source(data, columns).table(skip_bad=skip_bad))
    drawn = draw_tasks(table, tasks, seed=seed, held_out=held_out)
    root = images_root(table, Source(data, columns, skip_bad))
    paths = write_tasks(drawn, out, root, overwrite=overwrite)
    for path, task in zip(paths, drawn, strict=True):
        typer.echo(f"\n{path}: {' and '.join(task.rarest)} play the rarest classes")
        print_counts(task.table.part_counts())
        for warning in task.warnings:
            _warn(f"warning: {warning}")
        command = ["lmd", "train", str(path), *Columns(root=root).words()]
        typer.echo(f"Next: {shlex.join(command)}")
