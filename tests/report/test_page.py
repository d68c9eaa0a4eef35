"""The report: complete, self-contained, true to the record, and safe with any class name."""

import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from pages import page, report_of, shown
from runs_on_disk import SKIN, begun, edited, make_run

from lmd.base.errors import LmdError
from lmd.report.page import write_report
from lmd.runs.folder import Run
from lmd.runs.record import Record


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    folder = tmp_path_factory.mktemp("report") / "lmd"
    record = make_run(folder, SKIN)
    report_of(folder)
    return folder, record


def test_makes_no_request(eight: tuple[Path, Record]) -> None:
    html = (eight[0] / "report.html").read_text(encoding="utf-8")
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert "@import" not in html
    for tag, key, value in page(eight[0] / "report.html").attributes:
        assert key not in {"src", "srcset", "data", "action"}, (tag, key, value)
        assert tag != "link"
        if "href" in key:
            assert value.startswith("#"), value
    # Only data go in, nothing that depends on when or how often the report is made.
    report_of(eight[0])
    assert (eight[0] / "report.html").read_text(encoding="utf-8") == html
    assert sorted(f.name for f in eight[0].iterdir()) == [
        "history.csv",
        "predictions.npz",
        "record.json",
        "report.html",
    ]


def test_links_of_the_page_lead_somewhere(eight: tuple[Path, Record]) -> None:
    found = page(eight[0] / "report.html")
    for _, key, value in found.attributes:
        if key == "href":
            assert value[1:] in found.ids
        if key == "aria-labelledby":
            assert set(value.split()) <= set(found.ids)


def test_shows_the_records_values(eight: tuple[Path, Record]) -> None:
    folder, record = eight
    text = page(folder / "report.html").text
    metrics = record.metrics["test"]
    for key in ("balanced_accuracy", "accuracy", "macro_f1", "bacc_head", "bacc_tail"):
        found = metrics[key]
        assert shown(found.value) in text, key
        assert f"{100 * found.low:.1f} to {shown(found.high)}" in text, key
    for key in ("auc", "kappa", "mcc", "ece"):
        assert f"{metrics[key].value:.3f}" in text, key
    for row in record.per_class["test"]:
        assert row.name in text
        for found in (row.recall, row.precision, row.f1):
            assert shown(found.value) in text
            assert f"{100 * found.low:.1f} to {shown(found.high)}" in text
    for key in metrics:
        assert record.definitions[key].title in text
        assert record.definitions[key].definition in text
    for note in (record.method.note, *record.notes):
        assert note in text[: text.index("How many images each class has")]
    for words in ("55a4177c0ffe", "9d1f6c2ab4", record.command, record.tiers.rule):
        assert words in text
    assert "1 h 24 min" in text
    assert "Synthetic data." not in text


def test_charts_carry_the_records_intervals(eight: tuple[Path, Record]) -> None:
    folder, record = eight
    text = page(folder / "report.html").text
    for tier in ("head", "medium", "tail"):
        found = record.metrics["test"][f"bacc_{tier}"]
        ends = f"{shown(found.low)} to {shown(found.high)}"
        assert f"{tier}: {shown(found.value)} (95 % interval {ends})" in text
    for row in record.per_class["test"]:
        ends = f"{shown(row.recall.low)} to {shown(row.recall.high)}"
        words = f"{row.name}: {shown(row.recall.value)} (95 % interval {ends})"
        assert f"{words}, {row.support} images" in text


def test_confusion_matrix_is_sorted_and_complete(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ["rare", "common"])
    with edited(tmp_path / "run") as record:
        record["data"]["counts"]["train"] = [10, 500]
        record["confusion"]["test"] = [[3, 4], [17, 233]]
    text = page(report_of(tmp_path / "run")).text
    for words in (
        "true rare, predicted rare: 3 of 7 (42.9 %)",
        "true rare, predicted common: 4 of 7 (57.1 %)",
        "true common, predicted rare: 17 of 250 (6.8 %)",
        "true common, predicted common: 233 of 250 (93.2 %)",
    ):
        assert words in text
    assert text.index("true common, predicted common") < text.index("true rare, predicted rare")


