"""Errors that users can fix, in the words of the interface at hand."""

import re
from typing import Any

from lmd.base.text import as_toml


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do.

    Messages are written with the options of the commands; in Python they have the keywords.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(spoken(message))


class DivergedError(LmdError):
    """A loss became infinite or undefined: these settings cannot be trained."""


_terminal: list[bool] = []
_FLAGS = {
    *("resume", "overwrite", "skip_bad", "skip_unknown", "keep_features", "allow_outside"),
    *("by_lesion", "tta", "anyway"),
    *("allow_missing_images", "published_counts"),
}
_COLUMNS = {"image_column", "label_column", "group_column", "split_column", "allow_outside", "root"}
_QUOTED = re.compile(r"(`[^`]*`)")  # a command is one in Python too
_SET = re.compile(r"--set (\w+)=(\[[^\]]*\]|[^\s,;)]*[^\s,;:.)])")
# Options that messages name with a value.
_VALUED = re.compile(
    r"--(device(?= cpu)|weights(?= FILE)|(?:image|label|group|split)-column) ('[^']*'|\"\"|[\w-]+)"
)
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")


def use_terminal() -> None:
    """From now on messages are for a person who types commands, until ``leave_terminal``."""
    _terminal.append(True)


def leave_terminal() -> None:
    """The end of a command."""
    _terminal.pop()


def in_terminal() -> bool:
    """Whether a command is running."""
    return bool(_terminal)


def shown(value: Any) -> str:
    """A value as a user writes it: TOML in the terminal, otherwise Python."""
    return as_toml(value) if in_terminal() else repr(value)


def spoken(text: str) -> str:
    """A message in the words of the interface at hand.

    >>> spoken("choose another folder with --out, or use --skip-bad")
    'choose another folder with out, or use skip_bad=True'
    >>> spoken("use --set weights=none, --device cpu or `lmd train --resume`")
    "use settings={'weights': 'none'}, device='cpu' or `lmd train --resume`"
    >>> spoken("name it with --group-column 'lesion'")
    "name it with columns={'group_column': 'lesion'}"
    """
    if in_terminal() or "--" not in text:
        return text
    pieces = _QUOTED.split(text)
    return "".join(piece if piece.startswith("`") else _keywords(piece) for piece in pieces)


def _keywords(text: str) -> str:
    text = _SET.sub(lambda found: f"settings={{{found[1]!r}: {_literal(found[2])}}}", text)
    text = _VALUED.sub(lambda found: _keyword(found[1], found[2].strip("'\"")), text)
    return _OPTION.sub(lambda found: _keyword(found[1]), text)


def _keyword(option: str, value: str | None = None) -> str:
    name = option.replace("-", "_")
    given = repr(value) if value is not None else "True" if name in _FLAGS else None
    if name == "weights":
        return f"settings={{'weights': {given or '…'}}}"
    if name in _COLUMNS:
        return f"columns={{{name!r}: {given or '…'}}}"
    return f"{name}={given}" if given else name


def _literal(value: str) -> str:
    """A value of ``--set`` in Python."""
    words = {"true": "True", "false": "False", "null": "None"}
    plain = value in words or value == "…" or re.fullmatch(r"\[.*\]|[-+.\de]+", value)
    return words.get(value, value) if plain else repr(value)
