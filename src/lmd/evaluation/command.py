"""``lmd evaluate``: all numbers of a run again, or of its model on images from another place."""

from pathlib import Path
from typing import Annotated

import typer

from lmd.data.source import Columns
from lmd.decisions.decide import Decide


def evaluate(
    run: Path,
    *,
    data: str | None = None,
    part: str | None = None,
    skip_unknown: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    against: Path | None = None,
    decide: Decide = Decide(),
    resamples: Annotated[int, typer.Option(min=1)] = 1000,
    tta: bool = False,
    images: bool = True,
    columns: Columns = Columns(),
    skip_bad: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> None:
    """Compute all numbers and the report of a run again, or score its model on other images.

    With --tta, the images are read and predicted again, and the numbers go to the folder RUN-tta.

    Args:
        run: A run folder.
        data: Labelled images from another place, as for training: score the model on these. With
            --tta: where the run's own images are now. By default the run's own test part.
        part: The part of --data to use: test, validation or train. By default all its images.
        skip_unknown: Do not score images of --data whose class the model does not know.
        out: The folder for the numbers on --data. By default RUN-on-DATA.
        overwrite: Replace the evaluation in --out.
        against: The folder of another run on the same test images, to compare with.
        resamples: Bootstrap resamples; fewer than the run has only print.
    """
    from lmd.decisions.section import format_decisions
    from lmd.evaluation import evaluate as evaluation
    from lmd.evaluation.shift import format_external
    from lmd.report.text import format_scores
    from lmd.runs.folder import Run

    result = evaluation.evaluate(
        run, data, part=part, skip_unknown=skip_unknown, columns=columns.changed(),
        skip_bad=skip_bad, out=out, overwrite=overwrite, tta=tta, against=against,
        **vars(decide), resamples=resamples, images=images, device=device, quiet=quiet,
    )  # fmt: skip
    run, record = result.path, result.record
    best = Run.open(run).record.resamples
    typer.echo(f"\n{format_scores(record)}")
    if record.external is not None:
        typer.echo(f"\n{format_external(record)}")
    if decide != Decide() and record.decisions is not None:
        typer.echo(f"\n{format_decisions(record.decisions, record.sets)}")
    if against is not None:
        typer.echo(f"\n{evaluation.compare_runs(run, against, resamples=resamples)}")
    if resamples < best:
        typer.echo(
            f"\nNothing was written: the intervals of the record are better, with {best} resamples"
        )
        return
    typer.secho(f"\nThe report: {run / 'report.html'}", bold=True)
