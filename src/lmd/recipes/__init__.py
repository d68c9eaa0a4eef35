"""Recipes: from the download of a known data set to a file that training takes."""

import hashlib
import inspect
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import Any, NamedTuple

from lmd.base.errors import LmdError
from lmd.base.files import Content, atomic_write, check_output
from lmd.base.text import csv_text, shorten, unknown
from lmd.data.manifest import Finder, read_csv
from lmd.data.scan import Case, Scan
from lmd.data.splits import imbalance_factor
from lmd.data.table import Table
from lmd.data.walk import files_below

Row = Mapping[str, str]
# A split table, and the content of the file to write, which takes the path from the folder of that
# file to the root of the download.
Made = tuple[Table, Callable[[Path], Content]]


@dataclass(frozen=True)
class Recipe:
    """A data set as ``recipes.toml`` describes it; the function ``build`` of ``module`` makes it.

    The keywords of ``build`` are the recipe's options; ``suffix`` is the written file's.
    """

    key: str
    module: str
    title: str
    what: str
    source: str
    licence: str
    size: str
    suffix: str = ".csv"
    published: Mapping[str, int] = field(default_factory=dict)
    folders: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def build(self) -> Callable[..., Made]:
        """Return the function that makes the data set from a ``Download``."""
        build: Callable[..., Made] = import_module(f"lmd.recipes.{self.module}").build
        return build

    def options(self) -> dict[str, Any]:
        """Return the names of the options with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        return options | ({"allow_missing_images": False} if self.suffix == ".csv" else {})

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


_TEXT = (resources.files("lmd") / "recipes" / "recipes.toml").read_text(encoding="utf-8")
RECIPES = {key: Recipe(key, **values) for key, values in tomllib.loads(_TEXT).items()}


class Result(NamedTuple):
    """A written file: its SHA-256, the command that trains on it, its table and notes."""

    path: Path
    sha256: str
    command: str
    table: Table
    notes: tuple[str, ...]


def make(
    name: str, root: str | Path, out: str | Path, *, overwrite: bool = False, **options: Any
) -> Result:
    """Write the file of a known data set from its download; equal options give equal files.

    ``options`` are the recipe's (``RECIPES[name].options()``). Image paths are relative to
    the folder of ``out`` if that contains the download, and to ``root`` otherwise.
    """
    root, out = Path(root).expanduser(), Path(out).expanduser()
    recipe = _checked(name, root, out, overwrite, options)
    download = Download(root, recipe, options.pop("allow_missing_images", False))
    table, content = recipe.build(download, **options)
    here, there = out.parent.resolve(), root.resolve()
    inside = there.is_relative_to(here)
    atomic_write(out, content(there.relative_to(here) if inside else Path()), parents=True)
    with out.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    place = ["--root", str(root)] if recipe.suffix == ".csv" and not inside else []
    every, training = table.counts(), table.part("train").counts()
    ratios = (
        f"imbalance factor: {imbalance_factor(every):.4g} overall ({every.max()} : {every.min()}), "
        f"{imbalance_factor(training):.4g} in training ({training.max()} : {training.min()})"
    )
    command = shlex.join(["lmd", "train", str(out), *place])
    return Result(out, digest, command, table, (*download.notes, ratios))


def _checked(name: str, root: Path, out: Path, overwrite: bool, options: dict[str, Any]) -> Recipe:
    if name not in RECIPES:
        raise LmdError(unknown("recipe", name, RECIPES))
    recipe = RECIPES[name]
    if out.suffix.lower() != recipe.suffix:
        raise LmdError(f"out {out}: recipe {name!r} writes a {recipe.suffix} file, use that suffix")
    check_output(out, "--out")
    if out.exists() and not overwrite:
        raise LmdError(f"out {out} exists: choose another file, or replace it with --overwrite")
    foreign = [option for option in options if option not in recipe.options()]
    if foreign:
        valid = [flag(option) for option in recipe.options()]
        raise LmdError(f"recipe {name!r}: {unknown('option', flag(foreign[0]), valid)}")
    if out.exists() and root.exists() and out.samefile(root):
        raise LmdError(f"out {out} is the download itself: choose another name")
    if recipe.suffix == ".csv" and not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise LmdError(f"root {root} {what}: give the folder with the unpacked data set")
    return recipe


@dataclass
class Download:
    """The unpacked data set of a recipe, its labelled images, and notes on both.

    A missing image is an error unless ``allow_missing``. ``names (N,)`` decide what is drawn,
    ``cells (N,)`` are paths relative to the root (the bare name of a missing image), ``groups
    (N,)`` name the lesion or patient (empty where unknown).
    """

    root: Path
    recipe: Recipe
    allow_missing: bool
    notes: list[str] = field(default_factory=list)
    names: Sequence[str] = ()
    labels: Sequence[str] = ()
    cells: Sequence[str] = ()
    groups: Sequence[str] | None = None

    def find(self, *names: str) -> Path | None:
        """Find a file by name: in the root, or else the only one in a folder below."""
        paths = [self.root / name for name in names if (self.root / name).is_file()][:1]
        paths = paths or [path for path in files_below(self.root) if path.name in names]
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
                f"it is part of the data set ({self.recipe.source})"
            )
        return path

    def locate(
        self, names: Sequence[str], labels: Sequence[str], groups: Sequence[str] | None
    ) -> None:
        """Find the images, and note missing ones and other counts than the published ones."""
        finder = Finder(self.root)
        cells, missing = [], []
        for name in names:
            tries = (finder.find(f"{folder}/{name}") for folder in self.recipe.folders)
            paths = next((paths for paths in tries if paths), None) or finder.find(name)
            if len(paths) > 1:
                listed = shorten([str(path) for path in paths])
                raise LmdError(
                    f"image {name!r} may be any of {listed}: keep one of them below {self.root}"
                )
            cells.append(paths[0].relative_to(self.root).as_posix() if paths else name)
            if not paths:
                missing.append(name)
        self.names, self.labels, self.cells, self.groups = names, labels, cells, groups
        self.compare_counts()
        self.note_missing(missing, len(names))

    def note_missing(self, names: Sequence[str], total: int) -> None:
        """Note images that are not on disk."""
        text = f"{len(names)} of {total} images are not below {self.root} ({shorten(names)})"
        if names and not self.allow_missing:
            raise LmdError(
                f"{text}: complete the download, or keep them in the split with "
                "--allow-missing-images"
            )
        if names:
            self.notes.append(f"{text}: they are in the split, and training will need them")

    def compare_counts(self) -> None:
        """Note whether each class has its published number of images."""
        published, counts = Counter(self.recipe.published), Counter(self.labels)
        different = [
            f"{name} {counts[name]} (published {published[name]})"
            for name in dict.fromkeys((*published, *sorted(counts)))
            if counts[name] != published[name]
        ]
        total = published.total()
        self.notes.append(
            f"{counts.total()} images, but {total} were published; classes with other counts: "
            f"{', '.join(different)}"
            if different
            else f"all {len(published)} classes have the published counts, {total} images in total"
        )

    def table(self, *, grouped: bool = False) -> Table:
        """Return the table with names as ids, so that a split does not depend on the folders."""
        groups = self.groups or [""] * len(self.names)
        rows = zip(self.names, self.labels, groups, self.cells, strict=True)
        cases = [
            Case(name, label, group or f"image {name}", path=self.root / cell)
            for name, label, group, cell in rows
        ]
        return Scan(str(self.root), "recipe", self.root, grouped=grouped, cases=cases).table()

    def manifest(self, table: Table, group_column: str | None) -> Made:
        """Return a split table and its manifest: image, label, group and part of each image."""
        groups = self.groups if group_column else None
        header = ["image", "label", *([group_column] if group_column else []), "split"]
        parts = table.parts
        assert parts is not None

        def content(prefix: Path) -> bytes:
            rows = []
            for row, label, part in zip(table.rows, table.label_names(), parts, strict=True):
                # A missing image keeps its bare name, which is searched for in all folders.
                cell, name = self.cells[row], self.names[row]
                image = cell if cell == name else (prefix / cell).as_posix()
                rows.append([image, label, *([groups[row]] if groups else []), part])
            return csv_text(header, rows, exact=True).encode()

        return table, content


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
