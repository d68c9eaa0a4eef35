"""Numbers that a user gives for each class, in a CSV file or a mapping, checked in one place."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.text import shorten, unknown


def read_cells(path: Path, option: str) -> list[list[str]]:
    """The rows of a CSV file without blank ones, each with its cells stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise LmdError(f"{option}: {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise LmdError(f"{option}: {path} is not a CSV file in UTF-8 ({error})") from None
    cells = [[cell.strip() for cell in row] for row in rows]
    return [row for row in cells if any(row)]


def by_name(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    """Pairs of class and value as a mapping; a class must not be given twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise LmdError(f"{option}: class {name!r} is given twice; give it once")
        found[name] = value
    return found


def check_names(given: Iterable[str], classes: Sequence[str], option: str) -> None:
    """Every class must be given, and no other."""
    names = list(given)
    foreign = [name for name in names if name not in classes]
    if foreign:
        raise LmdError(f"{option}: {unknown('class', foreign[0], classes)}")
    missing = [name for name in classes if name not in names]
    if missing:
        raise LmdError(f"{option}: no value for {shorten(missing, 5)}; give one for every class")


def number(value: Any, name: str, option: str) -> float:
    """A number that is finite and not negative; ``name`` says which one it is."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found) or found < 0:
        shown = "empty" if value in ("", None) else repr(value)
        raise LmdError(f"{option}: {name} must be a number of at least 0; it is {shown}")
    return found


def class_values(given: Mapping[str, Any], classes: Sequence[str], option: str) -> list[float]:
    """The values in the order of ``classes (K,)``, after all checks.

    >>> class_values({"b": "2", "a": 0.5}, ["a", "b"], "--costs")
    [0.5, 2.0]
    """
    check_names(given, classes, option)
    return [number(given[name], f"the value of {name}", option) for name in classes]
