"""The CSV reader that manifests and recipes share."""

from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.data.manifest import read_csv
from lmd.recipes import read_rows


def write(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "data.csv").write_bytes(content)
    return tmp_path / "data.csv"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_marks_and_blank_lines(tmp_path: Path, delimiter: str, end: str) -> None:
    lines = ["\ufeffa|b|c", " 1 |2", "", "||", "3|4| 5 "]
    path = write(tmp_path, end.join(lines).replace("|", delimiter).encode())
    table = read_csv(path)
    assert table.header == ["a", "b", "c"]
    assert table.lines == [(2, ["1", "2", ""]), (5, ["3", "4", "5"])]
    assert table.findings == []
    rows = read_rows(path, ["a"])
    assert rows == [{"a": "1", "b": "2", "c": ""}, {"a": "3", "b": "4", "c": "5"}]


def test_a_line_that_is_too_long_is_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b\n1,2\n1,2,3\n")
    (found,) = read_csv(path).findings
    assert (found.kind, found.severity, found.names) == ("ragged_row", "warning", ("line 3",))
    assert read_rows(path)[1] == {"a": "1", "b": "2"}


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_other_encodings_are_read_but_are_an_error(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, "a,b\n1,Müller\n".encode(encoding))
    table = read_csv(path)
    assert table.lines == [(2, ["1", "Müller"])]
    assert [found.kind for found in table.findings] == ["encoding"]
    with pytest.raises(LmdError, match="is not UTF-8 text"):
        read_rows(path)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    for content in (b"", b"a,b\n", b"a,b\n,\n"):
        with pytest.raises(LmdError, match=r"data.csv: The file has no lines below its header"):
            read_rows(write(tmp_path, content))
    with pytest.raises(LmdError, match="not valid CSV from line 2 on"):
        read_rows(write(tmp_path, b"a,b\n" + 200_000 * b"x"))
    with pytest.raises(LmdError, match=r"nowhere.csv cannot be read: No such file"):
        read_csv(tmp_path / "nowhere.csv")
    with pytest.raises(LmdError, match="has no column c; its columns are a, b"):
        read_rows(write(tmp_path, b"a,b\n1,2\n"), ["c"])


def test_a_quotation_mark_that_is_not_closed_is_an_error(tmp_path: Path) -> None:
    lines = [f"{i}.png,nevus,{note}" for i, note in enumerate(["", '"5 mm', "", "", '6" wide', ""])]
    path = tmp_path / "m.csv"
    path.write_text("\n".join(["image,label,note", *lines]))
    (found,) = read_csv(path).findings
    assert found.kind == "source"
    assert "quotation mark" in found.text
    # A note of several lines is no error.
    path.write_text('image,label,note\n0.png,nevus,"two\nlines, one comma"\n')
    assert read_csv(path).findings == []
