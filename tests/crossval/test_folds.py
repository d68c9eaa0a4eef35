"""`lmd train --folds`: it continues after a kill, pools all test parts, and ships what is asked."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toys import toy_images, write_npz
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.benchmark.backends import environment
from lmd.benchmark.figures.embedding import read_records
from lmd.cli.commands import app
from lmd.crossval.folds import cross_validate, write_pooled
from lmd.explain.command import index
from lmd.export.export import export_onnx
from lmd.frozen.calibrate import calibrate_run
from lmd.runs.folder import Run
from lmd.runs.record import Record
from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.proportions import without_temperature

COUNTS = (18, 9, 2, 1)
SETTINGS = {
    "backbone": "resnet8",
    "weights": "none",
    "image_size": 16,
    "epochs": 2,
    "batch_size": 8,
    "tiers": "thirds",
}
FOLDS = ("fold-1", "fold-2", "fold-3")


def words(data: Path, out: Path, *more: str) -> list[str]:
    given = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    return ["train", str(data), "--method", "ce", *given, "--out", str(out), *more]


def stamps(folder: Path) -> dict[str, int]:
    files = folder.glob("f*/model.safetensors")
    return {str(path): path.stat().st_mtime_ns for path in files}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images without parts, in groups of one or two."""
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    images = toy_images(COUNTS)
    groups = [f"patient {i}" for i in range(len(images.labels))]
    groups[1] = groups[0]
    names = np.array(["a", "b", "c", "d"])[images.labels]
    np.savez(path, images=images.pixels, labels=names, groups=groups)
    return path


