"""The request of a run: its protocol and its method's settings, complete and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.text import as_toml, as_typed, unknown
from lmd.contract.method import Method
from lmd.methods import METHODS
from lmd.model.backbones import available
from lmd.protocol import Protocol, current_names, load_protocol
from lmd.runfolder.record import Request


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
    words += column_words(request.columns)
    words += ["--skip-bad"] if request.skip_bad else []
    words += ["--keep-features"] if request.keep_features else []
    return words + ([] if request.images else ["--no-images"])


def column_words(columns: Mapping[str, Any]) -> list[str]:
    """The options that say how a manifest is read.

    >>> column_words({"label_column": "dx", "allow_outside": True})
    ['--label-column', 'dx', '--allow-outside']
    """
    words: list[str] = []
    for key, value in columns.items():
        option = "--" + key.replace("_", "-")
        words += ([option] if value else []) if isinstance(value, bool) else [option, str(value)]
    return words
