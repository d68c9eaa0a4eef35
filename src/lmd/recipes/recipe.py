"""A recipe: how the download of a known data set becomes a file that training takes."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import Content
from lmd.base.text import shorten
from lmd.data.sources.folders import files_below
from lmd.data.sources.manifest import Finder, csv_bytes, read_csv
from lmd.data.sources.scan import Case, Scan
from lmd.data.table import Table

Row = Mapping[str, str]


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
        """Return the names of the options with their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def option_names(self) -> list[str]:
        """Return the options as on the command line, with their defaults."""
        shown = {
            name: "" if value is None or value is False else str(value).removesuffix(".0")
            for name, value in self.options().items()
        }
        return [f"{flag(name)} {value}".rstrip() for name, value in shown.items()]


def flag(option: str) -> str:
    """Write an option as on the command line.

    >>> flag("head_size")
    '--head-size'
    """
    return f"--{option.replace('_', '-')}"


@dataclass(frozen=True)
class Listing:
    """The labelled images of a download.

    ``names (N,)`` decide what is drawn, ``cells (N,)`` are paths relative to the root (the bare
    name of a missing image), ``groups (N,)`` name the lesion or patient (empty where unknown).
    """

    root: Path
    names: Sequence[str]
    labels: Sequence[str]
    cells: Sequence[str]
    groups: Sequence[str] | None = None

    def table(self, *, grouped: bool = False) -> Table:
        """Return the table with names as ids, so that a split does not depend on the folders."""
        groups = self.groups or [""] * len(self.names)
        rows = zip(self.names, self.labels, groups, self.cells, strict=True)
        cases = [
            Case(name, label, group or f"image {name}", path=self.root / cell)
            for name, label, group, cell in rows
        ]
        return Scan(str(self.root), "recipe", self.root, grouped=grouped, cases=cases).table()

    def manifest(self, table: Table, prefix: Path, group_column: str | None) -> bytes:
        """Write image, label, group and part of every image of a table that was drawn from it."""
        groups = self.groups if group_column else None
        header = ["image", "label", *([group_column] if group_column else []), "split"]
        assert table.parts is not None
        rows = []
        for row, label, part in zip(table.rows, table.label_names(), table.parts, strict=True):
            # A missing image keeps its bare name, which is searched for in all folders.
            cell, name = self.cells[row], self.names[row]
            image = cell if cell == name else (prefix / cell).as_posix()
            rows.append([image, label, *([groups[row]] if groups else []), part])
        return csv_bytes(header, rows)


@dataclass
class Download:
    """The unpacked folder of a data set, and notes on what was found in it.

    ``published`` are the images of each class when the data set was released. ``folders`` are
    searched first for an image. A missing image is an error unless ``allow_missing``.
    """

    root: Path
    source: str
    published: Mapping[str, int]
    allow_missing: bool
    folders: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            what = "is a file" if self.root.exists() else "does not exist"
            raise LmdError(f"root {self.root} {what}: give the folder with the unpacked data set")

    def find(self, *names: str) -> Path | None:
        """Find a file by name: in the root, or else the only one in a folder below."""
        for name in names:
            if (self.root / name).is_file():
                return self.root / name
        paths = [path for path in files_below(self.root) if path.name in names]
        if len(paths) > 1:
            listed = shorten([str(path) for path in paths])
            raise LmdError(
                f"root {self.root} contains several files of that name: {listed}: keep one"
            )
        return paths[0] if paths else None

    def require(self, *names: str) -> Path:
        """Find a file that must be there."""
        path = self.find(*names)
        if path is None:
            raise LmdError(
                f"root {self.root} and the folders below contain no {' or '.join(names)}: "
                f"it is part of the data set ({self.source})"
            )
        return path

    def locate(
        self, names: Sequence[str], labels: Sequence[str], groups: Sequence[str] | None
    ) -> Listing:
        """Find the images, and note missing ones and other counts than the published ones."""
        finder = Finder(self.root, ())
        cells, missing = [], []
        for name in names:
            tries = (finder.find(f"{folder}/{name}") for folder in self.folders)
            paths = next((paths for paths in tries if paths), None) or finder.find(name)
            if len(paths) > 1:
                listed = shorten([str(path) for path in paths])
                raise LmdError(
                    f"image {name!r} may be any of {listed}: keep one of them below {self.root}"
                )
            cells.append(paths[0].relative_to(self.root).as_posix() if paths else name)
            if not paths:
                missing.append(name)
        self.compare_counts(labels)
        self.note_missing(missing, len(names))
        return Listing(self.root, names, labels, cells, groups)

    def note_missing(self, names: Sequence[str], total: int) -> None:
        """Note images that are not on disk."""
        if not names:
            return
        text = f"{len(names)} of {total} images are not below {self.root} ({shorten(names)})"
        if not self.allow_missing:
            raise LmdError(
                f"{text}: complete the download, or keep them in the split with "
                "--allow-missing-images"
            )
        self.notes.append(f"{text}: they are in the split, and training will need them")

    def compare_counts(self, labels: Sequence[str]) -> None:
        """Note whether each class has its published number of images."""
        counts, total = Counter(labels), sum(self.published.values())
        different = [
            f"{name} {counts[name]} (published {self.published.get(name, 0)})"
            for name in dict.fromkeys((*self.published, *sorted(counts)))
            if counts[name] != self.published.get(name, 0)
        ]
        if different:
            self.notes.append(
                f"{len(labels)} images, but {total} were published; classes with other counts: "
                f"{', '.join(different)}"
            )
        else:
            self.notes.append(
                f"all {len(self.published)} classes have the published counts, {total} images in "
                "total"
            )

    def made(self, listing: Listing, table: Table, group_column: str | None) -> Made:
        """Finish the recipe: the split table becomes a manifest."""
        return Made(
            table, tuple(self.notes), lambda prefix: listing.manifest(table, prefix, group_column)
        )


def read_rows(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read the rows of a CSV file, which must have these columns."""
    table = read_csv(path)
    errors = [finding.text for finding in table.findings if finding.severity == "error"]
    if errors:
        raise LmdError(f"{path}: {errors[0]} Download it again")
    absent = [name for name in columns if name not in table.header]
    if absent:
        raise LmdError(
            f"{path} has no column {', '.join(absent)}; its columns are "
            f"{', '.join(table.header)}: use the file that comes with the data set"
        )
    return [dict(zip(table.header, cells, strict=False)) for _, cells in table.lines]


def require_distinct(path: Path, names: Sequence[str]) -> None:
    """Refuse a file with an image in two rows."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LmdError(f"{path} has {len(twice)} images in more than one row: {shorten(twice)}")
