"""Read a manifest: a CSV file with one line for each image."""

import csv
import io
import os
import posixpath
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

from lmd.base.errors import LmdError
from lmd.base.files import FILE, what_is, whole
from lmd.base.text import clipped, counted, near_miss, shorten
from lmd.data.images import SUFFIXES
from lmd.data.scan import Case, Finding, Scan, part_name
from lmd.data.source import Columns
from lmd.data.walk import images_of, tree_below

QUOTES = "Close the quotation mark, or write it twice inside a quoted cell."
COLUMNS = ("image", "label", "group", "split")
# Other common names of columns: a scan continues with them, training asks for the right name.
GUESSES = {
    "image": ("image", "image_id", "filename", "file_name", "file", "path", "image_path", "img"),
    "label": ("label", "class", "dx", "diagnosis", "target", "category", "finding", "labels"),
}


@dataclass
class CsvFile:
    """The header, number and cells of each line that is not blank, and what is wrong with the file.

    Cells are stripped, and lines are padded to the length of the header.
    """

    header: list[str] = field(default_factory=list)
    lines: list[tuple[int, list[str]]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_csv(path: Path) -> CsvFile:
    """Read everything readable in a CSV file; the delimiter is a comma, semicolon or tab."""
    table = CsvFile()
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise LmdError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        table.findings.append(Finding.of("encoding", f"The file is not UTF-8 text ({error})."))
        utf16 = data[:2] in {b"\xff\xfe", b"\xfe\xff"}
        text = data.decode("utf-16" if utf16 else "cp1252", errors="replace")
    file = io.StringIO(text, newline="")
    first = file.readline()
    file.seek(0)
    # Spreadsheets write semicolons in many countries.
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(file, delimiter=delimiter)
    long, swallowed, last = [], [], 0
    try:
        table.header = [cell.strip() for cell in next(reader, [])]
        last, columns = reader.line_num, len(table.header)
        for cells in reader:
            begin, last = last + 1, reader.line_num
            # A line within a cell that has as many cells as a line of the file.
            inner = (line for cell in cells for line in cell.splitlines()[1:])
            if any(line.count(delimiter) >= columns - 1 > 0 for line in inner):
                swallowed.append(f"lines {begin} to {last}")
            filled = [cell.strip() for cell in cells] + [""] * (columns - len(cells))
            if any(filled):
                table.lines.append((last, filled))
                if len(cells) > columns:
                    long.append(f"line {last}")
    except csv.Error as error:
        text = f"The file is not valid CSV from line {reader.line_num} on: {error}."
        table.findings.append(Finding.of("source", text))
    if not table.lines:
        table.findings.append(Finding.of("source", "The file has no lines below its header."))
    if swallowed:
        text = "A cell has whole lines of the file in it: a quotation mark before it is not closed."
        table.findings.append(Finding.of("source", text, names=swallowed, remedy=QUOTES))
    if long:
        text = counted(len(long), "{n} [line has|lines have] more cells than the header.")
        table.findings.append(Finding.of("ragged_row", text, names=long))
    return table


class Finder:
    """Finds the files that names refer to: in the root, ``beside`` it, or in the folders below.

    ``unlisted`` are the folders of the search that cannot be listed, with the reason.
    """

    def __init__(self, root: Path, *beside: Path) -> None:
        self.root, self.places = root, list(dict.fromkeys((root, *beside)))
        self.unlisted: dict[Path, str] = {}
        self._listings: dict[Path, dict[str, list[Path]]] = {}

    def find(self, name: str) -> list[Path]:
        """Return the files that a name may refer to: none, one, or several."""
        path = PurePosixPath(name)
        for place in self.places:
            folder = (place / path).parent
            if folder not in self._listings:  # each folder is listed only once
                self._listings[folder] = self._files(folder)
            if paths := self._listings[folder].get(path.name):
                return paths
        return self._below.get(name, [])

    def _files(self, folder: Path) -> dict[str, list[Path]]:
        """Return the files of a folder by name, and images also by stem."""
        names: list[str] = []
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError, ValueError):
            pass
        except OSError as error:
            self.unlisted[folder] = error.strerror or str(error)
        files = [file for name in names if what_is(file := folder / name) == FILE]
        stems: dict[str, list[Path]] = defaultdict(list)
        for file in files:
            if file.suffix.lower() in SUFFIXES:
                stems[file.stem].append(file)
        return stems | {file.name: [file] for file in files}

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """All images below the root, by name and by stem."""
        images: dict[str, list[Path]] = defaultdict(list)
        tree = tree_below(self.root)
        self.unlisted |= tree.unlisted
        for file in images_of([file for file in tree.files if what_is(file) == FILE], self.root):
            for name in {file.name, file.stem}:
                images[name].append(file)
        return images


