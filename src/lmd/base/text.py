"""Text for people: shortened lists, plurals, near misses, values as typed, tables and CSV."""

import csv
import io
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

LONG = 200  # characters of a name in a message


def clipped(text: str, most: int = LONG) -> str:
    """Return ``text``, or its two ends if it is long: names often differ at the end.

    >>> clipped("abcdefghij", most=5), clipped("abc", most=5)
    ('ab…ij', 'abc')
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
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


def text_table(
    rows: Sequence[Sequence[str] | None], align: str = "lr", *, limits: Sequence[int] = ()
) -> str:
    """Return columns of plain text; ``None`` is a line across, and rows without text are left out.

    ``align`` has an ``l`` or ``r`` for each column, the last one for all that follow. ``limits``
    are the most characters of a column.

    >>> print(text_table([("class", "recall"), None, ("nevus", "0.9"), ("melanoma", "0.75")]))
    class     recall
    ----------------
    nevus        0.9
    melanoma    0.75
    """
    most = dict(enumerate(limits))
    cut = [row and [clipped(x, most.get(i, LONG)) for i, x in enumerate(row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*(row for row in cut if row), strict=True)]
    sides = align.ljust(len(widths), align[-1])
    lines = []
    for row in cut:
        pad = zip(row or (), widths, sides, strict=False)
        cells = [x.ljust(width) if side == "l" else x.rjust(width) for x, width, side in pad]
        lines.append(None if row is None else "  ".join(cells).rstrip())
    rule = "-" * max(len(line or "") for line in lines)
    return "\n".join(rule if line is None else line for line in lines if line != "")


def csv_text(
    header: Sequence[str],
    rows: Iterable[Sequence[Any] | Mapping[str, Any]],
    *,
    exact: bool = False,
) -> str:
    """Return a CSV file; ``None``, and what a mapping lacks, is an empty cell.

    Texts that a spreadsheet would compute have an apostrophe before them (``no_formula``), except
    in an ``exact`` file, which this program reads again.

    >>> csv_text(["class", "recall"], [("=a()", 0.5), {"class": "nevus"}])
    "class,recall\\n'=a(),0.5\\nnevus,\\n"
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for row in (header, *rows):
        cells = [row.get(key) for key in header] if isinstance(row, Mapping) else row
        writer.writerow(
            [no_formula(cell) if isinstance(cell, str) and not exact else cell for cell in cells]
        )
    return text.getvalue()


def no_formula(text: str) -> str:
    """Return a cell of a CSV file that no spreadsheet computes, by an apostrophe if need be.

    After ``+``, ``-`` or ``@``, only calls and links are computed in a harmful way, so names such
    as ``+ve`` and ``-12.png`` stay as they are.

    >>> no_formula("=2+2"), no_formula("+ve"), no_formula("-1"), no_formula("@sum(a1)")
    ("'=2+2", '+ve', '-1', "'@sum(a1)")
    """
    return f"'{text}" if re.match(r"[=\t\r]|[+@-].*[(|!]", text, re.DOTALL) else text


def printable(text: str) -> str:
    """Text with bytes of a file name that are not UTF-8 replaced by �."""
    return os.fsencode(text).decode("utf-8", "replace")
