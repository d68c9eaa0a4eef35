"""The model card: all numbers of the record, as Markdown with metadata and as one HTML document."""

import re
from pathlib import Path

import pytest
from pages import page
from runs_on_disk import SKIN, make_run

from lmd.report.card import card_page, write_card
from lmd.runs.record import Record
from lmd.scoring.metrics import METRICS

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record, str]:
    folder = tmp_path_factory.mktemp("card") / "skin"
    record = make_run(folder, SKIN, absent=(6,))
    return folder, record, write_card(record, folder).read_text(encoding="utf-8")


def test_the_head_is_what_the_hub_reads(made: tuple[Path, Record, str]) -> None:
    _, record, text = made
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["library_name"] == "lmd"
    assert about["pipeline_tag"] == "image-classification"
    (index,) = about["model-index"]
    (result,) = index["results"]
    assert index["name"] == record.name
    assert result["task"]["type"] == "image-classification"
    assert {"name", "type"} <= result["dataset"].keys()
    found = {one["type"]: one["value"] for one in result["metrics"]}
    known = {k: v.value for k, v in record.metrics["test"].items() if v.value is not None}
    assert found == pytest.approx(known, abs=1e-6)
    assert body.lstrip().startswith("# skin")


def test_every_class_and_metric_is_there_with_its_interval(made: tuple[Path, Record, str]) -> None:
    folder, record, text = made
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for key, one in record.metrics["test"].items():
        (row,) = [row for row in rows if row.startswith(f"| {METRICS[key].title} |")]
        if key == "auc":  # some classes are small
            assert row.endswith("| – |")
            continue
        assert one.low is not None
        assert f"{100 * one.low:.1f}" in row or f"{one.low:.3f}".replace("-", "−") in row
    for one in record.per_class["test"]:
        name = one.name.replace("_", "\\_")
        # counts, numbers and prediction sets
        assert len([row for row in rows if row.startswith(f"| {name} |")]) == 3
    shown = page(folder / "model-card.html").text
    for name in SKIN:
        assert shown.count(name) >= 3
    assert f"{record.model.temperature:.4g}" in shown
    assert "all classes equally frequent" in shown


@pytest.mark.parametrize(
    ("temperature", "validation", "said"),
    [
        (1.0, 50, "Temperature: none was fitted."),
        (1.7, 50, "Temperature: 1.7, fitted on the validation part; the model file applies it."),
        (1.7, 0, "Temperature: 1.7, fitted on images held out of training; the model"),
    ],
)
def test_the_temperature_is_what_it_is(
    tmp_path: Path, temperature: float, validation: int, said: str
) -> None:
    record = make_run(tmp_path / "run", ["nv", "mel"])
    counts = record.data.counts | {"validation": [validation, 0]}
    record = record.replaced(
        model=record.model.model_copy(update={"temperature": temperature}),
        data=record.data.model_copy(update={"counts": counts}),
    )
    text = write_card(record, tmp_path / "run").read_text(encoding="utf-8")
    assert said in text
    error = f"{record.metrics['test']['ece'].value:.3f}"
    fitted = temperature != 1
    assert (f"{error} without the temperature, {error} with it." in text) == fitted
    assert (f"Expected calibration error: {error}." in text) == (not fitted)


def test_the_limits_name_weak_small_and_missing_classes(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["nv", "mel", "df"], skill=-1.0, tail_loss=0.0, absent=(1,))
    text = write_card(record, tmp_path / "run").read_text(encoding="utf-8")
    limits = text.split("## Limits")[1].split("## ")[0]
    assert "Nothing is known about mel" in limits
    assert "df: scored on fewer than 10 images" in limits
    assert re.search(r"fewer than half of the images of [^.]*df", limits)
    assert "Patients are unknown" in limits


def test_names_of_classes_do_no_harm(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["a|b", "<script>x</script>", "_c_*"])
    folder = write_card(record, tmp_path / "run").parent
    text = (folder / "model-card.md").read_text(encoding="utf-8")
    assert "| a\\|b |" in text
    assert "| \\_c\\_\\* |" in text
    assert "<script>" not in text
    html = card_page(folder)
    assert html is not None
    assert "<script>" not in html
    assert "&lt;script&gt;x" in html


def test_a_page_finds_the_card_of_a_run_and_of_an_onnx_file(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["nv", "mel"])
    assert card_page(tmp_path / "run") is None
    write_card(record, tmp_path / "run")
    html = card_page(tmp_path / "run")
    assert html == card_page(tmp_path / "run" / "model.json")
    (tmp_path / "skin.onnx").touch()
    assert card_page(tmp_path / "skin.onnx") is None
    write_card(record, tmp_path, exported=tmp_path / "skin.onnx")
    beside = card_page(tmp_path / "skin.onnx")
    assert beside is not None
    assert "skin.onnx" in beside
    (tmp_path / "skin-card.html").write_bytes(b"\xff")
    with pytest.raises(Exception, match="cannot be read"):
        card_page(tmp_path / "skin.onnx")


def test_an_unpaired_backtick_hides_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_card(make_run(folder, ["`a*b", "`c|d", "nv"]), folder)
    assert r"| \`c\|d |" in (folder / "model-card.md").read_text(encoding="utf-8")
    html = page(folder / "model-card.html")
    assert "`a*b" in html.text
    assert "`c|d" in html.text
