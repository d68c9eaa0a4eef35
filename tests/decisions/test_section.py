"""Prediction sets and decisions on the page: the record's numbers, and curves that stay small."""

from pathlib import Path

import numpy as np
from pages import page, report_of, shown
from runs_on_disk import SKIN, edited, make_run

from lmd.decisions.decide import Decide
from lmd.evaluation.evaluate import rescore
from lmd.runs.record import Record

COSTS = {name: 10.0 if name == "melanoma" else 1.0 for name in SKIN}


def made(folder: Path, temperature: float = 1.7, **decide: object) -> tuple[Record, str]:
    make_run(folder, SKIN)
    with edited(folder) as values:
        values["model"]["temperature"] = temperature
    record = rescore(folder, decide=Decide(**decide))  # type: ignore[arg-type]
    return record, page(folder / "report.html").text


def test_it_shows_the_records_numbers(tmp_path: Path) -> None:
    record, text = made(tmp_path / "run", prevalence="training", costs=COSTS)
    assert record.decisions is not None
    assert record.sets is not None
    section = text[text.index("What a decision is worth") : text.index("All metrics")]
    assert "made by the least expected cost" in section
    assert "prevalence: as in the training part" in section
    assert f"Mean cost of an image: {record.decisions.mean_cost:.3g}" in section
    for row in record.decisions.per_class:
        for found in (row.recall, row.specificity, row.fixed, row.ppv, row.npv):
            if found.value is not None:
                span = f"{100 * found.low:.1f} to {shown(found.high)}"
                assert f"{shown(found.value)} {span}" in section
        point = f"{row.name}: sensitivity {shown(row.recall.value)} at specificity "
        assert point + shown(row.specificity.value) in section
    sets = text[text.index("Sets of classes") : text.index("What a decision is worth")]
    for one in record.sets.per_class:
        found = one.coverage
        assert f"{shown(found.value)} {100 * found.low:.1f} to {shown(found.high)}" in sets
        span = "" if one.size.low is None else f" {one.size.low:.2f} to {one.size.high:.2f}"
        assert f"{one.size.value:.2f}{span}" in sets
        assert f"{100 * one.expected.low:.1f} to {shown(one.expected.high)}" in sets
    calibration = text[text.index("Can its confidence") : text.index("Sets of classes")]
    found = record.calibration["test"]
    for value in (found.before.value, found.matched_before, found.matched_after):
        assert f"{value:.3f}" in calibration


def test_referrals_are_shown_where_there_are_any(tmp_path: Path) -> None:
    assert "Referred" not in made(tmp_path / "without")[1]
    record, text = made(tmp_path / "with", coverage=0.99, refer_above=1)
    assert record.decisions is not None
    assert record.decisions.referred > 0
    assert f"{shown(record.decisions.referred)} of the images are referred" in text
    assert "Referred" in text
    assert "mean cost" not in text
    record, text = made(tmp_path / "costs", coverage=0.99, refer_above=1, costs=COSTS)
    assert record.decisions is not None
    assert record.decisions.mean_cost is None
    assert "The mean cost of an image is not known, because the costs have no column refer" in text


def test_only_a_temperature_that_was_fitted_is_taken_away(tmp_path: Path) -> None:
    for temperature, said in (
        (1.7, "Without the temperature of 1.7, which was fitted on the validation part,"),
        (1.0, "No temperature was fitted to these probabilities. The model answers for"),
    ):
        folder = tmp_path / str(temperature)
        record, text = made(folder, temperature)
        assert said in text
        assert ("fitted on" in text) == (temperature != 1)
        assert f"{record.calibration['test'].matched_after:.3f}" in text


def test_the_curves_rise_and_have_few_points(tmp_path: Path) -> None:
    made(tmp_path / "run")
    found = page(tmp_path / "run" / "report.html")
    lines = [value for tag, key, value in found.attributes if (tag, key) == ("polyline", "points")]
    curves = lines[: len(SKIN)]
    for line in curves:
        points = np.array([[float(x) for x in pair.split(",")] for pair in line.split()])
        assert points[0].tolist() == [30, 140]
        assert points[-1].tolist() == [162, 8]
        assert (np.diff(points[:, 0]) >= 0).all()
        assert (np.diff(points[:, 1]) <= 0).all()
        assert len(points) < 150


def test_a_run_without_these_numbers_has_no_such_section(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SKIN, absent=(3,))
    report_of(tmp_path / "run")
    text = page(tmp_path / "run" / "report.html").text
    assert "What a decision is worth" in text  # a class without images is only left out
    with edited(tmp_path / "run") as record:
        del record["sets"], record["decisions"], record["calibration"]
    text = page(report_of(tmp_path / "run")).text
    assert "Sets of classes" not in text
    assert "What a decision is worth" not in text
    assert "Without the temperature" not in text
