"""Every figure carries its data, and every table can be sorted."""

import csv
import io

import pytest
from pages import Page, page, report_of
from runs_on_disk import SKIN, make_run

from lmd.report.charts import savable
from lmd.report.curves import curve_groups


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("saving")
    make_run(folder / "lmd", SKIN)
    make_run(folder / "ce", SKIN, skill=1.0, title="CE")
    return page(report_of(folder / "lmd", compare=[folder / "ce"]))


def data(report: Page) -> dict[str, list[dict[str, str]]]:
    """The rows of every figure by its name."""
    names = [value for _, key, value in report.attributes if key == "data-name"]
    texts = [value for _, key, value in report.attributes if key == "data-csv"]
    assert len(names) == len(set(names))
    found = zip(names, texts, strict=True)
    return {name: list(csv.DictReader(io.StringIO(text))) for name, text in found}


def test_every_drawing_is_in_a_figure_with_data(report: Page) -> None:
    charts = [value for tag, key, value in report.attributes if (tag, key) == ("svg", "class")]
    found = data(report)
    fixed = {"counts", "recall", "recall by training images", "tiers", "coverage", "confusion"}
    fixed |= {"recall of runs", "reliability", "val_bacc", "loss", "ce", "relation", "fdc"}
    curves = {f"{kind} {name}" for kind in ("ROC", "precision-recall") for name in SKIN}
    assert found.keys() == fixed | curves
    assert all(found.values())
    drawn = [value for value in charts if value.startswith("chart")]
    assert len(drawn) == len(found)


def test_the_data_are_the_numbers_of_the_figure(report: Page) -> None:
    found = data(report)
    matrix = found["confusion"]
    assert len(matrix) == len(SKIN) ** 2
    right = sum(int(row["images"]) for row in matrix if row["true"] == row["predicted"])
    images = sum(int(row["images"]) for row in matrix)
    of_class = {row["class"]: row for row in found["recall"]}
    for name in SKIN:
        own = [row for row in matrix if row["true"] == name]
        hits = next(int(row["images"]) for row in own if row["predicted"] == name)
        total = sum(int(row["images"]) for row in own)
        assert float(of_class[name]["recall"]) == pytest.approx(hits / total, abs=1e-5)
        assert int(of_class[name]["images"]) == total
    assert 0 < right < images
    assert [row["run"] for row in found["recall of runs"][:2]] == ["lmd", "ce"]
    assert float(found["ROC melanoma"][-1]["sensitivity"]) == 1
    assert float(found["precision-recall melanoma"][-1]["recall"]) == 1


def test_all_tables_sort(report: Page) -> None:
    tables = [value for tag, key, value in report.attributes if (tag, key) == ("table", "class")]
    assert len(tables) >= 5
    assert all("sortable" in value for value in tables)


def test_data_cannot_leave_their_attribute() -> None:
    found = Page(savable('"><script>', "", [{"class": '"><img src=x>', "n": 1}]))
    assert [tag for tag, _, _ in found.attributes] == ["div"] * 3


def test_terms_of_one_stage_are_drawn_over_its_own_epochs() -> None:
    history = [
        {"stage": 1, "stage_name": "RRL", "epoch": i, "val_bacc": 0.5, "loss": 1.0, "relation": 0.1}
        for i in range(1, 31)
    ] + [
        {"stage": 2, "stage_name": "ICC", "epoch": i, "val_bacc": 0.5, "loss": 1.0}
        | {"psi": 10.0 - i, "phi": 90.0 + i, "m_loss": 1 / i}
        for i in range(1, 6)
    ]
    groups = curve_groups(history)
    both, own, em = (group.figures for group in groups)
    assert [title for title, _ in both] == ["Validation balanced accuracy", "Loss"]
    assert [group.heading for group in groups] == ["", "RRL", "ICC, over its EM iterations"]
    assert [title for title, _ in own] == ["relation"]
    assert [title.partition(":")[0] for title, _ in em] == ["Psi", "Phi", "Loss of the M step"]
    for (_, figure), key in zip(em, ("psi", "phi", "m_loss"), strict=True):
        assert "EM iteration 5: " in figure
        assert figure.count("<circle") == 5
        assert f"stage,epoch,{key}\nICC,1," in figure
    assert "epoch 35: " in both[1][1]
    assert curve_groups(history[:31])[2].heading == "ICC"  # one calibration is no iteration
    assert curve_groups([]) == []
    alone = curve_groups([{"stage": 1, "epoch": 1, "m_loss": 2.0}])
    assert "EM iteration 1: 2" in alone[0].figures[0][1]
