"""A manifest: a table in CSV with one line for each image."""

import csv
import os
import posixpath
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.reading import SUFFIXES, FileImages, file_signature, is_hidden
from lmd.data.sources.labelling import class_order, encode, part_name, require_classes
from lmd.data.table import Table


@dataclass(frozen=True)
class Entry:
    """One line of a manifest: its number, the image as written and as found, and its cells."""

    line: int
    name: str
    path: Path
    label: str
    group: str
    part: str


def open_manifest(
    path: Path,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    split_column: str | None = None,
    root: Path | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
) -> Table:
    """The images that a CSV names; ids are the names as the CSV writes them.

    An image is looked for under ``root`` (if given), in the CSV's folder and in ``images/`` beside
    it, with any known suffix if it has none, and a bare name then anywhere below the root. An empty
    group cell makes the image a group of its own. A line that repeats another is left out.
    """
    header, lines = _read(path)
    image = _column(path, header, image_column or "image", "image_column")
    label = _column(path, header, label_column or "label", "label_column")
    group = _optional(path, header, group_column, "group", "group_column")
    split = _optional(path, header, split_column, "split", "split_column")
    finder = Finder(root or path.parent, (path.parent, path.parent / "images"))
    entries, missing, unlabelled = [], [], []
    for number, cells in lines:
        name = _inside(path, number, cells[image], allow_outside)
        if not cells[label]:
            unlabelled.append(f"line {number}: {name!r}")
            continue
        found = finder.find(name) if name else []
        if not found:
            missing.append(f"line {number}: {name!r}")
            continue
        _one(path, number, name, found)
        part = "" if split is None else _part(path, number, cells[split], header[split])
        own = "" if group is None else cells[group] or f"image {name}"
        entries.append(Entry(number, name, found[0], cells[label], own, part))
    if not skip_bad:
        _refuse(path, unlabelled, missing, finder.places)
    entries, repeated = _distinct(path, entries)
    skipped = [f"{text}: its label is empty" for text in unlabelled]
    skipped += [f"{text}: not on disk" for text in missing] + repeated
    return _table(path, entries, group is not None, split is not None, tuple(skipped))


def _table(
    path: Path, entries: Sequence[Entry], grouped: bool, split: bool, skipped: tuple[str, ...]
) -> Table:
    if not entries:
        raise LmdError(f"{path} names no image that is there: nothing is left to open")
    names = [entry.label for entry in entries]
    require_classes(names, path)
    classes = class_order(names)
    ids = [entry.name for entry in entries]
    files = [entry.path for entry in entries]
    return Table(
        ids=np.array(ids, dtype=np.str_),
        labels=encode(names, classes),
        classes=classes,
        images=FileImages(tuple(files)),
        rows=np.arange(len(entries), dtype=np.int64),
        groups=np.array([entry.group for entry in entries], dtype=np.str_) if grouped else None,
        parts=np.array([entry.part for entry in entries], dtype=np.str_) if split else None,
        source=str(path),
        kind="manifest",
        signature=file_signature(ids, files),
        skipped=skipped,
    )


@dataclass
class Finder:
    """Finds the files that names mean; each folder is listed once."""

    root: Path
    beside: tuple[Path, ...]
    listings: dict[Path, tuple[dict[str, Path], dict[str, list[Path]]]] = field(
        default_factory=dict
    )

    @cached_property
    def places(self) -> list[Path]:
        """The folders that names are relative to, first come first served."""
        return list(dict.fromkeys((self.root, *self.beside)))

    def find(self, name: str) -> list[Path]:
        """All files that a name may mean: none, one, or several that differ in their suffix."""
        wanted = PurePosixPath(name)
        for place in self.places:
            whole, stems = self._listing((place / wanted).parent)
            if wanted.name in whole:
                return [whole[wanted.name]]
            if wanted.name in stems:
                return stems[wanted.name]
        return self._below.get(name, [])

    def _listing(self, folder: Path) -> tuple[dict[str, Path], dict[str, list[Path]]]:
        if folder not in self.listings:
            whole: dict[str, Path] = {}
            stems: dict[str, list[Path]] = defaultdict(list)
            if folder.is_dir():
                for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    if entry.is_file():
                        file = folder / entry.name
                        whole[entry.name] = file
                        if file.suffix.lower() in SUFFIXES:
                            stems[file.stem].append(file)
            self.listings[folder] = (whole, stems)
        return self.listings[folder]

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """Images anywhere below the root by name and by stem; made only if one was not found."""
        found: dict[str, list[Path]] = defaultdict(list)
        for place, folders, _ in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            for file in self._listing(Path(place))[0].values():
                if file.suffix.lower() in SUFFIXES:
                    found[file.name].append(file)
                    found[file.stem].append(file)
        return found