@pytest.fixture(scope="module")
def folder(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-validation that was killed in its first epochs, and resumed without its DATA."""
    out = tmp_path_factory.mktemp("runs") / "cv"
    command = [sys.executable, "-m", "lmd", *words(toy, out, "--folds", "3", "--final", "refit")]
    process = subprocess.Popen(
        [*command, "--workers", "1"], env=environment(1), stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 300
    while not (out / "fold-1" / "history.csv").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (out / "record.json").exists()
    assert not (out / "final" / "record.json").exists()
    refused = CliRunner().invoke(app, words(toy, out, "--folds", "3"))
    assert "continue it with --resume" in str(refused.exception)
    done = CliRunner().invoke(app, ["train", "--resume", "--out", str(out), "--quiet"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "CE on" in done.output
    return out


def test_the_record_is_of_all_test_parts(folder: Path, toy: Path) -> None:
    run = Run.open(folder)
    assert run.predictions is not None
    test, record = run.predictions.parts["test"], run.record
    # The only image of d is never tested; all others are, once.
    assert sorted(test.ids.tolist(), key=int) == [str(i) for i in range(sum(COUNTS) - 1)]
    assert record.data.counts["test"] == [*COUNTS[:3], 0]
    assert [row.support for row in record.per_class["test"]] == [*COUNTS[:3], 0]
    assert test.groups is not None
    assert len(np.unique(test.groups)) == sum(COUNTS) - 2  # two images are of one patient
    # Each prediction is that of the fold that was blind to the image.
    for name in FOLDS:
        part = Run.open(folder / name).read_predictions().parts["test"]
        rows = [test.ids.tolist().index(one) for one in part.ids.tolist()]
        np.testing.assert_array_equal(test.probabilities[rows], part.probabilities)
        np.testing.assert_array_equal(test.labels[rows], part.labels)
    assert record.folds is not None
    assert [one.name for one in record.folds.runs] == list(FOLDS)
    assert sum(one.images["test"] for one in record.folds.runs) == len(test.ids)
    assert "fold" not in record.protocol
    notes = " ".join(record.notes)
    for part in ("every image was tested once", "share training images", "Only one group"):
        assert part in notes
    assert "Fewer groups (patients or lesions) than 3 folds of c (2)" in notes
    assert record.command.endswith(f"--folds 3 --final refit --out {folder}")


def test_each_fold_has_its_own_temperature(folder: Path) -> None:
    """What the temperatures change is computed with that of each fold."""
    record = Run.open(folder).record
    labels, raw = [], []
    for name in FOLDS:
        run = Run.open(folder / name)
        assert run.predictions is not None
        part = run.predictions.parts["test"]
        labels.append(part.labels)
        raw.append(without_temperature(part.probabilities, run.record.model.temperature))
    expected = METRICS["ece"].value(Sample(np.concatenate(labels), np.concatenate(raw)))
    assert record.calibration["test"].before.value == pytest.approx(expected)
    assert "Without the temperature of each fold" in (folder / "report.html").read_text()
    assert (folder / "model-card.md").exists()


def test_folds_divide_the_images(folder: Path) -> None:
    records = [Run.open(folder / name).record for name in FOLDS]
    for number, record in enumerate(records, 1):
        assert record.protocol["fold"] == [number, 3]
        assert "--set 'fold=[" in record.command
        assert min(record.data.counts["train"]) > 0
    assert len({record.data.fingerprint for record in records}) == 3


def test_the_report_shows_the_folds(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<section id="folds">' in page
    for name in FOLDS:
        assert f'<th scope="row">{name}</th>' in page
    assert "share training images" in page


def test_evaluate_keeps_what_is_known_about_folds(folder: Path) -> None:
    before = Run.open(folder).record
    done = CliRunner().invoke(app, ["evaluate", str(folder)])
    assert done.exit_code == 0, done.exception
    after = Run.open(folder).record
    assert after.folds == before.folds
    assert after.notes == before.notes
    assert after.metrics == before.metrics
    for command in ("show", "runs"):
        done = CliRunner().invoke(app, [command, str(folder)])
        assert done.exit_code == 0, done.exception
        assert "fold-1" in done.output or "CE" in done.output


def test_refit_ships_a_model_of_all_images(folder: Path) -> None:
    record = Run.open(folder / "final").record
    assert sum(map(sum, record.data.counts.values())) == sum(COUNTS)
    assert sum(record.data.counts["test"]) == 0
    images = toy_images(COUNTS).pixels[:4]
    found = lmd.load(folder).predict(list(images)).probabilities
    np.testing.assert_array_equal(
        found, lmd.load(folder / "final").predict(list(images)).probabilities
    )


def test_a_resumed_folder_keeps_what_is_not_said_again(folder: Path, toy: Path) -> None:
    before = stamps(folder)
    done = CliRunner().invoke(
        app, words(toy, folder, "--resume", "--quiet", "--log", "tensorboard")
    )
    assert done.exit_code == 0, done.exception
    record = Run.open(folder).record
    assert record.folds is not None
    assert record.folds.final == "refit"
    assert stamps(folder) == before
    # A tracker gets the numbers of the whole.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    value = record.metrics["test"]["balanced_accuracy"].value
    assert found.Scalars("test/balanced_accuracy")[0].value == pytest.approx(value)


def test_what_is_about_one_model_uses_that_of_refit(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cv")
    index(tmp_path / "cv", quiet=True)
    assert (tmp_path / "cv" / "neighbours.npz").exists()
    image = toy_images(COUNTS).pixels[0]
    assert lmd.load(tmp_path / "cv").explain(image).neighbours
    calibrated = calibrate_run(tmp_path / "cv", out=tmp_path / "new", quiet=True)
    assert calibrated.record.candidates
    with pytest.raises(LmdError, match="cv/fold-1 or cv/final"):
        read_records([folder])


def test_resuming_by_the_default_folder_keeps_the_model(
    folder: Path, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, tmp_path / "runs" / "toy-ce-folds3-seed0")
    run = cross_validate(toy, method="ce", settings=SETTINGS, folds=3, resume=True, quiet=True)
    assert run.path.resolve() == tmp_path / "runs" / "toy-ce-folds3-seed0"
    found = run.record.folds
    assert found is not None
    assert found.final == "refit"
    assert (run.path / "model.safetensors").exists()


def elsewhere(folder: Path, place: Path) -> Record:
    """The shipped model on images that it has not seen."""
    images = toy_images((40, 20, 10, 5), seed=5)
    names = np.array(["a", "b", "c", "d"])[images.labels]
    np.savez(place / "clinic.npz", images=images.pixels, labels=names)
    out = lmd.evaluate(folder, place / "clinic.npz", out=place / "out", quiet=True)
    return out.record


def test_refit_is_tested_elsewhere_with_its_own_temperature(folder: Path, tmp_path: Path) -> None:
    external = elsewhere(folder, tmp_path)
    assert external.folds is None
    final = Run.open(folder / "final").record
    assert external.model.temperature == final.model.temperature
    assert "and so has the shipped model" in (folder / "model-card.md").read_text()


def test_another_final_model_needs_no_training(folder: Path, toy: Path, tmp_path: Path) -> None:
    before = stamps(folder)
    again = ["train", "--resume", "--out", str(folder), "--quiet", "--final", "average"]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.exception
    assert stamps(folder) == before
    images = list(toy_images(COUNTS).pixels[:4])
    members = [lmd.load(folder / name).predict(images).probabilities for name in FOLDS]
    found = lmd.load(folder).predict(images)
    np.testing.assert_allclose(found.probabilities, np.mean(members, axis=0), atol=1e-6)
    assert found.unlike_training is not None
    mixed = lmd.load(folder).predict(images, prevalence="uniform").probabilities
    assert mixed.shape == (4, 4)
    out = tmp_path / "p.csv"
    Image.fromarray(images[0]).save(tmp_path / "x.png")
    called = CliRunner().invoke(
        app, ["predict", str(folder), str(tmp_path / "x.png"), "--out", str(out)]
    )
    assert called.exit_code == 0, called.exception
    assert len(out.read_text().splitlines()) == 2
    card = (folder / "model-card.md").read_text()
    assert 'lmd.load("cv")' in card
    assert "each fold has its own" in card
    # Images from elsewhere: more than were tested, and no fold's temperature is theirs.
    external = elsewhere(folder, tmp_path)
    after = external.metrics["test"]["ece"].value
    assert external.calibration["test"].before.value == pytest.approx(after, abs=1e-6)
    # What is about one model says where to find one.
    with pytest.raises(LmdError, match="give one of its folds"):
        export_onnx(folder, tmp_path / "x.onnx")
    with pytest.raises(LmdError, match="give the folder of one of its folds"):
        lmd.load(folder).explain(images[0])
    with pytest.raises(LmdError, match="coverage"):
        lmd.load(folder).predict(images, coverage=0.9)
    # A model that was exchanged is found out.
    values = json.loads((folder / "average.json").read_text())
    values["members"][0]["sha256"] = "0" * 64
    (folder / "average.json").write_text(json.dumps(values))
    with pytest.raises(LmdError, match="is another one"):
        lmd.load(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"settings": SETTINGS | {"epochs": 3}}, "epochs"),
        ({"folds": 4}, "folds: 3 → 4"),
        ({"method": "rs"}, "method: ce → rs"),
    ],
)
def test_other_settings_cannot_be_resumed(
    folder: Path, toy: Path, change: dict[str, Any], why: str
) -> None:
    asked: dict[str, Any] = {"folds": 3, "method": "ce", "settings": SETTINGS, "final": "refit"}
    with pytest.raises(LmdError, match=why):
        cross_validate(toy, out=folder, resume=True, **asked | change)
    with pytest.raises(LmdError, match=why):  # what is not given again is as it was
        cross_validate(out=folder, resume=True, **change)


def test_what_cannot_be_cross_validated_is_refused_before_training(
    toy: Path, tmp_path: Path
) -> None:
    with pytest.raises(LmdError, match=r'parts of its own.*--split-column ""'):
        cross_validate(write_npz(tmp_path / "parts.npz"), out=tmp_path / "a", settings=SETTINGS)
    with pytest.raises(LmdError, match="fewer than 40 folds"):
        cross_validate(toy, folds=40, out=tmp_path / "a", settings=SETTINGS)
    with pytest.raises(LmdError, match="option 'final' must be one of average, refit, none"):
        cross_validate(toy, final="best", out=tmp_path / "a", settings=SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(LmdError, match="unknown setting 'epoch'"):
        cross_validate(toy, out=tmp_path / "a", settings={"epoch": 3})
    for more in (["--final", "refit"], ["--workers", "2"]):
        done = CliRunner().invoke(app, words(toy, tmp_path / "a", *more))
        assert "give --folds too" in str(done.exception)
    assert not (tmp_path / "a").exists()


def test_folds_are_of_one_data_set(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cv")
    path = tmp_path / "cv" / "fold-2" / "record.json"
    record = json.loads(path.read_text())
    record["data"]["pixels"] = "others"
    path.write_text(json.dumps(record))
    with pytest.raises(LmdError, match="images have changed between fold-1 and fold-2"):
        write_pooled(tmp_path / "cv", FOLDS, "none", (), ("lmd",))


def test_old_folds_are_not_taken_for_new_ones(folder: Path, toy: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cv")
    # As after a training that replaced the cross-validation.
    (tmp_path / "cv" / "folds.json").unlink()
    cross_validate(toy, method="ce", settings=SETTINGS, folds=2, out=tmp_path / "cv",
                   final="none", overwrite=True, quiet=True)  # fmt: skip
    created = [Run(tmp_path / "cv" / name).record.created for name in FOLDS[:2]]
    assert min(created) > Run(folder / "fold-3").record.created
    assert not (tmp_path / "cv" / "fold-3").exists()
