"""`lmd benchmark` and `lmd table`: train a grid of runs, and print tables of the results."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmd.base.errors import LmdError

if TYPE_CHECKING:
    from lmd.benchmark.plan import Plan
    from lmd.benchmark.tables.results import Results

GridFile = Annotated[
    str, typer.Argument(metavar="FILE", help="Grid file (TOML), or the name of a shipped grid.")
]
TABLES = (".txt", ".md", ".tex", ".csv")


def benchmark(
    file: GridFile,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; default runs/NAME.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of runs at once; default: one per GPU, or one per core without GPUs.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster with a shared file system; 'local' starts one here.",
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option(
            help="Train a first stage that several runs have in common only once; the results are "
            "the same without sharing."
        ),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their state without training.")
    ] = False,
) -> None:
    """Train the missing runs of a grid; run the same command again to continue."""
    from lmd.base.lock import locked
    from lmd.benchmark.planning import plan_grid
    from lmd.benchmark.progress import open_board
    from lmd.benchmark.run import run_plan
    from lmd.benchmark.state import identify
    from lmd.benchmark.trials import read_choices, settled, undecided

    plan = plan_grid(file)
    folder = (out or Path("runs") / plan.name).resolve()
    plan = identify(plan, folder)
    if dry_run:
        _preview(plan, folder, workers)
        return
    try:
        with locked(folder) as lock:
            start = partial(_backend, folder, ray, workers, lock)
            outcome = run_plan(plan, folder, start, open_board(), share=share)
    except KeyboardInterrupt:
        said = f"stopped: run the same command again to continue from the last epochs in {folder}"
        typer.secho(said, fg="yellow", err=True)
        raise typer.Exit(130) from None
    before, now = len(outcome.earlier), len(outcome.finished)
    choices = read_choices(plan, folder)
    names = {run.name for run in settled(plan, choices).runs}
    total = len({*names, *outcome.earlier, *outcome.finished, *outcome.failed})
    typer.echo(f"{before + now} of {total} runs are finished ({now} now, {before} before)")
    for choice in choices.values():
        typer.echo(f"chosen on validation: {choice.method}: {choice.sentence}")
    for name, why in outcome.diverged.items():
        typer.secho(f"diverged: {name}: {why}", fg="yellow", err=True)
    for key, trial in undecided(plan, choices).items():
        said = f"waits: {key}: the trials of {trial.method} are not all finished"
        typer.secho(said, fg="yellow", err=True)
    for name, why in outcome.failed.items():
        typer.secho(f"failed: {name}: {why}", fg="red", err=True)
    where = f" --runs {out}" if out is not None else ""
    typer.secho(f"\nFor the table: lmd table {file}{where}", bold=True)
    if outcome.failed:
        raise typer.Exit(1)


def table(
    file: GridFile,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the benchmark; default runs/NAME.")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="metrics, tiers, factors or sweep; default: as in the grid.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="text, markdown, latex or csv; default text.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(help="File to write instead of printing; an existing one is replaced."),
    ] = None,
    resamples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of bootstrap resamples; default 1000, or 10000 with more than three "
            "methods.",
        ),
    ] = None,
) -> None:
    """Print a table in one of the paper's forms from finished runs, without training."""
    from lmd.base.files import atomic_write, check_output
    from lmd.benchmark.grid import load_grid
    from lmd.benchmark.tables import make_tables, read_results

    if out is not None:
        check_output(out, "--out", *TABLES)
    folder = (runs or Path("runs") / load_grid(file).name).resolve()
    if not folder.is_dir():
        raise LmdError(f"no benchmark in {folder}: run `lmd benchmark {file}` or use --runs")
    plan = _plan(file, folder)
    results = read_results(plan, folder, resamples=resamples)
    _resample(results, form)
    text = make_tables(results, form=form, format=format_)
    if out is None:
        typer.echo(text)
    else:
        atomic_write(out, (text + "\n").encode(), parents=True)
        typer.echo(f"Wrote the table to {out}", err=True)


def _preview(plan: "Plan", folder: Path, workers: int | None) -> None:
    """List the runs of both phases with their state, and how long they will take."""
    from lmd.benchmark.estimate import Clock
    from lmd.benchmark.local import Local
    from lmd.benchmark.progress import when
    from lmd.benchmark.state import inspect
    from lmd.benchmark.trials import RULE, read_choices, settled, trial_runs, undecided

    disk = inspect(plan, folder)
    choices = read_choices(plan, folder)
    tried = [run for trial in plan.trials for run in trial_runs(plan, trial)]
    if tried:
        typer.echo(f"Phase 1: trials with seed {plan.trials[0].seed}. {RULE}")
    for run in tried:
        typer.echo(f"{disk[run.name].status:<9} {run.name}")
    if tried:
        typer.echo("Phase 2: all seeds with the chosen values")
    waiting = undecided(plan, choices)
    final = settled(plan, choices).runs
    for run in final:
        trial = waiting.get(run.method)
        if trial is None:
            typer.echo(f"{disk[run.name].status:<9} {run.name}")
        else:
            typer.echo(f"{'waiting':<9} {run.method}-{trial.setting}=?-seed{run.seed}")
    tried = [run for run in tried if run.method in waiting]
    wanted = {run.name: run for run in (*tried, *final)}
    missing = [run for name, run in wanted.items() if disk[name].status != "finished"]
    seconds = {name: found.seconds for name, found in disk.items() if found.seconds}
    slots = Local(folder, workers).slots()
    left = when(Clock(plan, seconds).remaining(missing, {}, slots)) if missing else "all done"
    typer.echo(f"{len(wanted) - len(missing)} of {len(wanted)} runs are finished; {left}")


def _resample(results: "Results", form: str | None) -> None:
    """Draw the resamples that a table needs, which may take minutes, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from lmd.benchmark.tables.forms import drawn_metrics

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        title = f"{results.resamples} resamples of each run"
        task = bar.add_task(title, total=results.resamples * len(results.runs))
        results.resample(drawn_metrics(results, form), lambda done: bar.advance(task, done))


def _plan(file: str, folder: Path) -> "Plan":
    """The plan in the folder if the grid has not changed; planning again would load torch."""
    from lmd.benchmark.plan import grid_hash, read_plan

    found = read_plan(folder)
    if found is not None and found.source == grid_hash(file):
        return found
    from lmd.benchmark.planning import plan_grid
    from lmd.benchmark.state import identify

    return identify(plan_grid(file))


def _backend(folder: Path, ray: str | None, workers: int | None, lock: int) -> Any:
    if ray is not None:
        from lmd.benchmark.on_ray import OnRay

        return OnRay(folder, ray, workers)
    from lmd.benchmark.local import Local

    return Local(folder, workers, keep=(lock,))
