"""Figures that a reader can save: each carries its data as CSV, and the page offers the files."""

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from lmd.base.text import no_formula


def savable(name: str, drawing: str, rows: Sequence[Mapping[str, Any]]) -> Markup:
    """A drawing with ``rows`` as its data; ``name`` is that of the files, without an ending."""
    data = escape(as_csv(rows))
    return Markup(f'<div class="plot" data-name="{escape(name)}" data-csv="{data}">{drawing}</div>')


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as CSV; numbers have six digits, and unknown ones are empty.

    >>> as_csv([{"class": "=a", "recall": 1 / 3, "low": None}])
    "class,recall,low\\n'=a,0.333333,\\n"
    """
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    # A class name may look like a formula; a negative number is none.
    return no_formula(value) if isinstance(value, str) else str(value)
