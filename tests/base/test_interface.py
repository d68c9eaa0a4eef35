"""Messages in the words of the terminal and of Python, and near misses."""

import pickle

import pytest

from lmd.base.errors import LmdError, leave_terminal, shown, spoken, use_terminal
from lmd.base.text import near_miss, unknown

SAID = "use --set lr=0.1, --group-column 'a b', --device cpu, --weights FILE or --skip-bad."


def test_the_terminal_has_options_and_python_keywords() -> None:
    assert spoken(SAID) == (
        "use settings={'lr': 0.1}, columns={'group_column': 'a b'}, device='cpu', "
        "settings={'weights': 'FILE'} or skip_bad=True."
    )
    use_terminal()
    try:
        assert spoken(SAID) == SAID
        assert (shown(None), shown(True), shown("a")) == ("null", "true", '"a"')
        error = LmdError(SAID)
    finally:
        leave_terminal()
    assert (shown(None), shown(True), shown("a")) == ("None", "True", "'a'")
    # A message keeps the words of the place where it was made.
    assert str(error) == SAID
    assert str(LmdError(SAID)) == spoken(SAID)


@pytest.mark.parametrize(
    ("said", "python"),
    [
        ("a share, such as --set split=7:1:2", "a share, such as settings={'split': '7:1:2'}"),
        ("accept it with --set allow_leak=true.", "accept it with settings={'allow_leak': True}."),
        ("a smaller rate (--set lr=…).", "a smaller rate (settings={'lr': …})."),
        ("set --root to the folder", "set columns={'root': …} to the folder"),
        ("--device must be auto", "device must be auto"),
        ("run `lmd train --resume --out x`", "run `lmd train --resume --out x`"),
        ("a - b -- c --", "a - b -- c --"),
    ],
)
def test_each_form_of_an_option(said: str, python: str) -> None:
    assert spoken(said) == python
    assert spoken(python) == python


def test_an_error_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(LmdError("with --out")))) == "with out"


def test_near_misses() -> None:
    assert near_miss("Melanom", ["nevus", "melanoma"]) == "melanoma"
    assert near_miss("batchsize", ["batch_size", "head_size"]) == "batch_size"
    assert near_miss("x", ["nevus", "melanoma"]) is None
    assert unknown("class", "x", []) == "unknown class 'x'; choose one of none"
