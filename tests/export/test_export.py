"""`lmd export`: the model card beside the file, and int8 only where it pays."""

from pathlib import Path

import numpy as np
import pytest
from explained import skin_run
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.report.card import card_page
from lmd.runs.folder import Run
from lmd.scoring.intervals import Difference
from lmd.scoring.metrics import METRICS

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

from lmd.export import export as exporting  # noqa: E402
from lmd.export.export import NO_INTERVAL, Change, export_run  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("export"))


def change(lost: float, ratio: float) -> Change:
    metrics = {"balanced_accuracy": Difference(-lost, -lost, -lost, 1.0)}
    return Change(10, {"balanced_accuracy": 0.8}, metrics, 1.0, (4.0, 1.0), ratio)


def test_the_card_is_beside_the_file(run: Run, tmp_path: Path) -> None:
    _, measured = export_run(run.path, tmp_path / "skin.onnx")
    assert measured is None
    assert {p.name for p in tmp_path.iterdir()} == {"skin.onnx", "skin-card.md", "skin-card.html"}
    text = (tmp_path / "skin-card.md").read_text(encoding="utf-8")
    assert 'lmd.load("skin.onnx")' in text
    own = (run.path / "model-card.md").read_text(encoding="utf-8")
    assert text.split("## How to use it")[0] == own.split("## How to use it")[0]


def test_int8_is_measured_before_it_is_written(run: Run, tmp_path: Path) -> None:
    path, measured = export_run(run.path, tmp_path / "skin.onnx", quantise="int8", anyway=True)
    assert measured is not None
    assert set(measured.metrics) == set(METRICS)
    with np.load(run.path.parent / "skin.npz") as data:
        pixels, labels = data["val_images"], data["val_labels"][:, 0]
    exact = lmd.load(run.path).engine.probabilities(pixels)
    small = lmd.load(path)
    found = small.engine.probabilities(pixels)
    assert measured.images == len(pixels)
    assert measured.same == (exact.argmax(1) == found.argmax(1)).mean()
    assert measured.same > 0.8
    assert 0 < np.abs(found - exact).max() < 0.3
    recalls = [[(p.argmax(1) == labels)[labels == k].mean() for k in range(3)]
               for p in (found, exact)]  # fmt: skip
    lost = measured.metrics["balanced_accuracy"].value
    assert lost == pytest.approx(np.mean(recalls[0]) - np.mean(recalls[1]))
    # Sets are calibrated on the answers that the file gives.
    held_out = small.engine.spec.held_out
    assert held_out is not None
    np.testing.assert_array_equal(
        np.float32(held_out.probabilities[0]), np.sort(found[labels == 0, 0])
    )
    graph = onnx.load(path).graph
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in graph.node}
    assert measured.megabytes[1] < 0.5 * measured.megabytes[0]
    text = (tmp_path / "skin-card.md").read_text(encoding="utf-8")
    assert f"| Balanced accuracy | {100 * lost:+.2f} |" in text
    # Images of any size still go in.
    assert len(small.predict([np.zeros((40, 30, 3), np.uint8)]).labels) == 1


def test_what_does_not_pay_is_said_and_not_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert change(0.0, 2.0).objections() == []
    assert change(0.01, 1.1).objections() == []
    assert change(0.02, 2.0).objections() == ["balanced accuracy falls by 2.00 points (at most 1)"]
    assert change(0.0, 0.9).objections() == ["it is 0.90 times as fast as float32 (at least 1.1)"]
    assert len(change(float("nan"), 0.9).objections()) == 2
    monkeypatch.setattr(exporting, "FASTER", 1e9)
    words = ["export", str(run.path), "--onnx", str(tmp_path / "m.onnx"), "--quantise", "int8"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, LmdError)
    assert "does not pay for this model" in str(done.exception)
    assert "Balanced accuracy, tail" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_change_without_an_interval_has_no_numbers_for_it(run: Run, tmp_path: Path) -> None:
    nan = float("nan")
    known, unknown = change(0.005, 2.0), change(0.005, 2.0)
    unknown.metrics["auc"], unknown.before["auc"] = Difference(0.01, nan, nan, nan), 0.9
    unknown.metrics["bacc_tail"] = Difference(nan, nan, nan, nan)
    said = unknown.lines()
    assert said[2].split("   ")[-1] == "no interval"
    assert said[3].strip() == NO_INTERVAL
    assert not any(NO_INTERVAL in line for line in known.lines())
    exporting._write_card(run.path, tmp_path / "m.onnx", unknown)
    card = (tmp_path / "m-card.md").read_text(encoding="utf-8")
    assert "| Macro AUC | +1.00 | none |" in card
    assert NO_INTERVAL in card
    for text in ("\n".join(said), card.split("## int8")[1].split("## ")[0]):
        assert "nan" not in text


def test_mistakes_are_named(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    for options, message in (
        ({"quantise": "int4"}, "quantise must be int8; it is 'int4'"),
        ({"anyway": True}, "anyway=True needs quantise int8"),
        ({"data": "x.npz"}, "data needs quantise int8"),
        ({"quantise": "int8", "data": "absent.npz"}, r"absent\.npz does not exist"),
    ):
        with pytest.raises(LmdError, match=message):
            export_run(run.path, target, **options)  # type: ignore[arg-type]
    arrays = {"images": np.zeros((6, 8, 8, 3), np.uint8), "labels": np.arange(6) % 3}
    arrays["splits"] = np.array(["train"] * 3 + ["test"] * 3)
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(LmdError, match="is not what run was trained on"):
        export_run(run.path, target, quantise="int8", data=str(tmp_path / "other.npz"))
    assert not target.exists()


def test_a_file_in_the_run_folder_leaves_the_card_of_the_run(run: Run) -> None:
    own = (run.path / "model-card.md").read_text(encoding="utf-8")
    try:
        export_run(run.path, run.path / "model.onnx")
        assert (run.path / "model-card.md").read_text(encoding="utf-8") == own
        card = (run.path / "model-onnx-card.md").read_text(encoding="utf-8")
        assert 'lmd.load("model.onnx")' in card
        page = card_page(run.path / "model.onnx")
        assert page is not None
        assert "model.onnx" in page
    finally:
        for name in ("model.onnx", "model-onnx-card.md", "model-onnx-card.html"):
            (run.path / name).unlink()
