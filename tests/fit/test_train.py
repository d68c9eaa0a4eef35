"""A finished run: its command, its temperature, and what is needed to use its model."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from toys import toy_images, write_npz
from typer.testing import CliRunner

import lmd
from lmd.base.errors import DivergedError, LmdError
from lmd.cli.commands import app
from lmd.model import Normalise
from lmd.model.files import load_model
from lmd.runs.folder import Run
from lmd.runs.record import Record
from lmd.scoring.proportions import fit_temperature

QUICK: dict[str, Any] = {
    "backbone": "resnet8",
    "weights": "none",
    "image_size": 16,
    "epochs": 1,
    "stage2_epochs": 1,
    "batch_size": 8,
    "workers": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("trained")
    data = write_npz(folder / "toy.npz")
    return lmd.train(data, method="ce", settings=QUICK, out=folder / "run", quiet=True)


def test_the_fitted_temperature_is_shipped_used_and_scored(run: Run) -> None:
    model, spec = load_model(run.path)
    temperature = run.record.model.temperature
    assert json.loads((run.path / "model.json").read_text())["temperature"] == temperature
    assert abs(temperature - 1) > 0.05  # else the rest would show nothing
    with np.load(run.path.parent / "toy.npz") as data:
        parts = {"validation": data["val_images"], "test": data["test_images"]}
    normalise = Normalise(spec.preprocessing.mean, spec.preprocessing.std, torch.device("cpu"))
    for part, of in run.read_predictions().parts.items():
        with torch.no_grad():
            logits = model(normalise(torch.from_numpy(parts[part])))
        expected = (logits / temperature).softmax(1)
        found = lmd.load(run.path).predict(list(parts[part])).probabilities
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(of.probabilities, expected, atol=1e-5)
        # Their powers, normalised, are the probabilities without a temperature.
        plain = of.probabilities**temperature
        np.testing.assert_allclose(
            plain / plain.sum(1, keepdims=True), logits.softmax(1), atol=1e-5
        )
        assert np.abs(of.probabilities - logits.softmax(1).numpy()).max() > 1e-3
        if part == "validation":  # its classes are equally frequent here, and training is not
            counts = np.array([16, 8, 4])
            weights = (counts / counts.sum() / 4)[of.labels]
            assert fit_temperature(logits.numpy(), of.labels, weights) == pytest.approx(temperature)


@pytest.mark.parametrize("command", ["predict", "export"])
def test_a_shipped_model_is_used_without_methods_and_training(
    run: Run, command: str, tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    Image.fromarray(toy_images((1,)).pixels[0]).save(image)
    words = {
        "predict": [str(image), "--out", str(tmp_path / "out.csv")],
        "export": ["--onnx", str(tmp_path / "model.onnx")],
    }
    if command == "export":
        for extra in ("onnx", "onnxruntime", "onnxscript"):
            pytest.importorskip(extra, reason="the extra 'onnx' is not installed")
    code = (
        "import json, sys\n"
        "from lmd.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(json.dumps([name for name in sys.modules if name.startswith('lmd.')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command, str(run.path), *words[command]],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert f"lmd.{command}" in loaded
    assert [name for name in loaded if name.startswith(("lmd.methods", "lmd.training"))] == []


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest with its own column names, one unreadable image and images above its folder."""
    images = toy_images((20, 20))
    rows = ["file,dx,patient"]
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        rows.append(f"../{i}.png,{'ab'[label]},{i // 2}")
    (tmp_path / "3.png").write_bytes(b"not an image")
    path = tmp_path / "my lists" / "all.csv"
    path.parent.mkdir()
    path.write_text("\n".join(rows))
    return path


def repeated(record: Record, out: Path) -> Record:
    """The record of the run that the command of a record makes in another folder."""
    words = shlex.split(record.command)
    assert words[:2] == ["lmd", "train"]
    done = CliRunner().invoke(app, [*words[1:], "--out", str(out), "--quiet"])
    assert done.exit_code == 0, (done.output, done.exception)
    return Run(out).record


def test_a_run_from_python_has_a_command_that_repeats_it(manifest: Path, tmp_path: Path) -> None:
    protocol = tmp_path / "p.toml"
    protocol.write_text('imbalance = 2\nbackbone = "resnet18"\n[methods.lmd]\nlambda_1 = 2.0\n')
    settings = QUICK | {
        "imbalance": None,
        "split": (0.5, 0.2, 0.3),
        "amp": False,
        "lr": 0.001,
        "virtual_features": 60,
        "methods": {"lmd": {"lambda_1": 3.0}},
    }
    columns = {"image_column": "file", "label_column": "dx", "group_column": "patient"}
    run = lmd.train(
        manifest,
        method="lmd",
        protocol=protocol,
        settings=settings,
        profile="paper",
        columns=columns | {"allow_outside": True},
        skip_bad=True,
        out=tmp_path / "run",
        quiet=True,
    )
    record = run.record
    assert record.request.protocol["imbalance"] is None
    assert record.request.settings["lambda_1"] == 3
    assert len(record.data.skipped) == 1
    again = repeated(record, tmp_path / "again")
    assert again.request == record.request
    assert again.metrics == record.metrics


