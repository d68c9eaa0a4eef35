"""Numbers and reports from saved predictions, without training or reading images."""

from pathlib import Path

from lmd.base.errors import LmdError
from lmd.model import add_answers
from lmd.report import write_card, write_report
from lmd.runfolder.folder import RunFiles, RunFolder
from lmd.runfolder.pairing import paired
from lmd.runfolder.record import Record
from lmd.runs.decide import answers_of, with_prior
from lmd.runs.score import scored
from lmd.scoring.comparing import compare, format_comparison
from lmd.scoring.rules import Wanted
from lmd.scoring.sample import Sample


def rescore(
    path: Path,
    *,
    resamples: int = 1000,
    wanted: Wanted | None = None,
    against: Path | None = None,
    images: bool = True,
) -> Record:
    """Recompute the record's numbers from ``predictions.npz`` and rewrite record and report.

    What is ``wanted`` decides the numbers about decisions. The report compares the run with
    ``against``, another run on the same test images. A model of an earlier version gets what its
    file lacks for decisions.
    """
    run = RunFolder.open(path)
    if run.read_record().status != "finished":
        raise LmdError(f"{path} is not finished: run `lmd train --resume --out {path}`")
    before = run.read()
    others = [] if against is None else [RunFolder.open(against).read()]
    for other in others:
        paired(before, other)  # refused before anything is written
    predictions = before.predictions or run.read_predictions()
    record = scored(with_prior(before.record), predictions, resamples=resamples, wanted=wanted)
    if record.external is not None and _coverage(record) != _coverage(before.record):
        external = record.external.model_copy(update={"coverage": None})
        record = record.replaced(external=external)
    add_answers(path, *answers_of(record, predictions))
    run.write_record(record)
    files = RunFiles(path, record, predictions, before.history)
    write_report(files, compare=others, resamples=resamples, images=images)
    if record.external is None and record.tta is None:
        write_card(record, path)
    return record


def _coverage(record: Record) -> float | None:
    return None if record.sets is None else record.sets.requested


def check_comparable(a: Path, b: Path) -> None:
    """An ``LmdError`` unless two runs can be compared; asked before the numbers of one appear."""
    paired(RunFolder.open(a).read(), RunFolder.open(b).read())


def compare_runs(a: Path, b: Path, *, resamples: int = 1000) -> str:
    """Differences of two runs in all metrics with paired intervals and Holm's p-values, as text."""
    left, right = RunFolder.open(a).read(), RunFolder.open(b).read()
    mine, theirs = paired(left, right)
    tiers = left.record.tiers.assignment
    first, second = (
        Sample(mine.labels, probabilities, tiers, mine.groups)
        for probabilities in (mine.probabilities, theirs)
    )
    title = (
        f"{a.name} minus {b.name}, in points, on the same {len(mine.ids)} test images (paired "
        "bootstrap; p by Holm for the number of metrics)"
    )
    return format_comparison(compare(first, second, resamples=resamples), title)
