"""`lmd export`: the model card beside the file."""

from pathlib import Path

import pytest
from explained import skin_run

from lmd.report.card import card_page
from lmd.runs.folder import Run

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

from lmd.export.export import export_onnx  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("export"))


def test_the_card_is_beside_the_file(run: Run, tmp_path: Path) -> None:
    export_onnx(run.path, tmp_path / "skin.onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"skin.onnx", "skin-card.md", "skin-card.html"}
    text = (tmp_path / "skin-card.md").read_text(encoding="utf-8")
    assert 'lmd.load("skin.onnx")' in text
    own = (run.path / "model-card.md").read_text(encoding="utf-8")
    assert text.split("## How to use it")[0] == own.split("## How to use it")[0]


def test_a_file_in_the_run_folder_leaves_the_card_of_the_run(run: Run) -> None:
    own = (run.path / "model-card.md").read_text(encoding="utf-8")
    try:
        export_onnx(run.path, run.path / "model.onnx")
        assert (run.path / "model-card.md").read_text(encoding="utf-8") == own
        card = (run.path / "model-onnx-card.md").read_text(encoding="utf-8")
        assert 'lmd.load("model.onnx")' in card
        page = card_page(run.path / "model.onnx")
        assert page is not None
        assert "model.onnx" in page
    finally:
        for name in ("model.onnx", "model-onnx-card.md", "model-onnx-card.html"):
            (run.path / name).unlink()