def test_a_run_from_the_command_line_has_a_command_that_repeats_it(
    manifest: Path, tmp_path: Path
) -> None:
    words = ["train", str(manifest), "--method", "focal", "--profile", "default", "--skip-bad"]
    words += ["--image-column", "file", "--label-column=dx", "--allow-outside", "--weights", "none"]
    for key, value in ({"gamma": 1.5} | QUICK).items():
        words += ["--set", f"{key}={value}"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, (done.output, done.exception)
    record = Run(tmp_path / "run").record
    assert record.request.settings == {"gamma": 1.5}
    assert f"--out {tmp_path / 'run'}" in record.command
    again = repeated(record, tmp_path / "again")
    assert again.request == record.request
    # The command itself is repeated too, but for the folder.
    assert again.command == record.command.replace(str(tmp_path / "run"), str(tmp_path / "again"))


def other_pixels(path: Path, source: Path) -> Path:
    """The same names, labels and parts with other images."""
    with np.load(source) as data:
        arrays = {k: 255 - v if k.endswith("images") else v for k, v in data.items()}
    np.savez(path, **arrays)
    return path


def test_a_first_stage_is_shared_only_between_the_same_images(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "toy.npz")
    other = other_pixels(tmp_path / "other.npz", data)
    given: dict[str, Any] = {"method": "ce", "settings": QUICK, "quiet": True}
    given |= {"first_stages": tmp_path / "stages", "images": False}
    first = lmd.train(data, out=tmp_path / "first", **given).record
    same = lmd.train(data, out=tmp_path / "same", **given).record
    different = lmd.train(other, out=tmp_path / "different", **given).record
    assert (same.stage_1_from, different.stage_1_from) == ("first", None)
    assert first.data.fingerprint == different.data.fingerprint
    assert first.data.pixels == same.data.pixels != different.data.pixels
    # A run of one stage that it did not train itself is complete all the same.
    assert len(Run(tmp_path / "same").read_history()) == QUICK["epochs"]
    assert (tmp_path / "same" / "checkpoint" / "state.safetensors").exists()


def test_a_run_is_not_resumed_with_other_pixels(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "toy.npz")
    given: dict[str, Any] = {"method": "ce", "settings": QUICK, "quiet": True, "images": False}
    run = lmd.train(data, out=tmp_path / "run", **given)
    (run.path / "predictions.npz").unlink()
    other_pixels(data, data)
    with pytest.raises(LmdError, match="the data has changed"):
        lmd.train(out=run.path, resume=True, quiet=True)


@pytest.mark.parametrize(("method", "given"), [("fs", {}), ("fs_crt", {}), ("tau_norm", {})])
def test_methods_that_learn_from_validation_need_some(
    method: str, given: dict[str, Any], tmp_path: Path
) -> None:
    images = toy_images((12, 8))
    np.savez(tmp_path / "d.npz", images=images.pixels, labels=images.labels)
    settings = {**QUICK, "split": [0.8, 0, 0.2], **given}
    with pytest.raises(LmdError, match=f"{method}.* learns from validation images"):
        lmd.train(tmp_path / "d.npz", method=method, settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_without_validation_images_no_epoch_is_chosen(tmp_path: Path) -> None:
    images = toy_images((12, 8))
    np.savez(tmp_path / "d.npz", images=images.pixels, labels=images.labels)
    settings = {**QUICK, "split": [0.8, 0, 0.2], "select": "best", "tau": 1.0}
    run = lmd.train(
        tmp_path / "d.npz", method="tau_norm", settings=settings, out=tmp_path / "run", quiet=True
    )
    assert run.record.model.selected == "the last epoch of each stage"


@pytest.mark.parametrize("validation", [0.1, 0])
def test_a_model_that_diverges_in_its_last_step_is_named(validation: float, tmp_path: Path) -> None:
    images = toy_images((12, 8))
    np.savez(tmp_path / "d.npz", images=images.pixels, labels=images.labels)
    split = [0.8 - validation, validation, 0.2]
    settings = {**QUICK, "split": split, "lr": 1e30, "batch_size": 64}
    with pytest.raises(DivergedError, match="no longer finite"):
        lmd.train(
            tmp_path / "d.npz", method="ce", settings=settings, out=tmp_path / "run", quiet=True
        )
