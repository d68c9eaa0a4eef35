"""Tables from records: the numbers, the marks, the tests and the four formats."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_on_disk import as_planned, begun, edited_arrays, write_run
from toys import toy_probabilities

from lmd.base.errors import LmdError
from lmd.benchmark.plan import Plan
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.results import read_results
from lmd.benchmark.tables import build, make_tables
from lmd.runs.folder import PartPredictions, Predictions
from lmd.scoring import metrics
from lmd.scoring.differences import compare, holm, paired_limits
from lmd.scoring.metrics import Sample
from lmd.scoring.proportions import interval
from lmd.scoring.scores import bootstrap

CLASSES = ("nevus", "melanoma", "wart", "DF_%", "a|b")
TRAIN = np.array([500, 200, 80, 20, 5])
SUPPORT = (40, 30, 20, 10, 4)
METRICS = ("auc", "balanced_accuracy", "macro_f1", "kappa", "macro_precision", "macro_recall")
SKILL = {"ce": 1.0, "rs": 2.0, "fcd": 2.6, "lmd_wo_vfc": 2.2, "lmd": 3.0}

MakePlan = Any


def probabilities(labels: np.ndarray[Any, Any], skill: float, seed: int) -> np.ndarray[Any, Any]:
    return toy_probabilities(labels, len(CLASSES), skill, seed).astype(np.float32)


def write_one(folder: Path, method: dict[str, str], given: np.ndarray[Any, Any], seed: int) -> None:
    """A finished run whose numbers come from the real scoring, shuffled as a run may be."""
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    ids = np.array([f"image{i:03d}" for i in range(len(labels))])
    order = np.random.default_rng(seed).permutation(len(labels))
    test = PartPredictions(ids[order], labels[order], given[order])
    record = begun(folder.name, CLASSES, TRAIN.tolist(), **method)
    write_run(folder, record, Predictions(CLASSES, {"test": test}), resamples=200)


def write_runs(plan: Plan, folder: Path, leave_out: tuple[str, ...] = ()) -> None:
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    rows = {row.key: row for row in plan.rows}
    for run in plan.runs:
        if run.name not in leave_out:
            skill = SKILL[run.method] + 0.3 * run.point
            given = probabilities(labels, skill, 100 * run.point + run.seed)
            row = rows[run.method]
            method = {"key": row.key, "title": row.title, "note": row.note}
            write_one(folder / run.name, method, given, run.seed)
    as_planned(plan, folder)


def make_plan(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "grid.toml"
    path.write_text('title = "Toys: 5 %"\n' + text)
    return plan_grid(path)


@pytest.fixture
def compared(tmp_path: Path) -> tuple[Plan, Path]:
    """Five methods, three seeds; one run is missing."""
    text = f'data = "a.csv"\nmethods = {json.dumps(list(SKILL))}\nseeds = [0, 1, 2]\n'
    plan = make_plan(tmp_path, text)
    write_runs(plan, tmp_path / "out", leave_out=("rs-seed2",))
    return plan, tmp_path / "out"


def record_values(folder: Path, runs: list[str], metric: str) -> list[float]:
    records = [json.loads((folder / name / "record.json").read_text()) for name in runs]
    return [record["metrics"]["test"][metric]["value"] for record in records]


def test_csv_has_the_numbers_of_the_records(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    text = make_tables(read_results(plan, folder, resamples=100), format="csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["Method"] for row in rows] == [row.title for row in plan.rows]
    for row, of in zip(rows, plan.rows, strict=True):
        names = [r.name for r in plan.runs if r.method == of.key and r.name != "rs-seed2"]
        for metric in METRICS:
            values = record_values(folder, names, metric)
            assert float(row[metric]) == pytest.approx(np.mean(values), abs=1e-15)
            assert float(row[f"{metric}_sd"]) == pytest.approx(np.std(values, ddof=1), abs=1e-15)
            low, high = row[f"{metric}_low"], row[f"{metric}_high"]
            if metric == "auc":  # one class has four images
                assert low == high == ""
            else:
                assert float(low) <= float(row[metric]) <= float(high)
                assert float(low) < float(high)
    lmd = rows[-1]
    assert lmd["balanced_accuracy_p"] == ""
    assert all(0 < float(row["balanced_accuracy_p"]) <= 1 for row in rows[:-1])


def test_one_seed_has_the_interval_of_its_record(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 'data = "a.csv"\nmethods = ["ce", "lmd"]\n')
    write_runs(plan, tmp_path / "out")
    results = read_results(plan, tmp_path / "out", resamples=50)
    table = build(results, "tiers")[0]
    record = json.loads((tmp_path / "out" / "ce-seed0" / "record.json").read_text())
    for column, cell in zip(table.columns, table.lines[0].cells, strict=True):
        if not column.test:
            mean, sd, low, high = cell.numbers
            assert (mean, low, high) == tuple(record["metrics"]["test"][column.metric].values())
            assert sd is None


def test_interval_and_test_of_means_over_seeds(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    results = read_results(plan, folder, resamples=300)
    tiers = results.runs[0].record.tiers.assignment

    def draws(method: str, seeds: tuple[int, ...]) -> np.ndarray[Any, Any]:
        each = [
            bootstrap(
                Sample(labels, probabilities(labels, SKILL[method], s), tiers),
                ["bacc_head"],
                resamples=300,
            )["bacc_head"]
            for s in seeds
        ]
        return np.mean(each, axis=0)

    ce, lmd = results.entry("ce", 0), results.entry("lmd", 0)
    found = ce.estimate("bacc_head")
    assert found is not None
    expected = interval(draws("ce", (0, 1, 2)), found.mean)
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    # Only the seeds that both have: of "rs" the third is missing.
    rs = results.entry("rs", 0)
    gap = rs.difference(lmd, "bacc_head")
    assert gap is not None
    paired = draws("rs", (0, 1)) - draws("lmd", (0, 1))
    assert (gap.low, gap.high) == pytest.approx(interval(paired, gap.value), abs=1e-12)


def test_a_class_of_four_images_has_the_same_rule_in_tables(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    results = read_results(plan, folder, resamples=300)
    ce, lmd = results.entry("ce", 0), results.entry("lmd", 0)
    for metric in ("balanced_accuracy", "bacc_tail", "macro_f1"):
        found = ce.estimate(metric)
        assert found is not None
        recorded = [run.recorded(metric) for run in ce.runs]
        assert found.low == pytest.approx(np.mean([each.low for each in recorded]))
        assert found.high == pytest.approx(np.mean([each.high for each in recorded]))
    samples = [[run.sample for run in entry.runs] for entry in (ce, lmd)]
    gap = ce.difference(lmd, "bacc_tail")
    assert gap is not None
    expected = paired_limits(*samples, metrics.METRICS["bacc_tail"], gap)
    assert vars(gap) == pytest.approx(vars(expected))
    draws = [np.mean([run.draws("bacc_tail") for run in e.runs], axis=0) for e in (ce, lmd)]
    low, high = interval(draws[0] - draws[1])
    assert gap.high - gap.low > high - low


def test_one_seed_is_the_paired_difference(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 'data = "a.csv"\nmethods = ["ce", "lmd"]\n')
    write_runs(plan, tmp_path / "out")
    results = read_results(plan, tmp_path / "out", resamples=200)
    ce, lmd = results.entry("ce", 0), results.entry("lmd", 0)
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    a, b = (Sample(labels, probabilities(labels, SKILL[key], 0)) for key in ("ce", "lmd"))
    expected = compare(a, b, ["balanced_accuracy"], resamples=200)["balanced_accuracy"]
    found = ce.difference(lmd, "balanced_accuracy")
    assert found is not None
    for key in ("value", "low", "high", "p_value"):
        assert getattr(found, key) == pytest.approx(getattr(expected, key), abs=1e-12)


def test_best_and_second_are_marked_and_p_values_corrected(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    table = build(read_results(plan, folder, resamples=100), "metrics")[0]
    for i, column in enumerate(table.columns):
        cells = [line.cells[i] for line in table.lines]
        if not column.test:
            values = [c.numbers[0] for c in cells]
            order = sorted(range(len(cells)), key=lambda k: -values[k])
            marks = [c.mark for c in cells]
            assert marks[order[0]] == "best"
            assert marks[order[1]] == "second"
            assert set(marks) == {"", "best", "second"}
        else:
            p, corrected = zip(*(c.numbers[-2:] for c in cells if c.numbers), strict=True)
            assert len(p) == table.tests == 4
            assert corrected == pytest.approx(holm(p))
            assert corrected[0] > p[0]
    assert [line.rule for line in table.lines] == [False, False, False, True, False]


def test_equal_numbers_are_marked_alike(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 'data = "a.csv"\nmethods = ["ce", "rs", "lmd"]\n')
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    for run, skill in zip(plan.runs, (2.0, 2.0, 0.5), strict=True):
        given = probabilities(labels, skill, 0)
        write_one(tmp_path / "out" / run.name, {"key": run.method}, given, 0)
    as_planned(plan, tmp_path / "out")
    table = build(read_results(plan, tmp_path / "out", resamples=20), "metrics")[0]
    marks = [[cell.mark for cell in line.cells[:-1]] for line in table.lines]
    assert marks == [["best"] * 6, ["best"] * 6, ["second"] * 6]


def test_markdown(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    text = make_tables(read_results(plan, folder, resamples=50), format="markdown")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(plan.rows)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {1 + 6 + 1 + 2}
    assert text.count("<u>") == 6
    assert len(re.findall(r"\*\*[\d.]+ ± [\d.]+\*\*", text)) == 6
    note = next(row.note for row in plan.rows if row.note)
    assert f"<sup>a</sup> {note}" in text


def test_latex_is_balanced_and_escaped(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    text = make_tables(read_results(plan, folder, resamples=50), form="tiers", format="latex")
    depth = 0
    for character in re.sub(r"\\[{}]", "", text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]
    assert text.count("$") % 2 == 0
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert {row.count("&") for row in rows} == {5}
    assert text.count(r"\underline{") == 4
    assert text.count(r"\textbf{") >= 4  # four test images of the rarest class: there are ties
    assert r"DF\_\%" in text
    assert r"\caption{Toys: 5 \%}" in text
    assert not re.search(r"(?<!\\)[%#_]", text)
    assert text.isascii()


def test_text_says_what_a_reader_must_know(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    text = " ".join(make_tables(read_results(plan, folder, resamples=50)).split())
    for words in (
        "mean ± standard deviation over the seeds 0, 1, 2",
        "Holm's correction (comparisons: 4)",
        "one of which has fewer than ten test images, have intervals combined from the limits",
        "head: nevus, melanoma; medium: wart, DF_%; tail: a|b",
        "104 test images; a|b has the fewest (4), so that one image changes balanced accuracy",
        "by up to 5.00 points; imbalance factor of the training part 100.",
        "14 runs of 2026-03-02, lmd 0.1.0, commit 55a4177c0ffe.",
        "Missing (1 of 15 runs): rs-seed2.",
    ):
        assert words in text


def test_a_method_without_runs_has_dashes(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 'data = "a.csv"\nmethods = ["ce", "rs", "lmd"]\n')
    write_runs(plan, tmp_path / "out", leave_out=("rs-seed0", "lmd-seed0"))
    table = build(read_results(plan, tmp_path / "out", resamples=20))[0]
    assert all(not cell.numbers for line in table.lines[1:] for cell in line.cells)
    # Without the reference row there is nothing to test against.
    assert not any(column.test for column in table.columns)
    text = make_tables(read_results(plan, tmp_path / "out", resamples=20))
    assert next(line for line in text.splitlines() if line.startswith("LMD")).count("–") == 6


def test_factors_stand_side_by_side(tmp_path: Path) -> None:
    text = 'methods = ["ce", "lmd"]\n[sweep.data]\n"r = 10" = "a.csv"\n"r = 20" = "b.csv"\n'
    plan = make_plan(tmp_path, text)
    write_runs(plan, tmp_path / "out")
    results = read_results(plan, tmp_path / "out", resamples=50)
    (table,) = build(results, "factors")
    assert [(c.group, c.title) for c in table.columns] == [
        ("r = 10", "AUC"),
        ("r = 10", "BACC"),
        ("r = 10", "Δ BACC to LMD"),
        ("r = 20", "AUC"),
        ("r = 20", "BACC"),
        ("r = 20", "Δ BACC to LMD"),
    ]
    assert table.tests == 2
    assert r"\multicolumn{3}{c}{r = 10}" in make_tables(results, form="factors", format="latex")
    # The same grid as metrics: a table for each factor.
    assert [t.title for t in build(results, "metrics")] == [
        "Toys: 5 %: r = 10",
        "Toys: 5 %: r = 20",
    ]


def test_a_sweep_has_a_row_for_each_value(tmp_path: Path) -> None:
    text = 'data = "a.csv"\nmethods = ["ce", "lmd"]\n[sweep]\nlambda_1 = [0.1, 1.0, 10.0]\n'
    plan = make_plan(tmp_path, text)
    write_runs(plan, tmp_path / "out")
    results = read_results(plan, tmp_path / "out", resamples=50)
    (table,) = build(results, "sweep")
    assert table.heads == ("Method", "lambda_1")
    assert [line.heads for line in table.lines] == [
        ("CE", "–"),
        ("LMD", "0.1"),
        ("LMD", "1"),
        ("LMD", "10"),
    ]
    # Without a sweep lambda_1 would be the paper's 10: the others are tested against it.
    assert table.reference == "LMD, lambda_1 = 10"
    assert [bool(line.cells[-1].numbers) for line in table.lines] == [True, True, True, False]


def test_two_settings_of_one_method_are_rows(tmp_path: Path) -> None:
    text = """data = "a.csv"
