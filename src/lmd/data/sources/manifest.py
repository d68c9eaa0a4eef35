"""A manifest: a CSV file with one line for each image."""

import posixpath
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath

from lmd.base.text import counted
from lmd.data.findings import finding
from lmd.data.sources.csv_file import read_csv
from lmd.data.sources.finder import Finder
from lmd.data.sources.labelling import part_name
from lmd.data.sources.scan import Case, Columns, Scan

# Other common names of columns; a scan goes on with them, training asks for the right name.
GUESSES = {
    "image": ("image", "image_id", "filename", "file_name", "file", "path", "image_path", "img"),
    "label": ("label", "class", "dx", "diagnosis", "target", "category", "finding", "labels"),
}


@dataclass(frozen=True)
class Layout:
    """Which column is which; ``None`` where there is none."""

    image: int
    label: int
    group: int | None
    split: int | None


def scan_manifest(path: Path, columns: Columns) -> Scan:
    """All lines of a CSV file, with the files they refer to; names are as the file writes them.

    An image is searched for under ``root`` (if given), in the folder of the CSV file and in
    ``images/`` beside it, with any known suffix if it has none, and a bare name then anywhere
    below the root. An empty group cell makes the image a group of its own.
    """
    root = path.parent if columns.root is None else Path(columns.root).expanduser()
    table = read_csv(path)
    scan = Scan(str(path), "manifest", root=root, findings=table.findings)
    layout = _layout(scan, table.header, columns) if table.lines else None
    if layout is None:
        return scan
    scan.grouped, scan.split = layout.group is not None, layout.split is not None
    finder = Finder(root, (path.parent, path.parent / "images"))
    allow = columns.allow_outside
    scan.cases = [_case(line, cells, layout, finder, allow) for line, cells in table.lines]
    conflicts = _mark_repeats(scan)
    split = "" if layout.split is None else table.header[layout.split]
    _add_findings(scan, finder, split, conflicts)
    used = {layout.image, layout.label, layout.group, layout.split}
    scan.spare = {
        name: [cells[i] for _, cells in table.lines]
        for i, name in enumerate(table.header)
        if i not in used
    }
    return scan


def _layout(scan: Scan, header: list[str], columns: Columns) -> Layout | None:
    found: dict[str, int | None] = {}
    for what in ("image", "label", "group", "split"):
        asked: str | None = getattr(columns, f"{what}_column")
        name = asked or what
        needed = what in GUESSES
        if name in header and (needed or asked != ""):
            found[what] = header.index(name)
            continue
        found[what] = _guess(header, what) if needed else None
        if needed or asked:
            _add_missing_column(scan, header, name, what, found[what])
    if found["image"] is None or found["label"] is None:
        return None
    return Layout(found["image"], found["label"], found["group"], found["split"])


def _guess(header: list[str], what: str) -> int | None:
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in GUESSES[what] if name in lower), None)


def _add_missing_column(
    scan: Scan, header: list[str], name: str, what: str, guess: int | None
) -> None:
    option = f"--{what}-column" + ("" if guess is None else f", perhaps {header[guess]!r}")
    scan.findings.append(
        finding(
            "columns",
            f"There is no column {name!r}; the columns are {', '.join(header)}.",
            names=[name],
            remedy=f"Name the {what} column with {option}.",
        )
    )


def _case(line: int, cells: list[str], layout: Layout, finder: Finder, allow: bool) -> Case:
    written = cells[layout.image]
    name = posixpath.normpath(written.replace("\\", "/")) if written else ""
    drive = PureWindowsPath(name).drive
    allowed = allow or not (name.split("/")[0] == ".." or name.startswith("/") or drive)
    found = finder.find(name) if name and allowed else []
    word = "" if layout.split is None else cells[layout.split]
    part = "" if layout.split is None else part_name(word)
    fault = detail = ""
    if not allowed:
        fault = "outside_root"
    elif not cells[layout.label]:
        fault = "unlabelled"
    elif not found:
        fault = "missing_file"
    elif len(found) > 1:
        fault, detail = "ambiguous_file", " or ".join(map(str, found))
    elif part is None:
        fault, detail = "unknown_split", repr(word)
    return Case(
        name,
        cells[layout.label],
        "" if layout.group is None else cells[layout.group] or f"image {name}",
        part or "",
        found[0] if len(found) == 1 else None,
        line,
        fault,
        detail,
    )


def _mark_repeats(scan: Scan) -> list[list[int]]:
    """Mark lines that repeat the first about their file, and return those that contradict it."""
    by_file: dict[Path | None, list[int]] = defaultdict(list)
    for i in scan.usable():
        by_file[scan.cases[i].path].append(i)
    conflicts = []
    for same in by_file.values():
        first = scan.cases[same[0]]
        differences = {i: _difference(first, scan.cases[i]) for i in same[1:]}
        if any(differences.values()):
            conflicts.append(same)
            scan.cases[same[0]] = replace(first, fault="conflicting_rows")
        for i, difference in differences.items():
            fault = "conflicting_rows" if any(differences.values()) else "repeated_row"
            detail = difference or f"line {first.line}"
            scan.cases[i] = replace(scan.cases[i], fault=fault, detail=detail)
    return conflicts


def _difference(first: Case, case: Case) -> str:
    """What a line says otherwise than the first line about the same file."""
    for what in ("label", "part", "group"):
        one, other = getattr(first, what), getattr(case, what)
        # An empty group cell contradicts nothing.
        if one != other and not (what == "group" and other == f"image {case.name}"):
            return f"{what} {other!r}, but {one!r} in line {first.line}"
    return ""


def _add_findings(scan: Scan, finder: Finder, split: str, conflicts: list[list[int]]) -> None:
    places = " or ".join(map(str, finder.places))
    scan.report("outside_root", "{n} [path leaves|paths leave] the root.")
    scan.report("unlabelled", "{n} [line has|lines have] no label.")
    scan.report(
        "missing_file",
        "{n} [image is|images are] not on disk.",
        f"Set --root to the folder of the images (searched: {places}), "
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
