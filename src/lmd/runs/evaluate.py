"""Evaluation of a run: from its predictions, with mirror images, or on images of another place."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.runfolder.folder import RunFolder
from lmd.runs.external import evaluate_external
from lmd.runs.rescore import check_comparable, rescore
from lmd.runs.tta import evaluate_tta
from lmd.scoring.costs import GivenCosts
from lmd.scoring.prevalence import Prevalence
from lmd.scoring.rules import Wanted


def evaluate(
    run: str | PathLike[str],
    data: str | PathLike[str] | None = None,
    *,
    part: str | None = None,
    skip_unknown: bool = False,
    columns: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    tta: bool = False,
    against: str | PathLike[str] | None = None,
    prevalence: Prevalence | None = None,
    costs: GivenCosts | None = None,
    coverage: float | None = None,
    refer_above: int | None = None,
    resamples: int = 1000,
    images: bool = True,
    device: str = "auto",
    quiet: bool = False,
) -> RunFolder:
    """Compute all numbers and the report of a run again, or those of its model on other images.

    ``run`` is what ``lmd.train`` returned, or the path of a run folder. Without ``data``, the
    numbers come from the predictions of the run; with ``tta``, its images are predicted again
    together with their mirror images, and the result is the folder ``RUN-tta``; ``data`` then says
    where they are now, if they have moved. Otherwise ``data`` are labelled images from another
    place, and the result is a folder of its own: see docs/external.md.
    The report compares the result with ``against``, another run on the same test images; without
    ``images`` it has no pictures. The other arguments are those of ``lmd evaluate``. ``metrics`` of
    the result has the numbers.
    """
    path, wanted = Path(run), Wanted(prevalence, costs, coverage, refer_above)
    other = None if against is None else Path(against)
    if data is None or tta:
        _refuse_without_data(
            "--data without --tta" if tta else "--data",
            part=part, out=out, skip_unknown=skip_unknown, overwrite=overwrite, skip_bad=skip_bad,
            **(columns or {}),
        )  # fmt: skip
        if other is not None:
            check_comparable(path, other)
        if not tta:
            rescore(path, resamples=resamples, wanted=wanted, against=other, images=images)
            return RunFolder.open(path)
        made = evaluate_tta(
            path, None if data is None else str(data), resamples=resamples, wanted=wanted,
            device=device, quiet=quiet,
        )  # fmt: skip
    else:
        made = evaluate_external(
            path, Path(data) if isinstance(data, PathLike) else data, part=part,
            skip_unknown=skip_unknown, columns=columns, skip_bad=skip_bad,
            out=None if out is None else Path(out), overwrite=overwrite, against=other,
            wanted=wanted, resamples=resamples, device=device, quiet=quiet,
        )  # fmt: skip
    if other is not None:
        rescore(made.path, resamples=resamples, wanted=wanted, against=other)
    return made


def _refuse_without_data(needed: str, **given: Any) -> None:
    """Options for the images of another place mean nothing without them."""
    for key, value in given.items():
        if value:
            raise LmdError(f"--{key.replace('_', '-')} needs {needed} as well")
