"""CSV files: a tolerant reader for manifests and the tables of known data sets, and a writer."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import counted
from lmd.data.findings import Finding, finding

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