@pytest.mark.parametrize("size", [2, 3, 23])
def test_any_number_of_classes(tmp_path: Path, size: int) -> None:
    classes = [f"finding number {k} of the upper gastrointestinal tract" for k in range(size)]
    record = make_run(tmp_path / "run", classes)
    found = page(report_of(tmp_path / "run"))
    for row in record.per_class["test"]:
        assert row.name in found.text
    last = found.text.count(f"true {classes[-1]}, predicted ")
    assert last == size, "one tooltip for each cell"


def test_class_names_are_only_text(tmp_path: Path) -> None:
    evil = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror='alert(2)'>",
        "a & b </title></svg></style>{{ 7 * 7 }}",
        "plain",
    ]
    make_run(tmp_path / "run", evil)
    with edited(tmp_path / "run") as record:
        record["notes"] = ["<b onclick=alert(3)>note</b>"]
        record["method"]["title"] = "<i>LMD</i>"
        record["data"]["source"] = "</p><script>x</script>"
    make_run(tmp_path / "other", evil, title="<u>CE</u>")
    path = report_of(tmp_path / "run", compare=[tmp_path / "other"])
    found = page(path)
    assert all(not key.startswith("on") and key != "src" for _, key, _ in found.attributes)
    html = path.read_text(encoding="utf-8")
    assert html.count("<script>") == 1
    for words in ("<img", "<b onclick", "<i>LMD", "<u>CE"):
        assert words not in html
    for name in evil:
        assert " ".join(name.split()) in found.text
        assert name in unescape(html)


def test_tiers_from_outside_cannot_leave_their_attribute(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ["a", "b", "c"])
    with edited(tmp_path / "run") as record:
        for row in record["per_class"]["test"]:
            row["tier"] = '"><script>alert(1)</script>'
    assert report_of(tmp_path / "run").read_text(encoding="utf-8").count("<script>") == 1


def test_absent_classes_and_null_values(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN, absent=(3, 7))
    assert record.per_class["test"][3].recall.value is None
    text = page(report_of(tmp_path / "run")).text
    assert f"Nothing is known about {SKIN[3]} and {SKIN[7]}: no image in this part." in text
    with edited(tmp_path / "run") as values:
        values["metrics"]["test"]["kappa"] = {"value": None, "low": None, "high": None}
        values["per_class"]["test"][0]["precision"] = {"value": None}
    report_of(tmp_path / "run")


def test_without_a_test_part_the_validation_part_is_shown_and_said_so(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN)
    with edited(tmp_path / "run") as values:
        for key in ("metrics", "per_class", "confusion"):
            del values[key]["test"]
        del values["data"]["counts"]["test"]
    (tmp_path / "run" / "predictions.npz").unlink()
    text = page(report_of(tmp_path / "run")).text
    assert "Validation, not test." in text
    assert shown(record.metrics["validation"]["balanced_accuracy"].value) in text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(begun("run", SKIN, [100 - k for k in range(len(SKIN))]))
    text = page(report_of(run.path)).text
    assert "Not finished." in text
    assert "no result to show" in text
    assert "no history" in text


def test_synthetic_data_are_announced(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ["a", "b"])
    with edited(tmp_path / "run") as record:
        record["data"]["synthetic"] = True
    assert "Synthetic data." in page(report_of(tmp_path / "run")).text


def test_rereads_nothing_of_a_run_that_was_just_made(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SKIN)
    from_disk = report_of(tmp_path / "run").read_bytes()
    run = Run(tmp_path / "run")
    assert run.record.status == "finished"
    assert run.predictions is not None
    for name in ("record.json", "predictions.npz", "history.csv"):
        (tmp_path / "run" / name).unlink()
    assert write_report(run).read_bytes() == from_disk


def test_a_record_without_history_has_the_curves_of_its_csv_file(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SKIN)
    before = report_of(tmp_path / "run").read_bytes()
    with edited(tmp_path / "run") as record:
        del record["history"]
    assert report_of(tmp_path / "run").read_bytes() == before


def test_values_that_the_method_chose_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ["a", "b"])
    assert "Chosen by the method" not in page(report_of(tmp_path / "run")).text
    with edited(tmp_path / "run") as record:
        record["method"]["chosen"] = {"shrinkage": 0.5}
    assert "Chosen by the method shrinkage 0.5" in page(report_of(tmp_path / "run")).text


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match=r"no record\.json"):
        report_of(tmp_path)


def test_imports_stay_light() -> None:
    code = (
        "import sys, lmd.report.card, lmd.report.text; "
        "heavy = {'torch', 'lmd.methods', 'lmd.training', 'matplotlib'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