def common_root(root: Path, paths: Sequence[Path]) -> Path:
    """Return the root of the data, or the nearest folder above it that contains all images."""
    top = whole(root)
    common = Path(os.path.commonpath([top, *(whole(path).parent for path in paths)]))
    return root if common == top else common


def written_path(path: Path, root: Path) -> str:
    """Return how a manifest refers to an image below its root."""
    name = whole(path).relative_to(whole(root)).as_posix()
    # The manifest reader strips cells.
    return f"./{name}" if name != name.lstrip() else name


def scan_manifest(path: Path, columns: Columns) -> Scan:
    """Scan all lines of a CSV file with the images they refer to.

    An image is searched for in the root, in the folder of the CSV file and in ``images/`` beside
    it, with any known suffix if it has none; a bare name then in every folder below the root. An
    image with an empty group cell is a group of its own.
    """
    root = path.parent if columns.root is None else Path(columns.root).expanduser()
    if not root.is_dir():
        raise LmdError(f"--root: {root} is not a folder; give the folder that the paths start from")
    table = read_csv(path)
    scan = Scan(str(path), "manifest", root=root, findings=table.findings)
    at = _layout(scan, table.header, columns) if table.lines else {}
    if "image" not in at or "label" not in at:
        return scan
    scan.grouped, scan.split = "group" in at, "split" in at
    finder = Finder(root, path.parent, path.parent / "images")
    for line, cells in table.lines:
        values = {what: cells[i] for what, i in at.items()}
        scan.cases.append(_case(line, values, finder, columns.allow_outside))
    _report(scan, finder, table.header[at["split"]] if scan.split else "", _mark_repeats(scan))
    scan.spare = {
        name: [cells[i] for _, cells in table.lines]
        for i, name in enumerate(table.header)
        if i not in at.values()
    }
    return scan


def _layout(scan: Scan, header: list[str], columns: Columns) -> dict[str, int]:
    """Return the columns of image, label, group and split; a missing one becomes a finding."""
    at: dict[str, int] = {}
    for what in COLUMNS:
        chosen: str | None = getattr(columns, f"{what}_column")
        name, needed = chosen or what, what in GUESSES
        place = column_of(name, header) if needed or chosen != "" else None
        if place is None and (needed or chosen):
            # A damaged file may have columns of any name and number.
            shown = shorten([clipped(column, 40) for column in header], most=20)
            text = f"There is no column {name!r}; the columns are {shown}."
            guesses = (column_of(word, header) for word in GUESSES.get(what, ()))
            guess = next((column for column in guesses if column is not None), None)
            if guess is None and chosen and (near := near_miss(chosen, header)):
                guess = header.index(near)
            place = guess if needed else None
            perhaps = "" if guess is None else f" {shlex.quote(header[guess])}, if that is meant"
            remedy = f"Name the {what} column with --{what}-column{perhaps}."
            scan.findings.append(Finding.of("columns", text, names=[name], remedy=remedy))
        if place is not None:
            at[what] = place
    return at


