"""A recipe: how a known data set becomes a file that training takes."""

import csv
import hashlib
import inspect
import io
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import Content, atomic_write
from lmd.data.imbalance import imbalance_factor
from lmd.data.recipes.download import Listing
from lmd.data.table import Table


@dataclass(frozen=True)
class Made:
    """A table with its parts, what to write for it, and what its user must know.

    ``content`` takes what to write before each path: the way to the root from the written file.
    """

    table: Table
    notes: tuple[str, ...]
    content: Callable[[str], Content]


@dataclass(frozen=True)
class Recipe:
    """A data set: where it is, its licence and size, and the function that makes it.

    The keywords of ``function`` are the options; ``suffix`` is that of the written file.
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
        """Option names with their default."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def option_names(self) -> list[str]:
        """Options as the command line spells them, with their default."""
        shown = {
            name: "" if value is None or value is False else str(value).removesuffix(".0")
            for name, value in self.options().items()
        }
        return [f"{flag(name)} {value}".rstrip() for name, value in shown.items()]

    def make(self, root: Path, **options: Any) -> Made:
        """Run the recipe on a download."""
        for name in options:
            if name not in self.options():
                raise LmdError(
                    f"recipe {self.key!r} has no option {flag(name)}; "
                    f"it has {', '.join(self.option_names())}"
                )
        return self.function(root, **options)


@dataclass(frozen=True)
class Result:
    """A written file: its SHA-256, the command that trains on it, counts and notes."""

    path: Path
    sha256: str
    command: str
    table: Table
    notes: tuple[str, ...]


def write(recipe: Recipe, root: Path, out: Path, *, overwrite: bool, **options: Any) -> Result:
    """Make a data set and write its file whole or not at all."""
    if out.suffix.lower() != recipe.suffix:
        raise LmdError(
            f"out {out}: recipe {recipe.key!r} writes a {recipe.suffix} file, name it so"
        )
    if out.exists() and not overwrite:
        raise LmdError(f"out {out} exists: choose another file, or replace it with --overwrite")
    made = recipe.make(root, **options)
    way = _way(out.parent, root)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmdError(f"out {out}: its folder cannot be made: {error.strerror}") from error
    atomic_write(out, made.content(way or ""))
    with out.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    words = ["lmd", "train", str(out)]
    if recipe.suffix == ".csv" and way is None:
        words += ["--root", str(root)]
    ratios = _ratios(made.table)
    return Result(out, digest, shlex.join(words), made.table, (*made.notes, ratios))


def manifest(listing: Listing, table: Table, group_column: str | None) -> Callable[[str], bytes]:
    """The content of a manifest: image, label, the group column if it has a name, split."""

    def content(prefix: str) -> bytes:
        assert table.parts is not None
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "label", *([group_column] if group_column else []), "split"])
        for row, label, part in zip(table.rows, table.labels, table.parts, strict=True):
            # An image that is not on disk has a bare name, which is looked for everywhere.
            cell, name = listing.cells[row], listing.names[row]
            group = [listing.groups[row]] if group_column and listing.groups else []
            image = cell if cell == name else f"{prefix}{cell}"
            writer.writerow([image, table.classes[label], *group, part])
        return text.getvalue().encode()

    return content


def flag(option: str) -> str:
    """An option as the command line spells it.

    >>> flag("head_size")
    '--head-size'
    """
    return f"--{option.replace('_', '-')}"


def _way(folder: Path, root: Path) -> str | None:
    """From a folder to a root that is the same or below it; ``None`` for any other."""
    try:
        way = root.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        return None
    return "" if way == "." else f"{way}/"


def _ratios(table: Table) -> str:
    training = table.part("train").counts()
    return (
        f"imbalance factor: {imbalance_factor(table.counts()):.4g} in all "
        f"({table.counts().max()} : {table.counts().min()}), "
        f"{imbalance_factor(training):.4g} in training ({training.max()} : {training.min()})"
    )
