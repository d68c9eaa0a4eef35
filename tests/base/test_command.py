"""A command is made of a Python function: its parameters, its docstring, its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from lmd.base.command import as_command
from lmd.cli.commands import COMMANDS, app


@dataclass(frozen=True)
class Shade:
    """A colour.

    Attributes:
        tone: How light it is.
        deep: Make it deeper.
    """

    tone: float | None = None
    deep: bool = False


def paint(
    wall: Path,
    others: Sequence[Path] = (),
    *,
    colour: Literal["red", "blue"] = "red",
    settings: Annotated[Mapping[str, Any] | None, typer.Option("--set")] = None,
    layers: Annotated[int, typer.Option(min=1)] = 2,
    tape: str | Sequence[str] | None = None,
    frame: bool = True,
    quiet: bool = False,
    shade: Shade = Shade(),
    secret: str = "",
) -> tuple[Any, ...]:
    """Paint walls.

    Args:
        wall: The first wall, which has a description
            of two lines.
        others: More walls.
        colour: What colour.
        settings: More settings.
        layers: How many layers.
        tape: Where tape goes.
        frame: Paint the frame too.
        secret: For Python only.

    Returns:
        All arguments.
    """
    return wall, others, colour, settings, layers, tape, frame, quiet, shade, secret


def run(*words: str) -> tuple[str, list[Any]]:
    shown: list[Any] = []
    app = typer.Typer()
    app.command()(as_command(paint, shown.append, omit=("secret",)))
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    return result.output, shown


def test_defaults_are_those_of_the_function() -> None:
    assert run("a")[1] == [(Path("a"), (), "red", {}, 2, None, True, False, Shade(), "")]


def test_every_kind_of_option_reaches_the_function() -> None:
    words = "a b c --colour blue --set x=1 --set y=z --layers 3 --tape l --tape r --no-frame"
    _, shown = run(*words.split(), "--quiet", "--tone", "0.5", "--deep")
    assert shown == [
        (
            Path("a"),
            [Path("b"), Path("c")],
            "blue",
            {"x": 1, "y": "z"},
            3,
            ["l", "r"],
            False,
            True,
            Shade(0.5, deep=True),
            "",
        )
    ]


def test_help_is_the_docstring() -> None:
    text, _ = run("--help")
    for words in (
        "Paint walls.",
        "The first wall, which has a description of two lines.",
        "How light it is.",
        "Show no progress.",
        "KEY=VALUE",
        "--no-frame",
        "[default: 2]",
    ):
        assert words in text
    for words in ("All arguments", "secret", "Returns", "Args", "[default: True]"):
        assert words not in text


@pytest.mark.parametrize("words", ["a --layers 0", "a --colour green", "a --set x", "a --secret x"])
def test_wrong_options_are_refused(words: str) -> None:
    _, shown = run(*words.split())
    assert shown == []


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_of_each_command_has_a_text(name: str) -> None:
    group = typer.main.get_command(app)
    *parents, last = name.split()
    for parent in parents:
        group = group.get_command(None, parent)  # type: ignore[attr-defined]
    command = group.get_command(None, last)  # type: ignore[attr-defined]
    assert command.help
    assert [option.name for option in command.params if not option.help] == []


def test_an_unknown_command_is_compared_with_all() -> None:
    result = CliRunner().invoke(app, ["predct"])
    assert result.exit_code == 2
    assert "Did you mean 'predict'" in result.output
