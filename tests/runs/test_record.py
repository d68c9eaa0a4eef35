"""The record: typed, and clear about what is wrong with a damaged one."""

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from record_page import page
from runs_on_disk import begun, edited, make_run
from toys import ROOT

from lmd.base.errors import LmdError
from lmd.runs.folder import Run, read_record
from lmd.runs.record import Record


def test_published_records_load(tmp_path: Path) -> None:
    for archive in (ROOT / "docs" / "results").glob("*/runs.tar.xz"):
        with tarfile.open(archive) as runs:
            records = (file for file in runs if file.name.endswith("record.json"))
            runs.extractall(tmp_path / archive.parent.name, records, filter="data")
    published = sorted(tmp_path.glob("*/*/record.json"))
    assert published
    for path in published:
        record = read_record(path)
        assert record.status == "finished"
        assert record.request.method == record.method.key


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["a", "b", "c"])
    assert Run(tmp_path / "run").record == record
    assert len(record.history) == 50


def test_a_running_run_is_valid_and_has_no_part(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(begun("run", ["a", "b"], [3, 2]))
    found = run.record
    assert (found.status, found.part, found.metrics) == ("running", None, {})


def test_numbers_that_are_not_finite_are_null_in_the_history() -> None:
    record = begun("run", ["a", "b"], [3, 2])
    rows = [{"stage": 1, "epoch": 1, "loss": float("nan"), "stage_name": "ICC", "val_bacc": None}]
    assert record.replaced(history=rows).history == [rows[0] | {"loss": None}]


def test_a_record_is_frozen_and_replaced_with_checks() -> None:
    record = begun("run", ["a", "b"], [3, 2])
    with pytest.raises(ValidationError):
        record.status = "finished"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        record.replaced(status="lost")
    assert record.replaced(name="other").name == "other"
    assert record.name == "run"


def _delete(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        for key in keys[:-1]:
            record = record[key]
        del record[keys[-1]]

    return change


def _put(value: Any, *keys: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value

    return change


DAMAGE: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (_delete("method"), "field 'method': Field required"),
    (_delete("method", "title"), "field 'method.title'"),
    (_delete("data", "counts"), "field 'data.counts'"),
    (_delete("tiers"), "field 'tiers'"),
    (_put([], "data"), "field 'data'"),
    (_put("high", "metrics", "test", "auc", "value"), "field 'metrics.test.auc.value'"),
    (_put(None, "metrics", "test", "auc"), "field 'metrics.test.auc'"),
    (_put({"training": {}}, "metrics"), "field 'metrics.training"),
    (_put("lost", "status"), "field 'status'"),
    (_put(1, "surprise"), "field 'surprise'"),
    (_put(3, "per_class"), "field 'per_class'"),
    (_put({"test": 3}, "per_class"), "field 'per_class.test'"),
    (_put({"test": [3]}, "per_class"), "field 'per_class.test.0'"),
    (_put([{"loss": [1]}], "history"), "field 'history.0.loss"),
    (_put(["head"], "tiers", "assignment"), "tiers.assignment has 1 entries for 3 classes"),
    (_put({"test": [[1, 2], [3, 4], [5, 6]]}, "confusion"), "confusion.test.0 has 2 entries"),
    (_put(3, "format"), "'format' must be 2, it is 3; read it with the version"),
    (_delete("format"), "'format' must be 2, it is None"),
    (_put(json.loads("[" * 60 + "]" * 60), "protocol", "deep"), "nested too deeply"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_damaged_record_is_one_line(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], words: str
) -> None:
    make_run(tmp_path / "run", ["a", "b", "c"], epochs=(1,))
    with edited(tmp_path / "run") as record:
        damage(record)
    _one_line(tmp_path / "run" / "record.json", words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"format": 2, "name": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON|nested too deeply"),
        (b"[" * 900 + b"]" * 900, "not valid JSON|nested too deeply"),
        (b"[]", "a JSON list, not an object"),
        (b"null", "not an object"),
        (b'{"format": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"format": [1]}', "'format' must be 2"),
        (b'{"format": 2}', "Field required"),
        (b'{"format": 2, "request": 3, "protocol": 3, "tiers": 3}', "Field required|valid dict"),
    ],
)
def test_a_file_that_is_no_record_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "record.json").write_bytes(content)
    _one_line(tmp_path / "record.json", words)


def test_a_record_cut_anywhere_is_one_line(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ["a", "b"], epochs=(1,))
    path = tmp_path / "run" / "record.json"
    whole = path.read_bytes()
    for size in range(0, len(whole) - 2, 997):
        path.write_bytes(whole[:size])
        _one_line(path, "not valid JSON")


def test_the_page_about_the_record_is_up_to_date() -> None:
    path = ROOT / "docs" / "record.md"
    assert path.read_text(encoding="utf-8") == page(), (
        "run: python tests/record_page.py > docs/record.md"
    )
    for field in Record.model_fields:
        assert f"| `{field}` |" in page()


def _one_line(path: Path, words: str) -> None:
    with pytest.raises(LmdError) as caught:
        read_record(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert re.search(words, text), text
    assert "restore the file" in text or "version of lmd" in text
