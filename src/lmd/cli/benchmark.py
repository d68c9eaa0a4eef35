"""`lmd benchmark` and `lmd table`: a grid of runs, and the tables made from what it left."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmd.base.errors import LmdError

if TYPE_CHECKING:
    from lmd.benchmark.plan import Plan
    from lmd.benchmark.run import Outcome
    from lmd.benchmark.tables.results import Results

GridFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A grid's TOML file, or the name of one that ships.")
]


def benchmark(
    file: GridFile,
    out: Annotated[
        Path | None, typer.Option(help="Where the run folders go; default runs/NAME.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at once; default one for each GPU, or one for each core with one thread.",
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
            help="Train a first stage that several runs have in common once; the numbers are the "
            "same without, but it takes longer."
        ),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which runs are missing, and do nothing.")
    ] = False,
) -> None:
    """Train every run of a grid that is missing; the same command goes on where it stopped."""
    from lmd.benchmark.lock import locked
    from lmd.benchmark.planning import plan_grid
    from lmd.benchmark.progress import Board
    from lmd.benchmark.run import run_plan
    from lmd.benchmark.state import inspect

    plan = plan_grid(file)
    folder = (out or Path("runs") / plan.name).resolve()
    if dry_run:
        disk = inspect(plan, folder)
        for run in plan.runs:
            typer.echo(f"{disk[run.name].status:<9} {run.name}")
        return
    try:
        with locked(folder) as lock:
            outcome = run_plan(
                plan,
                folder,
                lambda: _backend(folder, ray, workers, lock),
                Board(),
                share=share,
            )
    except KeyboardInterrupt:
        typer.secho(
            f"stopped: the same command goes on from the last epochs in {folder}",
            fg="yellow",
            err=True,
        )
        raise typer.Exit(130) from None
    _report(plan, outcome, file, out)
    if not outcome.complete:
        raise typer.Exit(1)


def table(
    file: GridFile,
    runs: Annotated[
        Path | None, typer.Option(help="The benchmark's folder; default runs/NAME.")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="metrics, tiers, factors or sweep; default: the grid's.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="text, markdown, latex or csv.")
    ] = "text",
    out: Annotated[
        Path | None, typer.Option(help="Write to a file instead; replaces it if it is there.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="An .svg file for the figure of a sweep.")
    ] = None,
    resamples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Bootstrap resamples; default 1000, or 10000 where more than three rows share "
            "Holm's correction.",
        ),
    ] = None,
) -> None:
    """Print a table of the paper's forms from the records of a benchmark; nothing is trained."""
    from lmd.base.files import atomic_write
    from lmd.benchmark.grid import load_grid
    from lmd.benchmark.tables import make_tables, read_results, sweep_figure

    folder = (runs or Path("runs") / load_grid(file).name).resolve()
    if not folder.is_dir():
        raise LmdError(f"no benchmark in {folder}: run `lmd benchmark {file}` or give --runs")
    plan = _plan(file, folder)
    results = read_results(plan, folder, resamples=resamples)
    _resample(results)
    text = make_tables(results, form=form, format=format_)
    if figure is not None:
        atomic_write(figure, sweep_figure(results).encode())
        typer.echo(f"The figure: {figure}", err=True)
    if out is None:
        typer.echo(text)
    else:
        atomic_write(out, (text + "\n").encode())
        typer.echo(f"The table: {out}", err=True)


def _resample(results: "Results") -> None:
    """Draw the resamples of every run, with a bar where somebody watches: it may take minutes."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    runs = track(
        results.runs,
        f"{results.resamples} resamples of each run",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    for run in runs:
        _ = run.draws


def _plan(file: str, folder: Path) -> "Plan":
    """The plan in the folder if it is of this very grid: only a new one needs torch."""
    from lmd.benchmark.plan import grid_hash, read_plan

    found = read_plan(folder)
    if found is not None and found.source == grid_hash(file):
        return found
    from lmd.benchmark.planning import plan_grid

    return plan_grid(file)


def _backend(folder: Path, ray: str | None, workers: int | None, lock: int) -> Any:
    if ray is not None:
        from lmd.benchmark.on_ray import OnRay

        return OnRay(folder, ray, workers)
    from lmd.benchmark.local import Local

    return Local(folder, workers, keep=(lock,))


def _report(plan: "Plan", outcome: "Outcome", file: str, out: Path | None) -> None:
    done = len(outcome.finished) + len(outcome.earlier)
    typer.echo(
        f"{done} of {len(plan.runs)} runs are finished ({len(outcome.finished)} now, "
        f"{len(outcome.earlier)} before)"
    )
    for name, why in outcome.failed.items():
        typer.secho(f"failed: {name}: {why}", fg="red", err=True)
    where = f" --runs {out}" if out is not None else ""
    typer.secho(f"\nThe table: lmd table {file}{where}", bold=True)
