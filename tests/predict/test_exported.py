"""The ONNX file gives the answers of the model that it was made from, and stands alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.model import build_model
from lmd.model.files import ModelSpec, load_model, save_model
from lmd.predict.engines import TorchEngine
from lmd.predict.onnx_files import OnnxEngine
from lmd.predict.predictor import load

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")

from lmd.export.export import export_onnx  # noqa: E402

CLASSES = ("nevus", "mélanome", "vascular lesion")


@pytest.fixture(scope="module", params=["linear", "cosine"])
def exported(request, tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    model, preprocessing = build_model("resnet8", "none", 3, request.param, image_size=16, seed=3)
    # Statistics and a temperature that matter: with the initial ones a lost step could hide.
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.2, 2.0, generator=torch.Generator().manual_seed(len(name)))
        elif name.endswith("running_mean"):
            buffer.uniform_(-0.2, 0.2, generator=torch.Generator().manual_seed(len(name)))
    width = model.classifier.in_features
    spec = ModelSpec(
        CLASSES, "resnet8", request.param, width, preprocessing, "LMD", (9, 5, 2), temperature=0.4
    )
    save_model(model, folder, spec)
    return folder, export_onnx(folder, folder / "out" / "model.onnx")


def images(n: int, size: int = 16) -> np.ndarray:
    rng = np.random.default_rng(n)
    colours = rng.integers(0, 256, (n, 1, 1, 3))
    return (colours // 2 + rng.integers(0, 128, (n, size, size, 3))).astype(np.uint8)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_file_gives_the_answers_of_the_model(exported, n):
    folder, path = exported
    ours, theirs = load(folder).engine, load(path).engine
    assert isinstance(ours, TorchEngine)
    assert isinstance(theirs, OnnxEngine)
    expected = ours.answer(images(n))[0]
    found = theirs.answer(images(n))[0]
    assert found.dtype == np.float32
    assert found.shape == (n, 3)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    if n == 7:  # else equality would be cheap
        assert np.ptp(expected, axis=0).max() > 0.01


def test_a_deployer_needs_nothing_else(exported):
    # Only onnxruntime and what is in the file.
    import onnxruntime

    folder, path = exported
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = [i.name for i in session.get_inputs()]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(CLASSES)
    assert json.loads(about["spec"])["temperature"] == 0.4
    (found,) = session.run(None, {name: images(4)})
    np.testing.assert_allclose(found, load(folder).engine.answer(images(4))[0], atol=1e-4)
    assert list(path.parent.iterdir()) == [path]


def test_normalisation_and_temperature_are_inside(exported):
    folder, path = exported
    spec = json.loads((folder / "model.json").read_text())
    model, _ = load_model(folder)
    mean, std = (torch.tensor(spec["preprocessing"][k]) for k in ("mean", "std"))
    x = (torch.from_numpy(images(3)).double() / 255 - mean) / std
    logits = model(x.permute(0, 3, 1, 2).float()) / 0.4
    found = load(path).engine.answer(images(3))[0]
    np.testing.assert_allclose(found, logits.softmax(1).detach().numpy(), atol=1e-4)


def test_images_of_any_size_are_predicted_alike(exported, tmp_path):
    from PIL import Image

    folder, path = exported
    names = []
    for i, size in enumerate((16, 40, 9)):
        names.append(tmp_path / f"{i}.png")
        Image.fromarray(images(1, size)[0]).save(names[-1])
    eager, fast = load(folder).predict(names, batch_size=2), load(path).predict(names, batch_size=2)
    assert fast.classes == CLASSES
    assert fast.names == eager.names
    assert fast.labels == eager.labels
    np.testing.assert_allclose(fast.probabilities, eager.probabilities, atol=1e-4)


def test_wrong_files_are_named(exported, tmp_path):
    folder, path = exported
    with pytest.raises(LmdError, match=r"must end in \.onnx"):
        export_onnx(folder, tmp_path / "model.pt")
    with pytest.raises(LmdError, match="exists: choose another file"):
        export_onnx(folder, path)
    with pytest.raises(LmdError, match=r"nowhere\.onnx does not exist"):
        load(tmp_path / "nowhere.onnx")
    (tmp_path / "text.onnx").write_text("not a graph")
    with pytest.raises(LmdError, match="is not a valid ONNX file"):
        load(tmp_path / "text.onnx")
    foreign = onnx.load(path)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(LmdError, match="was not written by lmd"):
        load(tmp_path / "foreign.onnx")


def test_the_command(exported, tmp_path):
    from lmd.cli.commands import app

    folder, path = exported
    target = tmp_path / "again.onnx"
    target.write_bytes(b"old")
    arguments = ["export", str(folder), "--onnx", str(target)]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, LmdError)
    done = CliRunner().invoke(app, [*arguments, "--overwrite"])
    assert done.exit_code == 0, done.output
    assert "uint8 (B, H, W, 3), RGB, any size" in done.output
    found = load(target).engine.answer(images(2))[0]
    np.testing.assert_allclose(found, load(path).engine.answer(images(2))[0], atol=1e-6)
