"""A recipe: how a known data set becomes a file that training takes."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmd.base.files import Content
from lmd.data.sources.manifest import csv_bytes
from lmd.data.table import Table
from lmd.recipes.download import Listing


@dataclass(frozen=True)
class Made:
    """A split table, notes for the user, and the content of the file to write.

    ``content`` takes the path from the folder of that file to the root of the download.
    """

    table: Table
    notes: tuple[str, ...]
    content: Callable[[Path], Content]


@dataclass(frozen=True)
class Recipe:
    """A data set: its source, licence and size, and the function that makes it.

    The keywords of ``function`` are the recipe's options; ``suffix`` is that of the written file.
    """

    key: str
    title: str
    what: str
    source: str
    licence: str
    size: str
    function: Callable[..., Made]
    suffix: str = ".csv"

    def options(self) -> dict[str, Any]:
        """Option names with their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def option_names(self) -> list[str]:
        """Options as on the command line, with their defaults."""
        shown = {
            name: "" if value is None or value is False else str(value).removesuffix(".0")
            for name, value in self.options().items()
        }
        return [f"{flag(name)} {value}".rstrip() for name, value in shown.items()]


def manifest(listing: Listing, table: Table, group_column: str | None) -> Callable[[Path], bytes]:
    """The content of a manifest: image, label, the group column if it has a name, split."""
    groups = listing.groups if group_column else None
    header = ["image", "label", *([group_column] if group_column else []), "split"]

    def content(prefix: Path) -> bytes:
        assert table.parts is not None
        rows = []
        for row, label, part in zip(table.rows, table.label_names(), table.parts, strict=True):
            # A missing image keeps its bare name, which is searched for in all folders.
            cell, name = listing.cells[row], listing.names[row]
            image = cell if cell == name else (prefix / cell).as_posix()
            rows.append([image, label, *([groups[row]] if groups else []), part])
        return csv_bytes(header, rows)

    return content


def flag(option: str) -> str:
    """An option as on the command line.

    >>> flag("head_size")
    '--head-size'
    """
    return f"--{option.replace('_', '-')}"
