"""What a run keeps of its features, and what record and report say about it."""

from pathlib import Path

import numpy as np
import pytest
from explained import SETTINGS, skin_data

import lmd
from lmd.evaluation.evaluate import rescore
from lmd.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("features")
    data = skin_data(folder / "skin.npz", counts=(12, 8, 4), held_out=6)
    return lmd.train(data, method="ce", settings=SETTINGS, out=folder / "run", quiet=True)


def test_false_flags_are_in_record_and_report(run: Run) -> None:
    record = run.record
    assert record.novelty is not None
    assert record.novelty.images == 18
    with np.load(run.path.parent / "skin.npz") as data:
        flags = lmd.load(run.path).predict(list(data["test_images"])).unlike_training
        own = lmd.load(run.path).predict(list(data["val_images"])).unlike_training
    assert flags is not None
    assert own is not None
    assert not own.any()  # the threshold is the largest of so few
    flagged = record.novelty.flagged
    assert flagged is not None
    assert flagged.value == pytest.approx(flags.mean())
    assert flagged.low <= flagged.value <= flagged.high
    page = (run.path / "report.html").read_text()
    assert "Images unlike the training images" in page
    assert "1 in 19 images" in page
    assert rescore(run.path, resamples=20).novelty == record.novelty


def test_features_are_kept_only_if_asked_for(run: Run) -> None:
    assert (run.path / "novelty.safetensors").exists()
    assert not (run.path / "neighbours.npz").exists()
    assert "--keep-features" not in run.record.command


def test_without_validation_images_there_is_no_flag(tmp_path: Path) -> None:
    skin_data(tmp_path / "skin.npz", counts=(8, 8, 8), held_out=4)
    with np.load(tmp_path / "skin.npz") as file:
        arrays = {name: array for name, array in file.items() if not name.startswith("val")}
    np.savez(tmp_path / "skin.npz", **arrays)
    settings = SETTINGS | {"epochs": 1}
    out = tmp_path / "run"
    made = lmd.train(
        tmp_path / "skin.npz",
        method="ce",
        settings=settings,
        out=out,
        quiet=True,
        keep_features=True,
    )
    assert made.record.novelty is None
    assert "--keep-features" in made.record.command
    assert not (out / "novelty.safetensors").exists()
    assert (out / "neighbours.npz").exists()
    assert "Images unlike the training images" not in (out / "report.html").read_text()
    assert lmd.load(out).predict([arrays["test_images"][0]]).unlike_training is None
    lmd.train(tmp_path / "skin.npz", method="ce", settings=settings, out=out, quiet=True,
              overwrite=True)  # fmt: skip
    assert not (out / "neighbours.npz").exists()
