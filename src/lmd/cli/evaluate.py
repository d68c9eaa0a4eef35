"""``lmd evaluate``: all numbers of a run again, or of its model on images from another place."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmd.base.errors import LmdError
from lmd.cli.options import (
    AllowOutside,
    Costs,
    Coverage,
    Device,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Prevalence,
    Quiet,
    ReferAbove,
    Root,
    SkipBad,
    SplitColumn,
    Tta,
    given_columns,
)

if TYPE_CHECKING:
    from lmd.runfolder.record import Record
    from lmd.scoring.rules import Wanted


def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images from another place, as for training: score the model on these.",
            show_default="the run's own test part",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="The part of --data to use: test, validation or train.",
                     show_default="all its images"),
    ] = None,
    skip_unknown: Annotated[
        bool,
        typer.Option("--skip-unknown",
                     help="Do not score images of --data whose class the model does not know."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for the numbers on --data.", show_default="RUN-on-DATA"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the evaluation in --out.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(help="The folder of another run on the same test images, to compare with."),
    ] = None,
    prevalence: Prevalence = None,
    costs: Costs = None,
    coverage: Coverage = None,
    refer_above: ReferAbove = None,
    resamples: Annotated[int, typer.Option(min=1, help="Number of bootstrap resamples.")] = 1000,
    tta: Tta = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Compute all numbers and the report of a run again, or those of its model on other images.

    With --tta, the images are read and predicted again, and the numbers go to the folder RUN-tta.
    """
    from lmd.runfolder.folder import RunFolder
    from lmd.runs.rescore import compare_runs, rescore
    from lmd.scoring.definitions import format_decisions, format_external
    from lmd.scoring.rules import Wanted

    wanted = Wanted(prevalence, costs, coverage, refer_above)
    if data is None and not tta:
        _refuse_without_data(context)
        record = rescore(run, resamples=resamples, wanted=wanted, against=against)
    else:
        run = (_with_tta if data is None else _elsewhere)(context, wanted)
        record = RunFolder(run).read_record()
        if against is not None:
            record = rescore(run, resamples=resamples, wanted=wanted, against=against)
    print_scores(record)
    if record.external is not None:
        typer.echo(f"\n{format_external(record.external, record.sets)}")
    if wanted != Wanted() and record.decisions is not None:
        typer.echo(f"\n{format_decisions(record.decisions, record.sets)}")
    if against is not None:
        typer.echo("")
        typer.echo(compare_runs(run, against, resamples=resamples))
    typer.secho(f"\nThe report: {run / 'report.html'}", bold=True)


def _with_tta(context: typer.Context, wanted: "Wanted") -> Path:
    """The folder of the run's own images predicted with mirror images."""
    from lmd.runs.tta import evaluate_tta

    _refuse_without_data(context)
    given = {key: context.params[key] for key in ("resamples", "device", "quiet")}
    return evaluate_tta(context.params["run"], wanted=wanted, **given).path


def _elsewhere(context: typer.Context, wanted: "Wanted") -> Path:
    """The folder of an external validation."""
    from lmd.runs.external import evaluate_external

    if context.params["tta"]:
        raise LmdError("--tta works on the run's own images: give --tta or --data, not both")
    keys = [
        "run",
        "data",
        "part",
        "skip_unknown",
        "skip_bad",
        "out",
        "overwrite",
        "resamples",
        "device",
        "quiet",
    ]
    given = {key: context.params[key] for key in keys}
    return evaluate_external(**given, columns=given_columns(context), wanted=wanted).path


def print_scores(record: "Record") -> None:
    """Print all numbers of the reported part."""
    from lmd.scoring.definitions import format_scores
    from lmd.scoring.estimates import PartScores

    part = record.part
    if part is None:
        raise LmdError(f"{record.name} has no validation or test part to score")
    typer.echo(f"\n{record.method.title} on {record.data.source}, {record.part_title}")
    scores = PartScores(
        metrics=record.metrics[part],
        per_class=record.per_class[part],
        confusion=record.confusion[part],
        notes=record.notes,
    )
    typer.echo(format_scores(scores, record.definitions))


def _refuse_without_data(context: typer.Context) -> None:
    """Options for the images of another place mean nothing without them."""
    given = {key: context.params[key] for key in ("part", "out", "skip_unknown", "overwrite")}
    given |= {"skip_bad": context.params["skip_bad"], **given_columns(context)}
    for key, value in given.items():
        if value:
            raise LmdError(f"--{key.replace('_', '-')} needs --data as well")
