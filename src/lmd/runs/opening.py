"""The folder of a run before training: made and locked, or found again and checked."""

from collections.abc import Collection
from contextlib import ExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from lmd.base.distributed import rank
from lmd.base.errors import LmdError
from lmd.base.files import clear_leftovers
from lmd.base.lock import locked
from lmd.base.paths import check_outside
from lmd.methods import DEFAULT, find_method
from lmd.protocol import load_protocol
from lmd.report import write_card, write_report
from lmd.runfolder.folder import WRITTEN_AGAIN, RunFolder
from lmd.runfolder.record import Request

WEIGHTS = ("backbone", "weights")  # settings that lmd chooses if the user does not


def open_run(
    held: ExitStack,
    folder: Path,
    request: Request,
    *,
    resume: bool,
    overwrite: bool,
    given: Collection[str],
) -> tuple[RunFolder, Request, bool]:
    """The run in a folder, what it is asked for, and whether it has begun and is resumed.

    The first process locks the folder. A run that is to be overwritten stays until
    ``RunFolder.create``. A resumed run must have the values that were ``given``, by their names; it
    keeps its backbone and weights if they were not.
    """
    begun = resume and (folder / "record.json").exists()
    if not begun and not request.data:
        if not resume:
            raise LmdError("give DATA, or --resume and the run to continue as --out")
        raise LmdError(f"there is no run to resume in {folder}: give DATA to start a new run")
    if rank() == 0:
        if not begun:
            RunFolder.check_free(folder, overwrite=overwrite)
            check_outside(folder, request.data)
        if not folder.exists():
            new = [folder, *takewhile(lambda above: not above.exists(), folder.parents)]
            held.callback(_forget_unborn, folder, new)
        held.enter_context(locked(folder, "training", remove=True))
        # Another training may have ended while this one waited for the lock.
        begun = resume and (folder / "record.json").exists()
        clear_leftovers(folder, folder / "checkpoint")
        if begun:
            RunFolder(folder).make_checkpoint_folder()
    if begun:
        return *_reopen(folder, request, given), True
    return RunFolder(folder), request, False


def given_names(request: Request, settings: Collection[str], *, named: bool) -> set[str]:
    """Names of what the user gave: settings, and what differs from the defaults.

    ``named`` says that a protocol was given, and with it the values of all its fields.
    """
    usual = Request(data=request.data, method=DEFAULT).model_dump(mode="json")
    asked = request.model_dump(mode="json", exclude={"data", "protocol", "settings", "columns"})
    differing = {key for key, value in asked.items() if value != usual[key]}
    protocol = {"protocol"} if named else set()
    return {*settings, *request.columns, *differing, *protocol}


def _forget_unborn(folder: Path, new: list[Path]) -> None:
    """Remove the ``new`` folders of a run that ended before it had a record."""
    if (folder / "record.json").exists():
        return
    with suppress(OSError):  # raised by the first one that is not empty
        for path in filter(Path.exists, (folder / "checkpoint", *new)):
            path.rmdir()


def is_complete(run: RunFolder) -> bool:
    """Whether a run is finished and has all its files.

    What a finished run lacks and its other files contain is written again: a run may have been
    killed while its report was written.
    """
    if not run.record_path.exists():
        return False
    record = run.read_record()
    if record.status != "finished":
        return False
    lacks = run.lacks(record)
    if lacks - WRITTEN_AGAIN:
        return False
    if lacks and rank() == 0:
        files = run.read()
        run.write_history(files.history)
        write_report(files)
        write_card(files.record, run.path)
    return True


def _reopen(folder: Path, request: Request, given: Collection[str]) -> tuple[RunFolder, Request]:
    run = RunFolder.open(folder)
    found = run.read_record()
    if found.external is not None:
        raise LmdError(
            f"{folder} is an external validation of {found.external.run}, not a run: there is "
            "nothing to resume"
        )
    before = found.request
    try:
        find_method(before.method).settings(before.settings)
        load_protocol(None, before.protocol)
    except LmdError as error:
        raise LmdError(
            f"{run.record_path}: field 'request': {error}; restore the file, or start a new run"
        ) from None
    old, new = _leaves(before), _leaves(request)
    if not {*given} & {*WEIGHTS, "protocol"}:
        new |= {("protocol", key): old.get(("protocol", key)) for key in WEIGHTS}
    changed = [
        f"{name}: {old.get((part, name))} → {new.get((part, name))}"
        for part, name in old | new
        if old.get((part, name)) != new.get((part, name))
        # Without DATA, everything that was not given is as it was.
        and (request.data or name in given or part in given)
    ]
    if changed:
        raise LmdError(
            f"{folder} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + f"\nRun `lmd train --resume --out {folder}` to resume it, or start a new run."
        )
    return run, before


def _leaves(request: Request) -> dict[tuple[str, str], Any]:
    """All values of a request by part and name."""
    values = request.model_dump(mode="json")
    parts = {part: values.pop(part) for part in ("protocol", "settings", "columns")}
    inner = {(part, key): value for part, found in parts.items() for key, value in found.items()}
    return {("", key): value for key, value in values.items()} | inner
