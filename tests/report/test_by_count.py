"""Recall against training images."""

import re
from pathlib import Path

import pytest
from runs_on_disk import SKIN, make_run

from lmd.base.errors import LmdError
from lmd.report.charts import Point, against_counts
from lmd.report.page import write_report
from lmd.runs.folder import Run
from lmd.scoring.estimates import Estimate


def point(value: float) -> Point:
    estimate = Estimate(value=value, low=value - 0.1, high=value + 0.1)
    return Point("a class", estimate, "tail", "circle")


def test_places_are_logarithmic() -> None:
    drawn = against_counts("x", [(n, point(0.5)) for n in (10, 100, 1000)])
    left, middle, right = (float(x) for x in re.findall(r'<circle cx="([\d.]+)%"', drawn))
    assert middle - left == pytest.approx(right - middle, abs=0.02)
    assert all(f">{n}<" in drawn for n in ("10", "100")), drawn


def test_equal_counts_can_be_drawn() -> None:
    drawn = against_counts("x", [(50, point(0.2)), (50, point(0.9))])
    assert drawn.count("<circle") == 2


def test_a_report_of_several_runs_is_written_where_asked(tmp_path: Path) -> None:
    runs = []
    for i in range(3):
        make_run(tmp_path / f"run{i}", SKIN[:3], epochs=(1,), skill=1.0 + i)
        runs.append(Run(tmp_path / f"run{i}"))
    path = write_report(runs[0], compare=runs[1:], out=tmp_path / "three.html")
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "three.html"
    assert "by-count-title" in page
    assert all(f"<small>run{i}</small>" in page for i in range(3))
    assert not (tmp_path / "run0" / "report.html").exists()
    with pytest.raises(LmdError, match="at most 8 runs side by side; got 9"):
        write_report(runs[0], compare=[runs[1]] * 8, out=tmp_path / "nine.html")
    assert not (tmp_path / "nine.html").exists()


def test_reliability_is_drawn_without_the_temperature_too(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SKIN[:3], epochs=(1,))
    run = Run(tmp_path / "run")
    page = write_report(run, out=tmp_path / "one.html").read_text(encoding="utf-8")
    assert "reliability-before" not in page
    model = run.record.model.model_copy(update={"temperature": 2.0})
    warm = Run(run.path, run.record.model_copy(update={"model": model}))
    page = write_report(warm, out=tmp_path / "two.html").read_text(encoding="utf-8")
    gaps = re.findall(r"between confidence and accuracy: ([\d.]+)", page)
    assert len(gaps) == 2
    assert gaps[0] != gaps[1]
