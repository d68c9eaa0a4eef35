"""A tolerant reading of a manifest: every line counts, whatever is wrong with it."""

import csv
import io
import posixpath
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath

from lmd.base.errors import LmdError
from lmd.base.text import counted, shorten
from lmd.data.doctor.findings import Case, finding
from lmd.data.doctor.scan import Columns, Scan, barred, spelt
from lmd.data.reading import SUFFIXES, is_hidden
from lmd.data.sources.labelling import part_name
from lmd.data.sources.manifest import Finder

# Where a column was not named and the usual one is absent: names that are common elsewhere.
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
    """All lines of a CSV, with the files that they mean."""
    scan = Scan(str(path), "manifest", root=columns.root or path.parent)
    header, lines = _read(scan, path)
    layout = _layout(scan, header, columns)
    if layout is None or not lines:
        if not lines:
            scan.findings.append(finding("source", f"{path} has no lines below its header."))
        return scan
    scan.grouped, scan.split = layout.group is not None, layout.split is not None
    assert scan.root is not None
    finder = Finder(scan.root, (path.parent, path.parent / "images"))
    scan.cases = [_case(line, cells, layout, finder, columns) for line, cells in lines]
    _mark_repeats(scan)
    words = [] if layout.split is None else [cells[layout.split] for _, cells in lines]
    _add_findings(scan, words)
    _add_unlisted(scan)
    used = {layout.image, layout.label, layout.group, layout.split}
    scan.spare = {
        name: [cells[i] for _, cells in lines] for i, name in enumerate(header) if i not in used
    }
    return scan


def _read(scan: Scan, path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and numbered lines, as ``lmd.data.sources.manifest`` reads them, but of any bytes."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LmdError(f"manifest {path} cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16 = data[:2] in {b"\xff\xfe", b"\xfe\xff"}
        text = data.decode("utf-16" if utf16 else "cp1252", errors="replace")
        scan.findings.append(finding("encoding", f"{path.name} is not UTF-8 text ({error})."))
    text = text.replace("\0", "")
    first = text.split("\n", 1)[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    lines, long = [], []
    header: list[str] = []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        for cells in reader:
            filled = [cell.strip() for cell in cells] + [""] * (len(header) - len(cells))
            if any(filled):
                lines.append((reader.line_num, filled))
                if len(cells) > len(header):
                    long.append(f"line {reader.line_num}")
    except csv.Error as error:
        scan.findings.append(
            finding("source", f"{path.name} stops being CSV at line {reader.line_num}: {error}.")
        )
    if long:
        scan.findings.append(
            finding(
                "ragged_row",
                counted(len(long), "{n} [line has|lines have] more cells than the header."),
                names=long,
            )
        )
    return header, lines


def _layout(scan: Scan, header: list[str], columns: Columns) -> Layout | None:
    found: dict[str, int | None] = {}
    for what in ("image", "label", "group", "split"):
        asked: str | None = getattr(columns, what)
        needed = what in GUESSES
        if asked == "" and not needed:
            found[what] = None
            continue
        if (asked or what) in header:
            found[what] = header.index(asked or what)
            continue
        found[what] = _guess(header, what) if needed else None
        if needed or asked:
            _say_guess(scan, header, what, asked, found[what])
    if found["image"] is None or found["label"] is None:
        return None
    return Layout(found["image"], found["label"], found["group"], found["split"])


def _guess(header: list[str], what: str) -> int | None:
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in GUESSES[what] if name in lower), None)


def _say_guess(
    scan: Scan, header: list[str], what: str, asked: str | None, guess: int | None
) -> None:
    went = "" if guess is None else f" The examination went on with {header[guess]!r}."
    option = "" if guess is None else f" {header[guess]}"
    scan.findings.append(
        finding(
            "columns",
            f"There is no column {asked or what!r} for the {what}; the columns are "
            f"{', '.join(header)}.{went}",
            names=[asked or what],
            remedy=f"Name the right column with --{what}-column{option}.",
        )
    )