def _read(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and of each line that is not blank its number and its cells."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Spreadsheets of many countries write semicolons.
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            header = [cell.strip() for cell in next(reader, [])]
            lines = []
            for cells in reader:
                filled = [cell.strip() for cell in cells] + [""] * (len(header) - len(cells))
                if any(filled):
                    lines.append((reader.line_num, filled))
    except UnicodeDecodeError as error:
        raise LmdError(f"{path} is not UTF-8 text ({error}): save it as CSV in UTF-8") from error
    except (csv.Error, OSError) as error:
        raise LmdError(f"{path} cannot be read as CSV: {error}") from error
    if not lines:
        raise LmdError(f"{path} has no lines below its header: expected one for each image")
    return header, lines


def _column(path: Path, header: list[str], name: str, argument: str) -> int:
    if name not in header:
        raise LmdError(
            f"{path} has no column {name!r}; its columns are {', '.join(header)}: "
            f"name the right one with {argument}"
        )
    return header.index(name)


def _optional(
    path: Path, header: list[str], name: str | None, usual: str, argument: str
) -> int | None:
    if name is None:
        return header.index(usual) if usual in header else None
    return _column(path, header, name, argument) if name else None


def _inside(path: Path, number: int, cell: str, allow_outside: bool) -> str:
    """The image's name with plain slashes; one that leaves the root is refused."""
    if not cell:
        return ""
    name = posixpath.normpath(cell.replace("\\", "/"))
    outside = name.split("/")[0] == ".." or name.startswith("/") or PureWindowsPath(name).drive
    if outside and not allow_outside:
        raise LmdError(
            f"{path}, line {number}: image {cell!r} leaves the root; write paths relative to it, "
            "or allow this with allow_outside if you trust the manifest"
        )
    return name


def _refuse(path: Path, unlabelled: list[str], missing: list[str], places: list[Path]) -> None:
    """The errors that ``skip_bad`` turns into images left out."""
    if unlabelled:
        raise LmdError(
            f"{path}: {len(unlabelled)} label cells are empty "
            f"({shorten(unlabelled)}): fill them, or leave these images out with skip_bad"
        )
    if missing:
        looked = " or ".join(str(place) for place in places)
        raise LmdError(
            f"{path}: {len(missing)} images are not on disk ({shorten(missing)}), "
            f"looked for in {looked}: say where they are with root, "
            "or leave them out with skip_bad"
        )


def _one(path: Path, number: int, name: str, found: list[Path]) -> None:
    if len(found) > 1:
        files = shorten([str(file) for file in found])
        raise LmdError(
            f"{path}, line {number}: image {name!r} may mean {files}: "
            "write its path with folder and suffix"
        )


def _part(path: Path, number: int, word: str, column: str) -> str:
    part = part_name(word)
    if part is None:
        raise LmdError(
            f"{path}, line {number}: column {column!r} is {word!r}; "
            "expected train, validation (or val) or test"
        )
    return part


def _distinct(path: Path, entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Each file once; an error where lines about one file disagree."""
    first: dict[Path, Entry] = {}
    repeated = []
    for entry in entries:
        known = first.setdefault(entry.path, entry)
        if known is entry:
            continue
        for what in ("label", "part", "group"):
            one, other = getattr(known, what), getattr(entry, what)
            # Without a group column, or with an empty cell, the group is the name as written.
            if one != other and not (what == "group" and other == f"image {entry.name}"):
                raise LmdError(
                    f"{path}: image {entry.name!r} has the {what} {one!r} in line {known.line} "
                    f"and {other!r} in line {entry.line}: keep one of them"
                )
        repeated.append(f"line {entry.line}: {entry.name!r}: repeats line {known.line}")
    return list(first.values()), repeated
