"""What `lmd methods` and `lmd protocols` say, on 80 columns and in a pipe."""

import re
import tomllib
from typing import Any

import pytest
from typer.testing import CliRunner

from lmd.base.command import parse_settings
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.fit.spec import resolve
from lmd.methods import METHODS
from lmd.runs.protocol import Protocol, load_protocol, shipped_protocols


def said(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    return done.stdout


def values_of(text: str) -> list[str]:
    """The lines of settings as words of ``--set``."""
    found = re.findall(r"^  (\w+) = (.*?)  \(", text, re.MULTILINE | re.DOTALL)
    return [f"{name}={' '.join(value.split())}" for name, value in found]


@pytest.mark.parametrize("key", METHODS)
def test_each_setting_is_whole_in_eighty_columns_and_can_be_typed(key: str) -> None:
    text = said("methods", key)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    lines = text.splitlines()
    for setting in METHODS[key].describe():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {setting.name} = "))
        # What it is for is one line, after its value and rule.
        assert f"      {setting.description}" in lines[at + 1 : at + 5]
    described = text.partition("\nsettings")[2].partition("\nprofile ")[0]
    given: dict[str, Any] = parse_settings(values_of(described))
    assert resolve(METHODS[key], "demo", given).values == METHODS[key].settings() | {
        name: value for name, value in given.items() if value is not None
    }
    assert " none" not in " ".join(values_of(described))


def test_a_pipe_gets_one_line_for_each_method() -> None:
    lines = said("methods").splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all("…" not in line and "─" not in line for line in lines)


def test_all_protocols_are_listed_with_what_they_are_for() -> None:
    lines = said("protocols").splitlines()
    assert [line.split()[0] for line in lines] == shipped_protocols()
    small = next(line for line in lines if line.startswith("small"))
    for words in ("64 px", "10 + 5 epochs", "efficientnet_lite0", "A few thousand images on a CPU"):
        assert words in small


@pytest.mark.parametrize("name", shipped_protocols())
def test_a_protocol_is_shown_as_it_is(name: str) -> None:
    text = said("protocols", name)
    assert max(map(len, text.splitlines())) <= 80
    assert "(a valid value)" not in text
    own = text.partition("\nsettings of method")[0]
    found = load_protocol(None, parse_settings(values_of(own)))
    assert found == load_protocol(name).model_copy(update={"methods": {}})
    assert len(values_of(own)) == len(Protocol.model_fields) - 1


def test_near_misses_and_files(tmp_path: Any) -> None:
    refused = CliRunner().invoke(app, ["protocols", "hyperkvasir"]).exception
    assert isinstance(refused, LmdError)
    assert str(refused) == "unknown protocol 'hyperkvasir': did you mean 'hyper-kvasir'?"
    mine = tmp_path / "mine.toml"
    mine.write_text("# For my microscope.\nepochs = 3\n")
    assert tomllib.loads(mine.read_text()) == {"epochs": 3}
    assert "For my microscope." in said("protocols", str(mine))
