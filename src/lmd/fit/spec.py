"""What a run is asked to do, checked once, and the folder in which it is started or resumed."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from lmd.base.distributed import rank
from lmd.base.errors import LmdError
from lmd.base.files import check_outside, clear_leftovers, locked
from lmd.base.text import as_toml, as_typed, unknown
from lmd.data.source import Source
from lmd.methods import DEFAULT, METHODS, find_method
from lmd.methods.method import Method, Settings
from lmd.runs.folder import Run
from lmd.runs.protocol import Protocol, load_protocol
from lmd.runs.record import Request

WEIGHTS = ("backbone", "weights")  # settings that lmd chooses if the user does not


@dataclass(frozen=True)
class Spec:
    """What a run trains and keeps; protocol and settings are complete and valid.

    ``notes`` say which settings have no effect, and where the protocol overrides a profile.
    ``overrides`` are the settings of the user, on top of the protocol called ``base``.
    """

    source: Source
    method: Method
    settings: Settings
    protocol: Protocol
    profile: str = "default"
    keep_features: bool = False
    images: bool = True
    notes: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    base: str | Path | None = None

    @cached_property
    def values(self) -> dict[str, Any]:
        """The settings of the method, ready for JSON."""
        return self.settings.model_dump(mode="json")

    @cached_property
    def request(self) -> Request:
        """The part of the record that ``--resume`` continues from."""
        return Request(
            data=str(self.source.data),
            method=self.method.key,
            profile=self.profile,
            protocol=self.protocol.model_dump(mode="json"),
            settings=self.values,
            columns=self.source.columns.changed(),
            skip_bad=self.source.skip_bad,
            keep_features=self.keep_features,
            images=self.images,
        )

    @property
    def folder(self) -> Path:
        """``runs/DATA-METHOD-seedN``, with the profile unless it is the default."""
        data = Path(self.source.data).stem or "run"
        profile = "" if self.profile == "default" else f"-{self.profile}"
        return Path("runs") / f"{data}-{self.method.key}{profile}-seed{self.protocol.seed}"

    @property
    def chosen(self) -> set[str]:
        """Names of what the user chose: settings, and what differs from the defaults."""
        usual = Request(data="", method=DEFAULT)
        names = ("method", "profile", "skip_bad", "keep_features", "images")
        changed = {n for n in names if getattr(self.request, n) != getattr(usual, n)}
        base = ["protocol"] if self.base else []
        return {*self.overrides, *self.request.columns, *changed, *base}

    def with_available_weights(self) -> "Spec":
        """Replace the backbone by one whose weights can be had here, if the user chose none."""
        from lmd.model.backbones import available

        if self.chosen & {*WEIGHTS, "protocol"}:
            return self
        backbone, weights, problem = available(self.protocol.backbone)
        if not problem:
            return self
        how = "from scratch"
        if weights != "none":
            how = "with the ImageNet weights that are installed"
        note = (
            f"The ImageNet weights of {self.protocol.backbone} cannot be had ({problem}), so "
            f"{backbone} is trained {how}."
        )
        changes = {"backbone": backbone, "weights": weights}
        return replace(
            self,
            protocol=self.protocol.model_copy(update=changes),
            overrides={**self.overrides, **changes},
            notes=(*self.notes, note),
        )

    def command(self) -> list[str]:
        """Return the words of the command that makes the run, without its folder."""
        data = str(self.source.data)
        words = ["lmd", "train", *filter(None, [data]), "--method", self.method.key]
        words += ["--protocol", str(self.base)] if self.base is not None else []
        words += ["--profile", self.profile] if self.profile != "default" else []
        for key, value in self.overrides.items():
            words += ["--set", f"{key}={as_toml(value)}"]
        words += self.source.words()
        words += ["--keep-features"] if self.keep_features else []
        return words + ([] if self.images else ["--no-images"])


def resolve(
    method: Method,
    protocol: str | Path | None,
    overrides: Mapping[str, Any],
    profile: str = "default",
    source: Source | None = None,
    *,
    keep_features: bool = False,
    images: bool = True,
) -> Spec:
    """Divide settings between protocol and method, and complete both.

    Keys of the protocol override its file; all other keys must be settings of the method.
    """
    shared = {k: v for k, v in overrides.items() if k in Protocol.model_fields}
    special = {k: v for k, v in overrides.items() if k not in Protocol.model_fields}
    complete = load_protocol(protocol, shared)
    defaults = method.settings()
    for key in special:
        if key not in defaults:
            there_are = f"the protocol and method {method.key!r} have"
            names = [*sorted(Protocol.model_fields), *sorted(defaults)]
            raise LmdError(unknown("setting", key, names, there_are=there_are))
    for name in complete.methods:
        # The families of all methods, only if need be: to know them is to import all methods.
        if name not in {method.key, method.family, *METHODS}:
            names = sorted({method.key, *METHODS, *(other.family for other in METHODS.values())})
            if name not in names:
                raise LmdError(
                    f"[methods.{name}] of the protocol: {unknown('method', name, names)}"
                )
    family, row = (complete.methods.get(name, {}) for name in (method.family, method.key))
    settings = method.check({**row, **special}, profile, family)
    values = settings.model_dump(mode="json")
    notes = []
    unused = method.unused(values)
    for key in filter(unused.__contains__, special):
        needs = " and ".join(f"{name}={as_typed(value)}" for name, value in unused[key].items())
        notes.append(f"Setting {key} has no effect here: it needs {needs}.")
    if profile != "default":
        before = method.settings({}, profile)
        name = f"Protocol {protocol}" if protocol is not None else "The protocol"
        notes += [
            f"{name} sets {key} = {_text(value)}; profile {profile} has {_text(before[key])}."
            for key, value in (family | row).items()
            if values[key] == value != before[key]
        ]
    return Spec(
        source=source or Source(""),
        method=method,
        settings=settings,
        protocol=complete,
        profile=profile,
        keep_features=keep_features,
        images=images,
        notes=tuple(notes),
        overrides=dict(overrides),
        base=protocol,
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def open_run(
    stack: ExitStack, folder: Path, spec: Spec, *, resume: bool, overwrite: bool
) -> tuple[Run, Spec, bool]:
    """Return the run in a folder, what it trains, and whether it has begun and is resumed.

    The first process locks the folder until ``stack`` is closed. A run that is to be overwritten
    stays until ``Run.create``.
    """
    begun = resume and (folder / "record.json").exists()
    if not begun and not spec.source.data:
        if not resume:
            raise LmdError("give DATA, or --resume and the run to continue as --out")
        raise LmdError(f"there is no run to resume in {folder}: give DATA to start a new run")
    run = Run(folder)
    if rank() == 0:
        if not begun:
            run.check_free(folder, overwrite=overwrite)
            check_outside(folder, str(spec.source.data))
        if not folder.exists():
            new = [folder, *takewhile(lambda above: not above.exists(), folder.parents)]
            stack.callback(_forget_unborn, folder, new)
        stack.enter_context(locked(folder, "training", remove=True))
        # Another training may have ended while this one waited for the lock.
        begun = resume and (folder / "record.json").exists()
        clear_leftovers(folder, folder / "checkpoint")
        if begun:
            run.make_checkpoint_folder()
    return run, _reopen(run, spec) if begun else spec, begun


def _forget_unborn(folder: Path, new: list[Path]) -> None:
    """Remove the ``new`` folders of a run that ended before it had a record."""
    if (folder / "record.json").exists():
        return
    with suppress(OSError):  # raised by the first one that is not empty
        for path in filter(Path.exists, (folder / "checkpoint", *new)):
            path.rmdir()


def _reopen(run: Run, spec: Spec) -> Spec:
    """Return what a run was started with, which must agree with what the user asks for now.

    It keeps its backbone and weights if the user did not choose them.
    """
    record = run.record
    if record.external is not None:
        raise LmdError(
            f"{run.path} is an external validation of {record.external.run}, not a run: there is "
            "nothing to resume"
        )
    request = record.request
    try:
        method = find_method(request.method)
        before = Spec(
            source=Source.of(request),
            method=method,
            settings=method.check(request.settings),
            protocol=load_protocol(None, request.protocol),
            profile=request.profile,
            keep_features=request.keep_features,
            images=request.images,
        )
    except LmdError as error:
        raise LmdError(
            f"{run.record_path}: field 'request': {error}; restore the file, or start a new run"
        ) from None
    old, new = _leaves(before.request), _leaves(spec.request)
    if not spec.chosen & {*WEIGHTS, "protocol"}:
        new |= {("protocol", key): old.get(("protocol", key)) for key in WEIGHTS}
    changed = [
        f"{name}: {old.get((part, name))} → {new.get((part, name))}"
        for part, name in old | new
        if old.get((part, name)) != new.get((part, name))
        # Without DATA, everything that the user did not choose is as it was.
        and (spec.source.data or {name, part} & spec.chosen)
    ]
    if changed:
        raise LmdError(
            f"{run.path} was started with other settings, so it cannot be resumed with these:\n  "
            + "\n  ".join(changed)
            + f"\nRun `lmd train --resume --out {run.path}` to resume it, or start a new run."
        )
    return before


def _leaves(request: Request) -> dict[tuple[str, str], Any]:
    """Return all values of a request by part and name."""
    leaves: dict[tuple[str, str], Any] = {}
    for name, value in request.model_dump(mode="json").items():
        if name in ("protocol", "settings", "columns"):
            leaves |= {(name, key): inner for key, inner in value.items()}
        else:
            leaves["", name] = value
    return leaves
