"""Which run a model is of, where a folder has the runs of a cross-validation."""

from pathlib import Path

from lmd.base.errors import LmdError
from lmd.runfolder.folder import RunFiles, RunFolder
from lmd.runfolder.record import Record

FINAL = "final"  # the run on all images


def of_one_model(path: Path) -> RunFolder:
    """The run that trained the model in a folder: of a cross-validation, its last one.

    An ``LmdError`` if the folder has the average of several models.
    """
    run = RunFolder.open(path)
    record = run.read_record()
    if record.folds is None:
        return run
    if record.folds.final != "refit":
        raise LmdError(several_models(record))
    return RunFolder.open(path / FINAL)


def trainings_of(run: RunFiles) -> list[Record]:
    """The records of the runs that trained what a folder ships, as far as they are still there."""
    folds = run.record.folds
    if folds is None:
        return [run.record]
    names = [FINAL] if folds.final == "refit" else [fold.name for fold in folds.runs]
    found = [RunFolder(run.folder / name) for name in names]
    return [one.read_record() for one in found if one.record_path.exists()]


def several_models(record: Record) -> str:
    """The message for what cannot be done with all folds of a cross-validation."""
    assert record.folds is not None
    names = [fold.name for fold in record.folds.runs[:1]]
    names += [FINAL] if record.folds.final == "refit" else []
    return (
        f"{record.name} is a cross-validation, and this is about one of its models: give its "
        f"folder, {' or '.join(f'{record.name}/{name}' for name in names)}"
    )
