"""A manifest: a CSV file with one line for each image."""

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath

from lmd.base.errors import LmdError
from lmd.base.text import clipped, counted, near_miss, shorten
from lmd.data.findings import finding
from lmd.data.sources.csv_file import read_csv
from lmd.data.sources.finder import Finder
from lmd.data.sources.labelling import part_name
from lmd.data.sources.scan import Case, Columns, Scan

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
