"""`lmd train --folds`: cross-validation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmd.base.errors import LmdError

if TYPE_CHECKING:
    from lmd.runs.folder import Run


def is_cross_validation(folds: int | None, out: Path | None, resume: bool, **only: object) -> bool:
    """Whether folds are asked for, or a cross-validation is to be resumed; ``only`` need that."""
    if folds is not None or (resume and out is not None and (out / "folds.json").exists()):
        return True
    for name, value in only.items():
        if value is not None:
            raise LmdError(f"--{name} is for a cross-validation: give --folds too")
    return False


def train_folds(
    data: str | None,
    folds: int | None,
    final: str | None,
    workers: int | None,
    keep_features: bool,
    asked: dict[str, Any],
) -> "Run":
    """Train all folds; what is not given when resuming is as it was."""
    from lmd.crossval.folds import cross_validate

    if keep_features:
        raise LmdError(
            "--keep-features is for one model: leave it out with --folds, and run `lmd index` on "
            "a fold"
        )
    given: dict[str, Any] = {"folds": folds, "final": final, "workers": workers}
    return cross_validate(data, **asked, **{k: v for k, v in given.items() if v is not None})
