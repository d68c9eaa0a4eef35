"""`--tta`: means over mirror images, in Python and in both commands, with the run left as it is."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toys import toy_images, write_npz
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.evaluation.evaluate import evaluate_tta
from lmd.predict.predictor import mirrored
from lmd.runs.folder import Run

SETTINGS = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 1, "workers": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tta")
    data = write_npz(folder / "toy.npz")
    return lmd.train(data, method="ce", settings=SETTINGS, out=folder / "run", quiet=True).path


def test_mirror_images() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    sideways, upside, both = mirrored(pixels)
    np.testing.assert_array_equal(sideways[0, 0, 0], pixels[0, 0, 1])
    np.testing.assert_array_equal(upside[0, 0, 0], pixels[0, 1, 0])
    np.testing.assert_array_equal(both[0, 0, 0], pixels[0, 1, 1])


def test_probabilities_are_the_mean_over_four_images(run: Path) -> None:
    model = lmd.load(run)
    images = toy_images((2, 2, 2), seed=5).pixels
    views = [images, *mirrored(images)]
    each = [model.predict(list(view)).probabilities for view in views]
    found = model.predict(list(images), tta=True)
    np.testing.assert_allclose(found.probabilities, np.mean(each, axis=0), atol=1e-6)
    assert not np.array_equal(found.probabilities, each[0])
    # A mirror image has the same answer, up to the order of summation.
    turned = model.predict(list(views[3]), tta=True).probabilities
    np.testing.assert_allclose(found.probabilities, turned, atol=1e-6)
    # The flag is about the image itself.
    assert found.unlike_training is not None
    plain = model.predict(list(images)).unlike_training
    np.testing.assert_array_equal(found.unlike_training, plain)


def test_sets_are_not_calibrated_for_mirror_images(run: Path) -> None:
    with pytest.raises(LmdError, match="--tta cannot be used with --coverage"):
        lmd.load(run).predict(toy_images((1, 1, 1)).pixels, tta=True, coverage=0.9)


def test_predict_takes_the_option(run: Path, tmp_path: Path) -> None:
    image = toy_images((1, 0, 0), seed=5).pixels[0]
    Image.fromarray(image).save(tmp_path / "x.png")
    words = ["predict", str(run), str(tmp_path / "x.png"), "--out", str(tmp_path / "p.csv")]
    done = CliRunner().invoke(app, [*words, "--tta"])
    assert done.exit_code == 0, done.exception
    row = (tmp_path / "p.csv").read_text().splitlines()[1].split(",")
    expected = lmd.load(run).predict([image], tta=True).probabilities[0]
    assert [float(cell) for cell in row[-3:]] == pytest.approx(expected, abs=1e-6)


def test_evaluate_writes_a_folder_beside_the_run(run: Path) -> None:
    before = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
    done = CliRunner().invoke(app, ["evaluate", str(run), "--tta", "--against", str(run)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "run-tta minus run" in done.output
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()} == before
    made = Run.open(run.parent / "run-tta")
    own = Run.open(run)
    assert made.record.tta == "flips"
    assert own.record.tta is None
    assert made.record.command == f"lmd evaluate {run} --tta"
    assert any("three mirror images" in note for note in made.record.notes)
    assert made.predictions is not None
    assert own.predictions is not None
    for part in ("validation", "test"):
        mine, theirs = made.predictions.parts[part], own.predictions.parts[part]
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_array_equal(mine.labels, theirs.labels)
        assert not np.array_equal(mine.probabilities, theirs.probabilities)
    # The numbers are those of the predictions beside them, also when they are computed again.
    again = CliRunner().invoke(app, ["evaluate", str(run.parent / "run-tta")])
    assert again.exit_code == 0, again.exception
    after = Run.open(run.parent / "run-tta").record
    assert after.metrics == made.record.metrics
    assert after.tta == "flips"
    # A mean of probabilities has no temperature that could be undone.
    assert own.record.model.temperature != 1
    for record, known in ((own.record, True), (after, False)):
        found = record.calibration["test"]
        assert (found.before.value is not None) == (found.matched_before is not None) == known
        assert found.matched_after is not None
    text = (run.parent / "run-tta" / "report.html").read_text(encoding="utf-8")
    assert "was fitted without mirror images; what the error would be" in text
    assert "Without the temperature" not in text
    assert "reliability-before" not in text
    assert "Without the temperature" in (run / "report.html").read_text(encoding="utf-8")


def test_only_an_evaluation_of_this_kind_is_replaced(run: Path, tmp_path: Path) -> None:
    evaluate_tta(run, resamples=10, quiet=True)
    evaluate_tta(run, resamples=10, quiet=True)
    with pytest.raises(LmdError, match="was made with --tta"):
        evaluate_tta(run.parent / "run-tta", quiet=True)
    record = run.parent / "run-tta" / "record.json"
    record.unlink()
    with pytest.raises(LmdError, match="holds something else"):
        evaluate_tta(run, quiet=True)


def test_other_images_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = run.parent / "toy.npz"
    content = data.read_bytes()
    write_npz(data, counts=(15, 8, 4))
    (run.parent / "run-tta" / "record.json").unlink(missing_ok=True)
    other = run.parent / "run-tta"
    for file in other.iterdir() if other.exists() else ():
        file.unlink()
    if other.exists():
        other.rmdir()
    with pytest.raises(LmdError, match="is not what run was trained on"):
        evaluate_tta(run, quiet=True)
    # Known before an image is decoded, which can take long.
    monkeypatch.setattr("lmd.data.dataset.decode", None)
    with pytest.raises(LmdError, match="is not what run was trained on"):
        evaluate_tta(run, str(data), quiet=True)
    data.unlink()
    with pytest.raises(LmdError, match=r"are not at .* where they were in training: say where"):
        evaluate_tta(run, quiet=True)
    data.write_bytes(content)


def test_images_may_have_moved(run: Path, tmp_path: Path) -> None:
    here, there = run.parent / "toy.npz", tmp_path / "moved.npz"
    shutil.move(here, there)
    try:
        made = lmd.evaluate(run, there, tta=True, resamples=10, quiet=True).record
        with pytest.raises(LmdError, match="needs --data without --tta"):
            lmd.evaluate(run, there, tta=True, part="test")
    finally:
        shutil.move(there, here)
    assert made.tta == "flips"
    assert made.command == f"lmd evaluate {run} --tta --data {there}"


def test_the_home_folder_may_be_a_tilde(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(run.parent))
    monkeypatch.setenv("USERPROFILE", str(run.parent))
    shutil.copytree(run, tmp_path / "run")
    copy = Run.open(tmp_path / "run")
    record = copy.record
    request = record.request.model_copy(update={"data": "~/toy.npz"})
    copy.write_record(record.replaced(request=request))
    assert lmd.evaluate(copy.path, tta=True, resamples=10, quiet=True).record.tta == "flips"
    with pytest.raises(LmdError, match="was trained on"):
        lmd.evaluate(copy.path, "~/toy.npz", quiet=True)


def test_the_command_has_what_was_asked_for(run: Path) -> None:
    asked = {"prevalence": "uniform", "coverage": 0.8, "refer_above": 2}
    made = lmd.evaluate(run, tta=True, resamples=10, quiet=True, **asked)
    words = "--prevalence uniform --coverage 0.8 --refer-above 2"
    assert made.record.command == f"lmd evaluate {run} --tta {words}"


def test_a_mistake_in_a_decision_is_found_before_images_are_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmd.data.dataset.images_of_run", None)
    with pytest.raises(LmdError, match=r"below 1, such as 0\.9; it is 7"):
        lmd.evaluate(run, tta=True, coverage=7, quiet=True)
