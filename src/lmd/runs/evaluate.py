"""Evaluation from Python: the numbers of a run again, perhaps for another mix of patients."""

from os import PathLike
from pathlib import Path

from lmd.runfolder.folder import RunFolder
from lmd.runs.rescore import rescore
from lmd.scoring.costs import GivenCosts
from lmd.scoring.prevalence import Prevalence
from lmd.scoring.rules import Wanted


def evaluate(
    run: str | PathLike[str],
    *,
    prevalence: Prevalence | None = None,
    costs: GivenCosts | None = None,
    coverage: float | None = None,
    refer_above: int | None = None,
    resamples: int = 1000,
) -> RunFolder:
    """Compute all numbers and the report of a run again from its predictions.

    ``run`` is what ``lmd.train`` returned, or the path of a run folder. The other arguments are
    those of ``lmd evaluate``: see docs/decisions.md. ``metrics`` of the result has the numbers.
    """
    folder = RunFolder.open(Path(run))
    rescore(
        folder.path,
        resamples=resamples,
        wanted=Wanted(prevalence, costs, coverage, refer_above),
    )
    return folder
