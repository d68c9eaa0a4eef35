"""Images of another kind are flagged, those of the same kind are not; old folders still work."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from explained import LABELS, endoscopy, skin, skin_run
from PIL import Image
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.model.files import weights_digest
from lmd.predict.novelty import CHECKSUM, FILE
from lmd.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("novelty"))


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Path:
    return shutil.copytree(run.path, tmp_path / "copy")


def test_another_kind_of_image_is_flagged_and_the_same_kind_is_not(run: Run) -> None:
    predictor = lmd.load(run.path)
    familiar = np.concatenate([skin(label, 30, 400) for label in LABELS])
    flags = predictor.predict(list(familiar)).unlike_training
    strange = predictor.predict(list(endoscopy(40))).unlike_training
    assert flags is not None
    assert strange is not None
    assert flags.mean() < 0.15
    assert strange.mean() > 0.9


def test_the_share_can_be_chosen(run: Run) -> None:
    predictor = lmd.load(run.path)
    images = list(np.concatenate([skin(label, 30, 400) for label in LABELS]))
    rates = []
    for above in (0.5, 0.9, 0.99):
        flags = predictor.predict(images, unlike_above=above).unlike_training
        assert flags is not None
        rates.append(flags.mean())
    assert rates[0] > 0.3
    assert rates == sorted(rates, reverse=True)
    for wrong in (0, 1, 1.5, -1, float("nan")):
        with pytest.raises(LmdError, match=r"--unlike-above must be between 0 and 1; it is"):
            predictor.predict(images, unlike_above=wrong)


def test_the_flag_changes_no_probability(run: Run, copied: Path) -> None:
    (copied / FILE).unlink()
    images = [*skin(0, 3), *endoscopy(3)]
    with_flag, without = lmd.load(run.path).predict(images), lmd.load(copied).predict(images)
    assert np.array_equal(with_flag.probabilities, without.probabilities)
    assert without.unlike_training is None


def test_the_column_is_written_and_absent_without_the_file(copied: Path, tmp_path: Path) -> None:
    for name, pixels in {"a": skin(0, 1)[0], "b": endoscopy(1)[0]}.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    images = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    words = ["predict", str(copied), *images, "--overwrite", "--out", str(tmp_path / "p.csv")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1 images are unlike the training images" in done.output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [row["unlike_training"] for row in rows] == ["false", "true"]
    (copied / FILE).unlink()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    old = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert old == [{k: v for k, v in row.items() if k != "unlike_training"} for row in rows]
    refused = CliRunner().invoke(app, [*words, "--unlike-above", "0.9"])
    assert "--unlike-above: the model has no novelty.safetensors" in str(refused.exception)


def test_the_file_is_small_and_plain(run: Run) -> None:
    found = load_file(run.path / FILE)
    assert found["means"].shape == (3, 128)
    assert found["basis"].shape == (128, 127)
    assert found["validation"].shape == (60,)
    assert found.pop(CHECKSUM).shape == (32,)
    assert {str(a.dtype) for n, a in found.items() if n != "rest"} == {"float32"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": np.ones((3, 64), np.float32)}, r"means have the shape \(3, 64\).*128 features"),
        ({"basis": np.ones((64, 9), np.float32)}, r"basis has the shape \(64, 9\), not \(128, 9\)"),
        ({"variances": np.zeros(127, np.float32)}, "variances that are not above 0"),
        ({"variances": np.ones(3, np.float32)}, r"variances has the shape \(3,\), not \(127,\)"),
        ({"validation": np.zeros(0, np.float32)}, "no distances of validation images"),
        ({"rest": np.array([np.nan])}, "not finite"),
        ({"means": None}, "it has no means"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    copied: Path, change: dict[str, np.ndarray | None], message: str
) -> None:
    path = copied / FILE
    arrays = {k: v for k, v in (load_file(path) | change).items() if v is not None}
    save_file(arrays, path, metadata={"model_sha256": weights_digest(copied)})
    with pytest.raises(LmdError, match=message) as caught:
        lmd.load(copied)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_or_foreign_file_is_named(copied: Path) -> None:
    path = copied / FILE
    whole = path.read_bytes()
    save_file(load_file(path), path, metadata={"model_sha256": "0" * 64})
    with pytest.raises(LmdError, match="it belongs to another model; copy it again, or remove"):
        lmd.load(copied)
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(LmdError, match="it is damaged, as its checksum shows"):
        lmd.load(copied)
    path.write_bytes(whole[:100])
    with pytest.raises(LmdError, match=r"novelty\.safetensors cannot be read"):
        lmd.load(copied)