def column_of(name: str, header: Sequence[str]) -> int | None:
    """Return the place of a column; ignore its case unless two names differ only in that.

    >>> column_of("image", ["Label", "IMAGE"]), column_of("a", ["A", "a"]), column_of("b", ["c"])
    (1, 1, None)
    """
    if name in header:
        return header.index(name)
    same = [i for i, other in enumerate(header) if other.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else None


def _case(line: int, values: dict[str, str], finder: Finder, allow: bool) -> Case:
    name = posixpath.normpath(values["image"].replace("\\", "/")) if values["image"] else ""
    if name.startswith("/"):  # an absolute path inside the root becomes relative to it
        for folder in (Path(posixpath.normpath(finder.root.absolute())), finder.root.resolve()):
            if Path(name).is_relative_to(folder):
                name = Path(name).relative_to(folder).as_posix()
                break
    drive = PureWindowsPath(name).drive
    allowed = allow or not (name.split("/")[0] == ".." or name.startswith("/") or drive)
    paths = finder.find(name) if name and allowed else []
    part = part_name(values["split"]) if "split" in values else ""
    group = (values["group"] or f"image {name}") if "group" in values else ""
    fault = detail = ""
    if not allowed:
        fault = "outside_root"
    elif not values["label"]:
        fault = "unlabelled"
    elif not paths:
        fault = "missing_file"
    elif len(paths) > 1:
        fault, detail = "ambiguous_file", " or ".join(map(str, paths))
    elif part is None:
        fault, detail = "unknown_split", repr(values["split"])
    path = paths[0] if len(paths) == 1 else None
    return Case(name, values["label"], group, part or "", path, line, fault, detail)


def _mark_repeats(scan: Scan) -> list[list[int]]:
    """Mark lines about the same file, and return those that contradict each other."""
    by_file: dict[Path | None, list[int]] = defaultdict(list)
    for i in scan.usable():
        by_file[scan.cases[i].path].append(i)
    conflicts = []
    for same in by_file.values():
        # The first line about a file has the group of the first that names one.
        cases = [scan.cases[i] for i in same]
        groups = (case.group for case in cases if case.group != f"image {case.name}")
        first = replace(cases[0], group=next(groups, cases[0].group))
        differences = {i: _difference(first, scan.cases[i]) for i in same[1:]}
        contradict = any(differences.values())
        if contradict:
            conflicts.append(same)
            first = replace(first, fault="conflicting_rows")
        scan.cases[same[0]] = first
        for i, difference in differences.items():
            fault = "conflicting_rows" if contradict else "repeated_row"
            detail = difference or f"line {first.line}"
            scan.cases[i] = replace(scan.cases[i], fault=fault, detail=detail)
    return conflicts


def _difference(first: Case, case: Case) -> str:
    """Return how a line differs from the first line about the same file."""
    for what in ("label", "part", "group"):
        value, other = getattr(first, what), getattr(case, what)
        # An empty group cell is no contradiction.
        if value != other and not (what == "group" and other == f"image {case.name}"):
            return f"{what} {other!r}, but {value!r} in line {first.line}"
    return ""


def _report(scan: Scan, finder: Finder, split: str, conflicts: list[list[int]]) -> None:
    places = " or ".join(map(str, finder.places))
    scan.report("outside_root", "{n} [path leaves|paths leave] the root.")
    scan.report("unlabelled", "{n} [line has|lines have] no label.")
    unlisted = [f"{folder}: {why}" for folder, why in finder.unlisted.items()]
    hidden = f"; these folders cannot be listed: {shorten(unlisted)}" if unlisted else ""
    scan.report(
        "missing_file",
        "{n} [image is|images are] not on disk.",
        f"Set --root to the folder of the images (searched: {places}{hidden}), "
        "or leave them out with --skip-bad.",
    )
    scan.report("ambiguous_file", "{n} [name|names] may mean several files.")
    scan.report("unknown_split", f"{{n}} [line has|lines have] no known part in column {split!r}.")
    scan.report("repeated_row", "{n} [line repeats|lines repeat] another one.")
    text = "{n} [image has|images have] lines that differ in label, group or part."
    scan.report("conflicting_rows", text, sets=conflicts)
