"""`lmd show` and `lmd runs` as a person sees them."""

import os
import time
from pathlib import Path

import pytest
from runs_on_disk import SKIN, begun, make_run
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.report.command import state_of
from lmd.report.text import format_scores, format_summary
from lmd.runs.folder import Run


def test_a_run_is_a_table_of_eighty_columns(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN, epochs=(1,))
    lines = format_summary(record).splitlines()
    assert max(map(len, lines)) <= 80
    rarest = record.per_class["test"][-1]
    line = next(line for line in lines if line.startswith("dermatofibroma"))
    assert rarest.recall.value is not None
    assert f"{100 * rarest.recall.value:.1f}" in line
    # Classes come from frequent to rare.
    assert lines[-8].split()[0] == "melanocytic"


def test_all_numbers_are_shown_with_their_notes_but_no_definitions(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN, epochs=(1,), absent=(6,))
    text = format_scores(record)
    entry = record.metrics["test"]["balanced_accuracy"]
    line = next(x for x in text.splitlines() if x.startswith("Balanced accuracy "))
    assert line.split()[2:] == [f"{entry.value:.3f}", f"{entry.low:.3f}", "to", f"{entry.high:.3f}"]
    absent = next(x for x in text.splitlines() if x.startswith(SKIN[6]))
    row = record.per_class["test"][6]
    assert absent.split()[-9:] == [row.tier, str(row.train), "0", *["–"] * 6]
    flat = " ".join(text.split())
    assert not any(each.definition in flat for each in record.definitions.values())
    assert record.notes
    for note in record.notes:
        assert note in flat


def test_definitions_are_shown_on_request(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN[:3], epochs=(1,))
    words = ["show", str(tmp_path / "run")]
    short, long = (
        " ".join(CliRunner().invoke(app, [*words, *more]).output.split())
        for more in ([], ["--definitions"])
    )
    for text in record.definitions.values():
        assert f"- {text.title}: {text.definition}" in long
        assert text.definition not in short


def test_runs_are_listed_with_their_state(tmp_path: Path) -> None:
    make_run(tmp_path / "group" / "done", SKIN[:3], epochs=(1,))
    old = Run.create(tmp_path / "old")
    old.write_record(begun("old", SKIN[:3], [9, 5, 2]))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "record.json").write_text("{")
    done = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.output.splitlines()[2:]}
    assert "damaged" in rows["bad"]
    assert "finished" in rows["group/done"]
    assert "running" in rows["old"]
    later = time.time() + 3600
    assert state_of("running", old.path, later) == "interrupted"


def test_a_slow_epoch_is_not_an_interruption(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "slow")
    run.write_history([{"stage": 1, "epoch": 1, "seconds": 3000.0}])
    then = time.time() - 4000
    for path in (run.path, *run.path.glob("*")):
        os.utime(path, (then, then))
    assert state_of("running", run.path, time.time()) == "running"
    assert state_of("running", run.path, time.time() + 20_000) == "interrupted"


def test_a_report_of_two_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, SKIN[:3], epochs=(1,))
    words = ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "both.html")])
    assert done.exit_code == 0
    assert "Side by side" in (tmp_path / "both.html").read_text(encoding="utf-8")
    done = CliRunner().invoke(app, [*words, str(tmp_path / "both.pdf")])
    assert isinstance(done.exception, LmdError)
    assert not (tmp_path / "both.pdf").exists()


def test_errors_name_the_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert isinstance(done.exception, LmdError)
    assert "not a run folder" in str(done.exception)
    done = CliRunner().invoke(app, ["runs", str(tmp_path / "none")])
    assert isinstance(done.exception, LmdError)
    with pytest.raises(LmdError, match="does not exist"):
        raise done.exception
