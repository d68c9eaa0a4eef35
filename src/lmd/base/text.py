"""Text for people: lists, plurals, near misses, rules of settings, values, tables and CSV."""

import csv
import io
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

LONG = 200  # characters of a name in a message
MAX_IMAGE_SIZE = 4096  # a batch of 64 such images has 13 GB; larger ones are a mistake


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
    """Return the first few items, and how many more there are.

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


def unknown(what: str, word: str, choices: Iterable[str], *, there_are: str = "") -> str:
    """Return that there is no such name: the one that was probably meant, or else all of them.

    ``what`` says what kind of name it is; ``there_are`` begins the list.

    >>> unknown("method", "focl", ["ce", "focal"])
    "unknown method 'focl': did you mean 'focal'?"
    >>> unknown("method", "best", ["ce", "focal"])
    "unknown method 'best'; choose one of ce, focal"
    """
    names = list(choices)
    if near := near_miss(word, names):
        return f"unknown {what} {word!r}: did you mean {near!r}?"
    return f"unknown {what} {word!r}; {there_are or 'choose one of'} {', '.join(names) or 'none'}"


def near_miss(word: str, choices: Iterable[str]) -> str | None:
    """Return the name that a misspelt word probably means, whatever the case.

    >>> near_miss("Lambda1", ["lambda_1", "lambda_e"]), near_miss("depth", ["lambda_1"])
    ('lambda_1', None)
    """

    def plain(name: str) -> str:
        return re.sub(r"[\s_.-]+", "", name.lower()) or name

    by_key = {plain(name): name for name in reversed(list(choices))}
    matches = get_close_matches(plain(word), by_key, n=1, cutoff=0.7)
    return by_key[matches[0]] if matches else None


def as_toml(value: Any) -> str:
    """Return a value in one line of TOML; ``None`` becomes ``null``, which ``--set`` takes too.

    >>> as_toml({"lmd": {"lambda_1": 1.0, "rrl": True}, "split": [0.7, 0.3]})
    '{"lmd" = {"lambda_1" = 1.0, "rrl" = true}, "split" = [0.7, 0.3]}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def as_typed(value: Any) -> str:
    """Return a value as ``--set KEY=VALUE`` takes it: text needs no quotes.

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


# What a setting must be, in words, from pydantic's models and errors.
_TYPES = {
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "string": "text",
    "object": "a table",
    "null": "null",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}
Schema = Mapping[str, Any]


def complaints(
    error: "ValidationError",
    model: "type[BaseModel]",
    values: Mapping[str, Any],
    *,
    what: str = "setting",
    owner: str = "",
) -> list[str]:
    """Return one sentence for each wrong setting: its name, what it must be, and its value.

    ``owner`` follows the name, such as "of method 'ce'".
    """
    schema = model.model_json_schema()
    sentences: dict[str, str] = {}
    for problem in error.errors():
        path, rule, siblings, value = _locate(schema, problem["loc"], values)
        name = f"{what} {path!r}{f' {owner}' if owner else ''}"
        if problem["type"] == "extra_forbidden":
            above, _, last = path.rpartition(".")
            sentences[path] = (f"{above}: " if above else "") + unknown(what, last, siblings)
        elif problem["type"] == "missing":
            sentences[path] = f"{name} is missing"
        elif problem["type"] == "value_error":
            text = str(problem["ctx"]["error"])
            sentences[path] = f"{name} {text}" if text.startswith("must ") else text
        else:
            sentences[path] = f"{name} must be {rule}; it is {as_toml(value)}"
    return list(sentences.values())


def rule_of(schema: Schema) -> str:
    """Return what a value must be, from its JSON schema; an own ``rule`` in it wins.

    >>> rule_of({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
    'a number of at least 0 and below 1'
    >>> rule_of({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'a whole number of at least 1, or null'
    """
    for key in ("rule", "const"):
        if key in schema:
            return str(schema[key])
    if "anyOf" in schema:
        return ", or ".join(map(rule_of, schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        few = "one or more values" if schema.get("minItems") else "values"
        return f"a list of {few}, each {rule_of(schema.get('items', {}))}"
    what = _TYPES.get(str(schema.get("type")), "a valid value")
    bounds = [f"{words} {schema[key]:g}" for key, words in _BOUNDS.items() if key in schema]
    if schema.get("minProperties"):
        bounds = ["with one or more entries"]
    elif "minimum" in schema and "maximum" in schema:
        bounds = [f"from {schema['minimum']:g} to {schema['maximum']:g}"]
    return " ".join([what, " and ".join(bounds)]).strip()


def _locate(
    schema: Schema, location: Iterable[int | str], values: Any
) -> tuple[str, str, list[str], Any]:
    """Return the dotted name of a setting, its rule, the names beside it, and its value.

    Below lists and choices of several types the whole value is meant.
    """
    names: list[str] = []
    siblings: list[str] = []
    definitions = schema.get("$defs", {})
    for word in location:
        if "properties" not in schema:
            break
        siblings = list(schema["properties"])
        names.append(str(word))
        values = values.get(word) if isinstance(values, Mapping) else None
        schema = schema["properties"].get(word, {})
        # Of "this or null", this is meant.
        options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
        if len(options) == 1 and "$ref" in options[0]:
            schema = options[0]
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    return ".".join(names), rule_of(schema), siblings, values


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
    """Return text with bytes of a file name that are not UTF-8 replaced by �."""
    return os.fsencode(text).decode("utf-8", "replace")
