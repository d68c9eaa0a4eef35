"""Numbers and reports from saved predictions, without training or reading images."""

from pathlib import Path

import numpy as np

from lmd.base.errors import LmdError
from lmd.model import add_answers
from lmd.report import write_report
from lmd.runfolder.folder import RunFiles, RunFolder
from lmd.runfolder.pairing import paired
from lmd.runfolder.record import Record
from lmd.runs.decide import answers_of, with_prior
from lmd.runs.score import scored
from lmd.scoring.intervals import holm, paired_differences
from lmd.scoring.metrics import METRICS
from lmd.scoring.rules import Wanted
from lmd.scoring.sample import Sample


def rescore(path: Path, *, resamples: int = 1000, wanted: Wanted | None = None) -> Record:
    """Recompute the record's numbers from ``predictions.npz`` and rewrite record and report.

    What is ``wanted`` decides the numbers about decisions. A model of an earlier version gets what
    its file lacks for decisions.
    """
    run = RunFolder.open(path)
    if run.read_record().status != "finished":
        raise LmdError(f"{path} is not finished: run `lmd train --resume --out {path}`")
    before = run.read()
    predictions = before.predictions or run.read_predictions()
    record = scored(with_prior(before.record), predictions, resamples=resamples, wanted=wanted)
    add_answers(path, *answers_of(record, predictions))
    run.write_record(record)
    write_report(RunFiles(path, record, predictions, before.history))
    return record


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
    found = paired_differences(first, second, resamples=resamples)
    known = {key: one for key, one in found.items() if np.isfinite(one.value)}
    corrected = dict(zip(known, holm([one.p_value for one in known.values()]), strict=True))
    lines = [
        f"{a.name} minus {b.name}, in points, on the same {len(mine.ids)} test images (paired "
        "bootstrap; p by Holm)"
    ]
    for key, one in found.items():
        title = METRICS[key].title
        if key in known:
            span = f"95 % {100 * one.low:+.2f} to {100 * one.high:+.2f}"
            lines.append(
                f"  {title:<26} {100 * one.value:+7.2f}   {span}   p = {corrected[key]:.3f}"
            )
        else:
            lines.append(f"  {title:<26} not computable")
    return "\n".join(lines)
