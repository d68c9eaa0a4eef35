"""`lmd methods` and `lmd protocols`: all of them, or one in plain text of 80 columns."""

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from lmd.base.text import as_typed, rule_of, text_table

if TYPE_CHECKING:
    from lmd.methods.method import Method


def describe(method: "Method") -> str:
    """Return title, paper, stages and note, each setting with its default, and the profiles."""
    facts = {"paper": method.paper, "stages": " → ".join(method.stages), "note": method.note}
    lines = [f"{method.key}: {method.title}"]
    lines += [_wrapped(f"{name}: {text}", 2) for name, text in facts.items() if text]
    defaults = method.settings()
    settings = [
        (setting.name, defaults[setting.name], setting.rule, setting.description)
        for setting in method.describe()
    ]
    lines += ["", "settings, for --set" if defaults else "no settings", *_settings(settings)]
    if any("(row " in description for *_, description in settings):
        lines += ["", "A row is one of docs/paper-vs-code.md."]
    for profile, values in method.profiles.items():
        lines += ["", f"profile {profile}", *_values(values)]
    return "\n".join(lines)


def describe_protocol(name: str) -> str:
    """Return what a shipped protocol is for, and each setting with its value there."""
    from lmd.runs.protocol import Protocol, about_protocol, load_protocol

    protocol = load_protocol(name)
    rules = Protocol.model_json_schema()["properties"]
    settings = [
        (key, getattr(protocol, key), rule_of(rules[key]), field.description or "")
        for key, field in Protocol.model_fields.items()
        if key != "methods"
    ]
    lines = [name, _wrapped(about_protocol(name), 2), ""]
    lines += ["settings, for --set", *_settings(settings)]
    for family, values in protocol.methods.items():
        lines += ["", f"settings of method {family}", *_values(values)]
    return "\n".join(lines)


def _settings(settings: Iterable[tuple[str, Any, str, str]]) -> list[str]:
    """Return two lines for each: name, value and rule, then what it is for."""
    lines = []
    for name, value, rule, description in settings:
        lines.append(_wrapped(f"{name} = {as_typed(value)}  ({rule})", 2, hang=8))
        lines.append(_wrapped(description, 6))
    return lines


def _values(values: Mapping[str, Any]) -> list[str]:
    return [f"  {name} = {as_typed(value)}" for name, value in values.items()]


def _wrapped(text: str, indent: int, hang: int = 0) -> str:
    first, rest = " " * indent, " " * (hang or indent)
    return textwrap.fill(
        text, 80, initial_indent=first, subsequent_indent=rest, break_long_words=False
    )


def _list(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal; elsewhere one plain line for each row."""
    if not sys.stdout.isatty():
        typer.echo(text_table(rows, "l"))
        return
    # A name has to be whole to be copied.
    table = Table(Column(header[0], no_wrap=True), *header[1:], box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False, highlight=False)


def methods(name: str | None = None) -> None:
    """List all methods, or describe one: paper, stages, settings and profiles.

    Args:
        name: The method to describe. By default all are listed.
    """
    from lmd.methods import METHODS, find_method

    if name is not None:
        typer.echo(describe(find_method(name)))
        return
    rows = [(row.key, row.title, " → ".join(row.stages)) for row in METHODS.values()]
    _list(("method", "title", "stages"), rows)
    typer.echo("`lmd methods NAME` describes a method: its paper, settings and profiles.", err=True)


def protocols(name: str | None = None) -> None:
    """List the protocols of lmd, or show one: the settings that all methods share.

    Args:
        name: The protocol to describe. By default all are listed.
    """
    from lmd.runs.protocol import about_protocol, load_protocol, shipped_protocols

    if name is not None:
        typer.echo(describe_protocol(name))
        return
    rows = []
    for key in shipped_protocols():
        p = load_protocol(key)
        epochs, backbone = f"{p.epochs} + {p.stage2_epochs} epochs", f"{p.backbone}, {p.weights}"
        rows.append((key, f"{p.image_size} px", epochs, backbone, about_protocol(key)))
    _list(("protocol", "images", "training", "backbone, weights", "for"), rows)
    typer.echo(
        "`lmd protocols NAME` shows every setting of a protocol. Without one, `lmd train` uses the "
        "paper's values, as isic2019-lt does; LMD's own have --profile paper.",
        err=True,
    )
