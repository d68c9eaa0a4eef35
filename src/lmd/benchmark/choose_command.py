"""`lmd choose`: which method to use on one's own data."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from lmd.base.errors import LmdError
from lmd.base.options import (
    AllowOutside,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Root,
    SkipBad,
    SplitColumn,
    given_columns,
)

if TYPE_CHECKING:
    from lmd.benchmark.choose import Blocks, Candidate


def choose_command(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="A folder of class folders or a .csv manifest.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Candidates, separated by commas; default: five of `lmd methods` that are cheap, "
            "strong and different from one another."
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(min=0, help="Minutes after which training stops."),
    ] = 60,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Pseudo-tail tasks to draw; default 3, or as many as the classes allow."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each method on each task.")] = 2,
    held_out: Annotated[
        int,
        typer.Option(
            min=1, help="Fewest test images of a class in a task; with whole groups, half of that."
        ),
    ] = 40,
    protocol: Annotated[
        str, typer.Option(help="A TOML file, or the name of a protocol of lmd.")
    ] = "small",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study; default runs/DATA-choose.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trainings at once; default one for each core or GPU.")
    ] = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
) -> None:
    """Compare methods on pseudo-tails of your data and say which one to use.

    Frequent classes play the rare ones, so that differences can be measured on many images. The
    test part of the data is not used. The same command continues a study that was interrupted.
    """
    from lmd.base.files import whole
    from lmd.base.lock import locked
    from lmd.benchmark.choose import compare, write_answer, write_study
    from lmd.benchmark.local import Local
    from lmd.benchmark.planning import plan_grid
    from lmd.benchmark.progress import open_board
    from lmd.benchmark.run import run_plan
    from lmd.benchmark.state import identify
    from lmd.benchmark.tables import read_results
    from lmd.methods import CANDIDATES

    folder = (out or Path("runs") / f"{whole(data).stem}-choose").resolve()
    study = write_study(
        data,
        folder,
        methods=[name.strip() for name in methods.split(",")] if methods else CANDIDATES,
        tasks=tasks,
        seeds=seeds,
        protocol=protocol,
        columns=given_columns(context),
        held_out=held_out,
        skip_bad=skip_bad,
        warn=lambda said: typer.secho(f"warning: {said}", fg="yellow", err=True),
    )
    plan = identify(plan_grid(study.grid), folder)
    with locked(folder) as lock:
        outcome = run_plan(
            plan,
            folder,
            lambda: Local(folder, workers, keep=(lock,)),
            open_board(),
            deadline=time.monotonic() + 60 * budget,
        )
    for name, why in outcome.failed.items():
        typer.secho(f"failed: {name}: {why}", fg="red", err=True)
    try:
        found, blocks = compare(read_results(plan, folder, resamples=1000))
    except LmdError as error:
        if not outcome.failed:
            raise
        raise LmdError(
            "no task was finished by every method, because trainings failed (above): repeat the "
            "command when the cause is removed, or leave these methods out of --methods"
        ) from error
    planned = len(plan.points) * len(plan.seeds)
    _print(found, blocks, planned)
    if study.left_out:
        typer.echo(
            f"Not tested here, because they have too few images: {', '.join(study.left_out)}. "
            "These classes may behave differently; a smaller --held-out may let them take part."
        )
    typer.echo(f"The numbers: {write_answer(study, found, blocks, planned)}")
    if outcome.failed:
        raise typer.Exit(1)


def _print(found: "list[Candidate]", blocks: "Blocks", planned: int) -> None:
    table = Table("method", "mean", "behind the best (95 %)", "best in", "minutes")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        behind = f"{100 * one.behind:.1f} ({100 * one.low:.1f} to {100 * one.high:.1f})"
        cells = f"{100 * one.mean:.1f}", "–" if one is found[0] else behind
        table.add_row(one.key, *cells, f"{100 * one.best:.0f} %", f"{one.minutes:.1f}")
    Console(highlight=False, markup=False).print(table)
    typer.echo(
        f"Balanced accuracy on held-out images, in per cent, over {len(blocks)} of {planned} "
        "blocks (a task with a seed). 'best in': share of resamples of tasks and images."
    )
    top, equal = found[0], [one.key for one in found[1:] if one.high >= 0]
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
