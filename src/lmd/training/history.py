"""The history of a run: one row per epoch, every loss term a column."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmd.base.files import atomic_write


def write_history(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows; a term that a stage does not have stays empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
    atomic_write(path, text.getvalue().encode())