def _case(line: int, cells: list[str], layout: Layout, finder: Finder, columns: Columns) -> Case:
    name = posixpath.normpath(cells[layout.image].replace("\\", "/")) if cells[layout.image] else ""
    outside = (
        name.split("/")[0] == ".." or name.startswith("/") or bool(PureWindowsPath(name).drive)
    )
    allowed = columns.allow_outside or not outside
    found = finder.find(name) if name and allowed else []
    label = cells[layout.label]
    group = "" if layout.group is None else cells[layout.group] or f"image {name}"
    word = "train" if layout.split is None else cells[layout.split]
    part = part_name(word)
    fault = ""
    if not allowed:
        fault = "outside_root"
    elif not found:
        fault = "missing_file"
    elif len(found) > 1:
        fault = "ambiguous_file"
    elif not label:
        fault = "unlabelled"
    elif part is None:
        fault = "unknown_split"
    path = found[0] if len(found) == 1 else None
    return Case(
        name, label, group, (part or "") if layout.split is not None else "", path, line, fault
    )


def _mark_repeats(scan: Scan) -> None:
    """Of lines about one file all but the first repeat it; where they disagree, all are barred."""
    by_file: dict[Path, list[int]] = defaultdict(list)
    for i in scan.usable():
        path = scan.cases[i].path
        assert path is not None
        by_file[path].append(i)
    conflicts = []
    for same in by_file.values():
        if len(same) == 1:
            continue
        cases = [scan.cases[i] for i in same]
        groups = {case.group for case in cases if not case.group.startswith("image ")}
        agree = len({(case.label, case.part) for case in cases}) == 1 and len(groups) <= 1
        if not agree:
            conflicts.append(tuple(same))
        for i in same if not agree else same[1:]:
            fault = "repeated_row" if agree else "conflicting_rows"
            scan.cases[i] = replace(scan.cases[i], fault=fault)
    if conflicts:
        scan.findings.append(
            finding(
                "conflicting_rows",
                counted(
                    len(conflicts),
                    "{n} [image has|images have] lines that differ in label, group or part.",
                ),
                sets=conflicts,
            )
        )


def _add_findings(scan: Scan, words: list[str]) -> None:
    barred(
        scan,
        "outside_root",
        "{n} [path leaves the root and was|paths leave the root and were] not opened.",
    )
    barred(
        scan,
        "missing_file",
        "{n} [line names an image that is|lines name images that are] not on disk.",
    )
    barred(scan, "ambiguous_file", "{n} [name|names] may mean several files.")
    barred(scan, "unlabelled", "{n} [line has|lines have] no label.")
    barred(scan, "repeated_row", "{n} [line repeats|lines repeat] another one.")
    unknown = sorted({repr(word) for word in words if part_name(word) is None})
    told = "{n} [line has|lines have] a word for the part that is not known: "
    barred(scan, "unknown_split", f"{told}{shorten(unknown, 5)}.")


def _add_unlisted(scan: Scan) -> None:
    """Images beside those that the manifest names; other folders may have nothing to do with it."""
    listed = {case.path for case in scan.cases if case.path is not None}
    unclear = {case.name for case in scan.cases if case.fault == "ambiguous_file"}
    beside = []
    for folder in sorted({path.parent for path in listed}):
        for file in sorted(folder.iterdir()):
            known = file in listed or any(
                str(file.with_suffix("")).endswith(name) for name in unclear
            )
            if file.suffix.lower() in SUFFIXES and not is_hidden(file.name) and not known:
                beside.append(spelt(_below(file, scan.root)))
    if beside:
        scan.findings.append(
            finding(
                "unlisted_file",
                counted(
                    len(beside),
                    "{n} [image lies|images lie] beside those of the manifest, which does not "
                    "name [it|them].",
                ),
                names=beside,
            )
        )


def _below(file: Path, root: Path | None) -> str:
    inside = root is not None and file.is_relative_to(root)
    return file.relative_to(root).as_posix() if inside and root is not None else str(file)
