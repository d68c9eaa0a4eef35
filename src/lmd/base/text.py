"""Text for people: shortened lists, singular and plural, near misses, values as typed, cells."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

LONG = 200  # characters of a name in a message


def clipped(text: str, most: int = LONG) -> str:
    """A text with its middle left out if it is very long.

    >>> clipped("abcdefghij", most=5), clipped("abc", most=5)
    ('abc…j', 'abc')
    """
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 1]}…{text[len(text) - tail :]}"


def shorten(items: Sequence[str], most: int = 3) -> str:
    """The first few items, and how many more there are.

    >>> shorten(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    listed = ", ".join(map(clipped, items[:most]))
    return listed if len(items) <= most else f"{listed} and {len(items) - most} more"


def counted(n: int, text: str) -> str:
    """Fill in ``{n}`` and choose between ``[singular|plural]``.

    >>> counted(1, "{n} [image is|images are] grey"), counted(2, "{n} [image is|images are] grey")
    ('1 image is grey', '2 images are grey')
    """
    chosen = re.sub(r"\[([^|\]]*)\|([^\]]*)\]", r"\1" if n == 1 else r"\2", text)
    return chosen.replace("{n}", str(n))


def unknown(what: str, word: str, known: Iterable[str], *, there_are: str = "") -> str:
    """There is no such name: the one that was probably meant, or else all of them.

    ``what`` says what kind of name it is; ``there_are`` begins the list.

    >>> unknown("method", "focl", ["ce", "focal"])
    "unknown method 'focl': did you mean 'focal'?"
    >>> unknown("method", "best", ["ce", "focal"])
    "unknown method 'best'; choose one of ce, focal"
    """
    names = list(known)
    if near := near_miss(word, names):
        return f"unknown {what} {word!r}: did you mean {near!r}?"
    return f"unknown {what} {word!r}; {there_are or 'choose one of'} {', '.join(names) or 'none'}"


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The name that a misspelt word probably means, whatever the case.

    >>> near_miss("Lambda1", ["lambda_1", "lambda_e"]), near_miss("depth", ["lambda_1"])
    ('lambda_1', None)
    """
    by_key = {_plain(name): name for name in reversed(list(known))}
    found = get_close_matches(_plain(word), by_key, n=1, cutoff=0.7)
    return by_key[found[0]] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]+", "", name.lower()) or name


def as_toml(value: Any) -> str:
    """A value in one line of TOML; ``None`` becomes ``null``, which ``--set`` takes too.

    >>> as_toml({"lmd": {"lambda_1": 1.0, "rrl": True}, "split": [0.7, 0.3]})
    '{"lmd" = {"lambda_1" = 1.0, "rrl" = true}, "split" = [0.7, 0.3]}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def as_typed(value: Any) -> str:
    """A value as ``--set KEY=VALUE`` takes it: text needs no quotes.

    >>> as_typed("cosine"), as_typed(None), as_typed([1, 2.5]), as_typed("null"), as_typed("7")
    ('cosine', 'null', '[1, 2.5]', '"null"', '"7"')
    """
    if not isinstance(value, str) or value == "null":
        return as_toml(value)
    try:
        tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        return value
    return as_toml(value)


def no_formula(text: str) -> str:
    """A cell of a CSV file with an apostrophe before what a spreadsheet would compute.

    >>> no_formula("=2+2"), no_formula("nevus"), no_formula("-1")
    ("'=2+2", 'nevus', '-1')
    """
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    number = re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", text)
    return text if number else f"'{text}"


def printable(text: str) -> str:
    """Text with bytes of a file name that are not UTF-8 replaced by �."""
    return os.fsencode(text).decode("utf-8", "replace")
