"""`lmd methods`: all methods, or one in plain text of 80 columns without colours."""

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from lmd.contract.method import Method

WIDTH = 80
INDENT = 30  # of a setting's description


def describe(method: "Method") -> str:
    """Title, paper, stages and note, then each setting with its default, then the profiles."""
    facts = {"paper": method.paper, "stages": " → ".join(method.stages), "note": method.note}
    lines = [f"{method.key}: {method.title}"]
    lines += [_wrapped(f"{name}: {text}", 2) for name, text in facts.items() if text]
    defaults = method.defaults()
    lines += ["", "settings" if defaults else "no settings"]
    for setting in method.describe():
        head = f"  {setting.name} = {_text(defaults[setting.name])}"
        rule = f" {setting.rule[0].upper()}{setting.rule[1:]}."
        said = _wrapped(setting.description + rule, INDENT)
        if len(head) < INDENT:
            lines.append(head.ljust(INDENT) + said.lstrip())
        else:
            lines += [_wrapped(head.strip(), 2, hang=4), said]
    for profile, values in method.profiles.items():
        lines += ["", f"profile {profile}"]
        lines += [f"  {name} = {_text(value)}" for name, value in values.items()]
    return "\n".join(lines)


def _wrapped(text: str, indent: int, hang: int | None = None) -> str:
    rest = " " * (indent if hang is None else hang)
    return textwrap.fill(text, WIDTH, initial_indent=" " * indent, subsequent_indent=rest)


def _text(value: object) -> str:
    """A value as ``--set`` takes it, where TOML has it."""
    if isinstance(value, list):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value)


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="The method to describe.", show_default="list all methods"),
    ] = None,
) -> None:
    """List all methods, or describe one: paper, stages, settings and profiles."""
    from lmd.methods import METHODS, find_method

    if name is not None:
        typer.echo(describe(find_method(name)))
        return
    # A name has to be whole to be copied.
    table = Table(Column("method", no_wrap=True), "title", "stages", box=box.SIMPLE_HEAD)
    for row in METHODS.values():
        table.add_row(row.key, row.title, " → ".join(row.stages))
    Console().print(table)
    typer.echo("`lmd methods NAME` describes a method: its paper, settings and profiles.")