methods = ["lmd"]
form = "tiers"
[sweep]
e_sampling = ["natural", "balanced"]
m_sampling = ["natural", "balanced"]
"""
    plan = make_plan(tmp_path, text)
    write_runs(plan, tmp_path / "out")
    (table,) = build(read_results(plan, tmp_path / "out", resamples=50))
    assert table.heads == ("e_sampling", "m_sampling")
    assert [line.heads for line in table.lines] == [
        ("natural", "natural"),
        ("natural", "balanced"),
        ("balanced", "natural"),
        ("balanced", "balanced"),
    ]
    assert [c.title for c in table.columns[:4]] == ["Head", "Medium", "Tail", "Overall"]
    assert table.reference == "e_sampling = natural, m_sampling = balanced"


def test_patients_are_drawn_where_every_run_knows_them(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    paths = sorted(folder.glob("*/predictions.npz"))
    by_image = read_results(plan, folder, resamples=50)
    for path in paths:
        arrays = dict(np.load(path))
        arrays["test_groups"] = np.arange(len(arrays["test_ids"])) // 3
        np.savez(path, **arrays)
    by_patient = read_results(plan, folder, resamples=50)
    assert "groups (patients or lesions) of test images resampled 50" in make_tables(by_patient)
    # One run that is older would be drawn otherwise than the rest: images are, for all.
    arrays.pop("test_groups")
    np.savez(paths[-1], **arrays)
    mixed = read_results(plan, folder, resamples=50)
    assert "(test images resampled 50" in make_tables(mixed)
    for old, new, other in zip(by_image.runs, mixed.runs, by_patient.runs, strict=True):
        np.testing.assert_array_equal(old.draws("auc"), new.draws("auc"))
        assert not np.array_equal(old.draws("auc"), other.draws("auc"))


def test_errors(compared: tuple[Plan, Path]) -> None:
    plan, folder = compared
    results = read_results(plan, folder, resamples=10)
    with pytest.raises(LmdError, match="needs a grid with a \\[sweep\\]"):
        make_tables(results, form="factors")
    with pytest.raises(LmdError, match="choose one of metrics, tiers, factors, sweep"):
        make_tables(results, form="x")
    with pytest.raises(LmdError, match="choose one of text, markdown, latex, csv"):
        make_tables(results, format="x")
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    write_one(folder / "rs-seed2", {"key": "rs"}, probabilities(labels, 1.0, 0), 0)
    with edited_arrays(folder / "rs-seed2") as arrays:
        arrays["test_ids"][0] = "other"
    as_planned(plan, folder)
    with pytest.raises(LmdError, match="not tested on the same images"):
        read_results(plan, folder)
