"""Read a manifest: a CSV file with one line for each image."""

import csv
import io
import os
import posixpath
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

from lmd.base.errors import LmdError
from lmd.base.files import FILE, what_is, whole
from lmd.base.text import clipped, counted, near_miss, shorten
from lmd.data.findings import Finding, finding
from lmd.data.images import SUFFIXES
from lmd.data.source import Columns
from lmd.data.sources.folders import images_of, tree_below
from lmd.data.sources.scan import Case, Scan, part_name

QUOTES = "Close the quotation mark, or write it twice inside a quoted cell."


@dataclass
class CsvFile:
    """The header, number and cells of each line that is not blank, and what is wrong with the file.

    Cells are stripped, and lines are padded to the length of the header.
    """

    header: list[str] = field(default_factory=list)
    lines: list[tuple[int, list[str]]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_csv(path: Path) -> CsvFile:
    """Everything readable in a CSV file; the delimiter is a comma, semicolon or tab."""
    table = CsvFile()
    file = io.StringIO(_text(path, table), newline="")
    first = file.readline()
    file.seek(0)
    # Spreadsheets write semicolons in many countries.
    reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
    long, swallowed, last = [], [], 0
    try:
        table.header = [cell.strip() for cell in next(reader, [])]
        last = reader.line_num
        for cells in reader:
            begin, last = last + 1, reader.line_num
            if any(_swallows(cell, reader.dialect.delimiter, table.header) for cell in cells):
                swallowed.append(f"lines {begin} to {last}")
            filled = [cell.strip() for cell in cells]
            filled += [""] * (len(table.header) - len(cells))
            if any(filled):
                table.lines.append((reader.line_num, filled))
                if len(cells) > len(table.header):
                    long.append(f"line {reader.line_num}")
    except csv.Error as error:
        text = f"The file is not valid CSV from line {reader.line_num} on: {error}."
        table.findings.append(finding("source", text))
    if not table.lines:
        table.findings.append(finding("source", "The file has no lines below its header."))
    if swallowed:
        text = "A cell has whole lines of the file in it: a quotation mark before it is not closed."
        table.findings.append(finding("source", text, names=swallowed, remedy=QUOTES))
    if long:
        text = counted(len(long), "{n} [line has|lines have] more cells than the header.")
        table.findings.append(finding("ragged_row", text, names=long))
    return table


def _swallows(cell: str, delimiter: str, header: Sequence[str]) -> bool:
    """Whether a line within a cell has as many cells as a line of the file."""
    inner = cell.splitlines()[1:]
    return any(line.count(delimiter) >= len(header) - 1 > 0 for line in inner)


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """The content of a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()


def _text(path: Path, table: CsvFile) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LmdError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        table.findings.append(finding("encoding", f"The file is not UTF-8 text ({error})."))
        utf16 = data[:2] in {b"\xff\xfe", b"\xfe\xff"}
        return data.decode("utf-16" if utf16 else "cp1252", errors="replace")


@dataclass
class Finder:
    """Finds the files that names refer to; each folder is listed only once.

    ``unlisted`` are the folders of the search that cannot be listed, with the reason.
    """

    root: Path
    beside: tuple[Path, ...]
    listings: dict[Path, tuple[dict[str, Path], dict[str, list[Path]]]] = field(
        default_factory=dict
    )
    unlisted: dict[Path, str] = field(default_factory=dict)

    @cached_property
    def places(self) -> list[Path]:
        """The folders that names may be relative to, in the order of the search."""
        return list(dict.fromkeys((self.root, *self.beside)))

    def find(self, name: str) -> list[Path]:
        """The files that a name may refer to: none, one, or several."""
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
            for name in self._names(folder):
                file = folder / name
                if what_is(file) == FILE:
                    whole[name] = file
                    if file.suffix.lower() in SUFFIXES:
                        stems[file.stem].append(file)
            self.listings[folder] = (whole, stems)
        return self.listings[folder]

    def _names(self, folder: Path) -> list[str]:
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return []
        except OSError as error:
            self.unlisted[folder] = error.strerror or str(error)
            return []

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """All images below the root, by name and by stem."""
        found: dict[str, list[Path]] = defaultdict(list)
        tree = tree_below(self.root)
        self.unlisted |= tree.unlisted
        for file in images_of([file for file in tree.files if what_is(file) == FILE], self.root):
            for name in {file.name, file.stem}:
                found[name].append(file)
        return found


def common_root(root: Path, paths: Sequence[Path]) -> Path:
    """The root of the data, or the nearest folder above it that contains all images."""
    top, places = whole(root), [whole(path) for path in paths]
    if all(path.is_relative_to(top) for path in places):
        return root
    return Path(os.path.commonpath([top, *(path.parent for path in places)]))


def written_path(path: Path, root: Path) -> str:
    """How a manifest refers to an image below its root."""
    name = whole(path).relative_to(whole(root)).as_posix()
    # The manifest reader strips cells.
    return f"./{name}" if name != name.lstrip() else name


# Other common names of columns: a scan continues with them, training asks for the right name.
GUESSES = {
    "image": ("image", "image_id", "filename", "file_name", "file", "path", "image_path", "img"),
    "label": ("label", "class", "dx", "diagnosis", "target", "category", "finding", "labels"),
}


def scan_manifest(path: Path, columns: Columns) -> Scan:
    """All lines of a CSV file with the images they refer to.

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
    finder = Finder(root, (path.parent, path.parent / "images"))
    allow = columns.allow_outside
    scan.cases = [_case(line, cells, at, finder, allow) for line, cells in table.lines]
    conflicts = _mark_repeats(scan)
    _add_findings(scan, finder, table.header[at["split"]] if scan.split else "", conflicts)
    scan.spare = {
        name: [cells[i] for _, cells in table.lines]
        for i, name in enumerate(table.header)
        if i not in at.values()
    }
    return scan


def _layout(scan: Scan, header: list[str], columns: Columns) -> dict[str, int]:
    """Which columns are image, label, group and split; a missing one becomes a finding."""
    at: dict[str, int] = {}
    for what in ("image", "label", "group", "split"):
        asked: str | None = getattr(columns, f"{what}_column")
        name, needed = asked or what, what in GUESSES
        found = column_of(name, header) if needed or asked != "" else None
        if found is not None:
            at[what] = found
        elif needed or asked:
            text = f"There is no column {name!r}; the columns are {_columns_shown(header)}."
            guesses = (column_of(word, header) for word in GUESSES.get(what, ()))
            guess = next((column for column in guesses if column is not None), None)
            if guess is None and asked and (near := near_miss(asked, header)):
                guess = header.index(near)
            perhaps = "" if guess is None else f" {shlex.quote(header[guess])}, if that is meant"
            remedy = f"Name the {what} column with --{what}-column{perhaps}."
            scan.findings.append(finding("columns", text, names=[name], remedy=remedy))
            if guess is not None and needed:
                at[what] = guess
    return at


def column_of(name: str, header: Sequence[str]) -> int | None:
    """The place of a column; its case is ignored unless two names differ only in that.

    >>> column_of("image", ["Label", "IMAGE"]), column_of("a", ["A", "a"]), column_of("b", ["c"])
    (1, 1, None)
    """
    if name in header:
        return header.index(name)
    same = [i for i, other in enumerate(header) if other.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else None


def _columns_shown(header: list[str]) -> str:
    """The names of columns, which may be of any length and number in a damaged file."""
    return shorten([clipped(name, 40) for name in header], most=20)


def _case(line: int, cells: list[str], at: dict[str, int], finder: Finder, allow: bool) -> Case:
    written, label = cells[at["image"]], cells[at["label"]]
    name = posixpath.normpath(written.replace("\\", "/")) if written else ""
    name = _below(name, finder.root)
    drive = PureWindowsPath(name).drive
    allowed = allow or not (name.split("/")[0] == ".." or name.startswith("/") or drive)
    found = finder.find(name) if name and allowed else []
    word = cells[at["split"]] if "split" in at else ""
    part = part_name(word) if "split" in at else ""
    group = (cells[at["group"]] or f"image {name}") if "group" in at else ""
    fault = detail = ""
    if not allowed:
        fault = "outside_root"
    elif not label:
        fault = "unlabelled"
    elif not found:
        fault = "missing_file"
    elif len(found) > 1:
        fault, detail = "ambiguous_file", " or ".join(map(str, found))
    elif part is None:
        fault, detail = "unknown_split", repr(word)
    path = found[0] if len(found) == 1 else None
    return Case(name, label, group, part or "", path, line, fault, detail)


def _below(name: str, root: Path) -> str:
    """An absolute path inside the root, relative to it; any other name as it is."""
    if not name.startswith("/"):
        return name
    for folder in (posixpath.normpath(root.absolute()), root.resolve()):
        if Path(name).is_relative_to(folder):
            return Path(name).relative_to(folder).as_posix()
    return name


def _mark_repeats(scan: Scan) -> list[list[int]]:
    """Mark lines about the same file; returns those that contradict each other."""
    by_file: dict[Path | None, list[int]] = defaultdict(list)
    for i in scan.usable():
        by_file[scan.cases[i].path].append(i)
    conflicts = []
    for same in by_file.values():
        first = _with_group(scan.cases, same)
        differences = {i: _difference(first, scan.cases[i]) for i in same[1:]}
        if any(differences.values()):
            conflicts.append(same)
            first = replace(first, fault="conflicting_rows")
        scan.cases[same[0]] = first
        for i, difference in differences.items():
            fault = "conflicting_rows" if any(differences.values()) else "repeated_row"
            detail = difference or f"line {first.line}"
            scan.cases[i] = replace(scan.cases[i], fault=fault, detail=detail)
    return conflicts


def _with_group(cases: Sequence[Case], same: Sequence[int]) -> Case:
    """The first of several lines about a file, with the group of the first that names one."""
    named = (cases[i].group for i in same if cases[i].group != f"image {cases[i].name}")
    first = cases[same[0]]
    return replace(first, group=next(named, first.group))


def _difference(first: Case, case: Case) -> str:
    """How a line differs from the first line about the same file."""
    for what in ("label", "part", "group"):
        one, other = getattr(first, what), getattr(case, what)
        # An empty group cell is no contradiction.
        if one != other and not (what == "group" and other == f"image {case.name}"):
            return f"{what} {other!r}, but {one!r} in line {first.line}"
    return ""


def _add_findings(scan: Scan, finder: Finder, split: str, conflicts: list[list[int]]) -> None:
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
    if conflicts:
        text = "{n} [image has|images have] lines that differ in label, group or part."
        scan.findings.append(
            finding("conflicting_rows", counted(len(conflicts), text), sets=conflicts)
        )
