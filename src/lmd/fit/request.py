"""Check a request for a run, and open or resume its folder."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from lmd.base.distributed import rank
from lmd.base.errors import LmdError
from lmd.base.files import check_outside, clear_leftovers
from lmd.base.lock import locked
from lmd.base.text import as_toml, as_typed, unknown
from lmd.data.source import Columns
from lmd.methods import DEFAULT, METHODS, find_method
from lmd.methods.method import Method
from lmd.model.backbones import available
from lmd.report.card import write_card
from lmd.report.page import write_report
from lmd.runs.folder import WRITTEN_AGAIN, Run
from lmd.runs.protocol import Protocol, current_names, load_protocol
from lmd.runs.record import Request


@dataclass(frozen=True)
class Resolved:
    """The complete protocol and settings.

    ``notes`` say which given settings have no effect, and where the protocol overrides a profile.
    """

    protocol: Protocol
    settings: dict[str, Any]
    notes: list[str]


def resolve(
    method: Method, protocol: str | Path | None, given: Mapping[str, Any], profile: str = "default"
) -> Resolved:
    """Divide settings into those of the protocol and of the method, and complete both.

    Keys of the protocol override its file; all other keys must be settings of the method.
    """
    given = current_names(given)
    shared = {k: v for k, v in given.items() if k in Protocol.model_fields}
    own = {k: v for k, v in given.items() if k not in Protocol.model_fields}
    known = method.defaults()
    for key in own:
        if key not in known:
            there_are = f"the protocol and method {method.key!r} have"
            names = [*sorted(Protocol.model_fields), *sorted(known)]
            raise LmdError(unknown("setting", key, names, there_are=there_are))
    complete = load_protocol(protocol, shared)
    _check_names(complete, method)
    family = complete.methods.get(method.family, {}) if method.family else {}
    row = complete.methods.get(method.key, {})
    in_file = family | row
    settings = method.settings({**row, **own}, profile, family)
    # Those of a protocol are for all methods of a family, whatever parts they have.
    unused = method.unused(settings)
    notes = [
        f"Setting {key} has no effect here: it needs {_needs(unused[key])}."
        for key in own
        if key in unused
    ]
    if profile != "default":
        before = method.settings({}, profile)
        name = f"Protocol {protocol}" if protocol is not None else "The protocol"
        notes += [
            f"{name} sets {key} = {_text(value)}; profile {profile} has {_text(before[key])}."
            for key, value in in_file.items()
            if settings[key] == value != before[key]
        ]
    return Resolved(complete, settings, notes)


def _check_names(protocol: Protocol, method: Method) -> None:
    """An ``LmdError`` if the protocol has settings for a method that does not exist."""
    names = {method.key, method.family, *METHODS, *(known.family for known in METHODS.values())}
    for name in protocol.methods:
        if name not in names:
            known = sorted(filter(None, names))
            raise LmdError(f"[methods.{name}] of the protocol: {unknown('method', name, known)}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _needs(values: Mapping[str, Any]) -> str:
    return " and ".join(f"{key}={as_typed(value)}" for key, value in values.items())


def with_weights(asked: Resolved) -> tuple[Resolved, dict[str, Any]]:
    """The same with a backbone whose weights can be had here, and the settings that changed."""
    wanted = asked.protocol.backbone
    backbone, weights, problem = available(wanted)
    if not problem:
        return asked, {}
    how = "with the ImageNet weights that are installed" if weights != "none" else "from scratch"
    note = (
        f"The ImageNet weights of {wanted} cannot be had ({problem}), so {backbone} is trained "
        f"{how}."
    )
    chosen = {"backbone": backbone, "weights": weights}
    protocol = asked.protocol.model_copy(update=chosen)
    return Resolved(protocol, asked.settings, [*asked.notes, note]), chosen


def train_command(
    request: Request, protocol: str | Path | None, given: Mapping[str, Any]
) -> list[str]:
    """The words of the command that makes a run, without its folder."""
    words = ["lmd", "train", *filter(None, [request.data]), "--method", request.method]
    words += ["--protocol", str(protocol)] if protocol is not None else []
    words += ["--profile", request.profile] if request.profile != "default" else []
    for key, value in given.items():
        words += ["--set", f"{key}={as_toml(value)}"]
    words += Columns.of(request.columns).words()
    words += ["--skip-bad"] if request.skip_bad else []
    words += ["--keep-features"] if request.keep_features else []
    return words + ([] if request.images else ["--no-images"])


WEIGHTS = ("backbone", "weights")  # settings that lmd chooses if the user does not


def open_run(
    held: ExitStack,
    folder: Path,
    request: Request,
    *,
    resume: bool,
    overwrite: bool,
    given: Collection[str],
) -> tuple[Run, Request, bool]:
    """The run in a folder, what it is asked for, and whether it has begun and is resumed.

    The first process locks the folder. A run that is to be overwritten stays until
    ``Run.create``. A resumed run must have the values that were ``given``, by their names; it
    keeps its backbone and weights if they were not.
    """
    begun = resume and (folder / "record.json").exists()
    if not begun and not request.data:
        if not resume:
            raise LmdError("give DATA, or --resume and the run to continue as --out")
        raise LmdError(f"there is no run to resume in {folder}: give DATA to start a new run")
    if rank() == 0:
        if not begun:
            Run.check_free(folder, overwrite=overwrite)
            check_outside(folder, request.data)
        if not folder.exists():
            new = [folder, *takewhile(lambda above: not above.exists(), folder.parents)]
            held.callback(_forget_unborn, folder, new)
        held.enter_context(locked(folder, "training", remove=True))
        # Another training may have ended while this one waited for the lock.
        begun = resume and (folder / "record.json").exists()
        clear_leftovers(folder, folder / "checkpoint")
        if begun:
            Run(folder).make_checkpoint_folder()
    if begun:
        return *_reopen(folder, request, given), True
    return Run(folder), request, False


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


def is_complete(run: Run) -> bool:
    """Whether a run is finished and has all its files.

    What a finished run lacks and its other files contain is written again: a run may have been
    killed while its report was written.
    """
    if not run.is_finished():
        return False
    lacks = run.missing_files()
    if lacks - WRITTEN_AGAIN:
        return False
    if lacks and rank() == 0:
        run.write_history(run.record.history)
        write_report(run)
        write_card(run.record, run.path)
    return True


def _reopen(folder: Path, request: Request, given: Collection[str]) -> tuple[Run, Request]:
    run = Run.open(folder)
    found = run.record
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
