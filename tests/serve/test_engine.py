"""Run folders are computed by onnxruntime where it is there, with the same answers."""

from pathlib import Path

import numpy as np
import pytest
from served import SIZE, encoded, photo, shipped

from lmd.base.errors import LmdError
from lmd.explain.explanation import explain_pixels
from lmd.serve import models
from lmd.serve.limits import Limits
from lmd.serve.models import Engine, Measures, Served, load_models

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped(tmp_path_factory.mktemp("served") / "run")


def loaded(folder: Path, engine: Engine) -> Served:
    found = load_models([folder], Limits(), Measures(), engine=engine)["run"]
    found.batcher.close()
    return found


def test_answers_flags_and_heat_maps_are_those_of_torch(folder: Path) -> None:
    fast, slow = loaded(folder, "auto"), loaded(folder, "torch")
    assert fast.info().engine == "onnxruntime"
    assert slow.info().engine == "torch"
    assert fast.explains
    pixels = np.random.default_rng(1).integers(0, 256, (70, 16, 16, 3), dtype=np.uint8)
    mine, theirs = (each.predictor.answer(pixels) for each in (fast, slow))
    assert mine[0] == pytest.approx(theirs[0], abs=1e-5)
    assert (mine[1] == theirs[1]).all()
    picture = np.asarray(photo())
    a, b = (explain_pixels(each.predictor, pixels[0], picture) for each in (fast, slow))
    assert np.array_equal(a.heat, b.heat)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["model.json", "model.safetensors", "neighbours.npz", "novelty.safetensors"]
    )


def test_without_the_extra_it_is_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "onnx_is_there", lambda: False)
    assert loaded(folder, "auto").info().engine == "torch"


def test_a_model_that_cannot_be_exported_is_served_by_torch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_engine: object) -> None:
        raise LmdError("the model cannot be exported (Unsupported)")

    monkeypatch.setattr(models, "TracedEngine", refuse)
    assert loaded(folder, "auto").info().engine == "torch"
    with pytest.raises(LmdError, match=r"--engine onnx: .*cannot be exported.*use --engine torch"):
        loaded(folder, "onnx")


def test_a_wrong_export_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmd.export.export import TracedEngine
    from lmd.predict.predictor import load

    engine = load(folder).engine
    probabilities, features = engine.answer(np.zeros((3, SIZE, SIZE, 3), np.uint8))
    monkeypatch.setattr(engine, "answer", lambda _: (1 - probabilities, features))
    with pytest.raises(LmdError, match="answers differently"):
        TracedEngine(engine)  # type: ignore[arg-type]


def test_the_card_is_shown_as_text(folder: Path) -> None:
    from served import client, make_service

    text = "# Card\n\nFor **adults**.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    text += "<script>alert(1)</script> [link](javascript:alert(2)) ![x](https://example.org/x.png)"
    with client(make_service(folder)) as web:
        assert web.get("/api/models/run").json()["card"] is None
        assert "Model card" not in web.get("/").text
    (folder / "model-card.md").write_text(text, encoding="utf-8")
    with client(make_service(folder)) as web:
        assert web.get("/api/models/run").json()["card"] == text
        page = web.get("/").text
        answer = web.post("/api/models/run/predict", files={"image": encoded(photo())})
    (folder / "model-card.md").unlink()
    assert answer.status_code == 200
    assert "<h3>Card</h3>" in page
    assert "<strong>adults</strong>" in page
    assert "<td>2</td>" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert 'href="javascript' not in page
