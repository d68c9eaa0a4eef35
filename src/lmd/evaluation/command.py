"""``lmd evaluate``: all numbers of a run again, or of its model on images from another place."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmd.base.errors import LmdError
from lmd.base.options import (
    AllowOutside,
    Costs,
    Coverage,
    Device,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    NoImages,
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
    from lmd.runs.record import Record


def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images from another place, as for training: score the model on these. "
            "With --tta: where the run's own images are now.",
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
    resamples: Annotated[
        int, typer.Option(min=1, help="Bootstrap resamples; fewer than the run has only print.")
    ] = 1000,
    tta: Tta = False,
    no_images: NoImages = False,
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
    from lmd.decisions.decide import Decide
    from lmd.decisions.section import format_decisions
    from lmd.evaluation.evaluate import compare_runs
    from lmd.evaluation.evaluate import evaluate as evaluate_run
    from lmd.evaluation.section import format_external
    from lmd.runs.folder import Run

    made = evaluate_run(
        run, data, part=part, skip_unknown=skip_unknown, columns=given_columns(context),
        skip_bad=skip_bad, out=out, overwrite=overwrite, tta=tta, against=against,
        prevalence=prevalence, costs=costs, coverage=coverage, refer_above=refer_above,
        resamples=resamples, images=not no_images, device=device, quiet=quiet,
    )  # fmt: skip
    run, record = made.path, made.record
    kept = Run.open(run).record.resamples
    print_scores(record)
    if record.external is not None:
        typer.echo(f"\n{format_external(record.external, record.sets)}")
    if (
        Decide(prevalence, costs, coverage, refer_above) != Decide()
        and record.decisions is not None
    ):
        typer.echo(f"\n{format_decisions(record.decisions, record.sets)}")
    if against is not None:
        typer.echo("")
        typer.echo(compare_runs(run, against, resamples=resamples))
    if resamples < kept:
        typer.echo(
            f"\nNothing was written: the intervals of the record are better, with {kept} resamples"
        )
        return
    typer.secho(f"\nThe report: {run / 'report.html'}", bold=True)


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
