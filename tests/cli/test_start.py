"""Before training starts: every mistake is one line, and a start that fails leaves nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.data import cache
from lmd.model.backbones import lite, resnet

QUICK = ["--method", "ce", "--protocol", "demo", "--epochs", "1", "--image-size", "16"]
QUICK += ["--set", "workers=0", "--set", "batch_size=8"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of classes and a manifest of it with patients, in a working folder of its own."""
    rng = np.random.default_rng(0)
    lines = ["Image,LABEL,patient_id"]
    for name, tone in (("nevus", 60), ("melanoma", 180)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(10):
            noise = rng.integers(0, 60, (20, 20, 3)) + tone
            Image.fromarray(noise.astype(np.uint8)).save(tmp_path / f"images/{name}/x{i}y.png")
            lines.append(f"{name}/x{i}y.png,{name},{name[0]}{i // 2}")
    (tmp_path / "images.csv").write_text("\n".join(lines))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "images"


def refused(*words: str | Path) -> str:
    """The error of a command that must not leave anything behind."""
    done = CliRunner().invoke(app, ["train", *map(str, words)])
    assert isinstance(done.exception, LmdError), (done.output, done.exception)
    assert list(Path().iterdir()) == []
    assert "\n" not in str(done.exception)
    assert "Input should" not in str(done.exception)
    return str(done.exception)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("lambda_1=-5", "setting 'lambda_1' of method 'lmd' must be a number of at least 0"),
        ("workers=-1", "setting 'workers' must be a whole number of at least 0, or null; it is -1"),
        ("epochs=0", "setting 'epochs' must be a whole number of at least 1; it is 0"),
        ("epochs=2.5", "setting 'epochs' must be a whole number of at least 1; it is 2.5"),
        ("epochs=true", "setting 'epochs' must be a whole number of at least 1; it is true"),
        ("lr=nan", "setting 'lr' must be a number above 0; it is NaN"),
        ("stage2_lr=-1", "setting 'stage2_lr' must be a number above 0, or null; it is -1"),
        ("momentum=7", "setting 'momentum' must be a number of at least 0 and below 1; it is 7"),
        ("weight_decay=-1", "setting 'weight_decay' must be a number of at least 0; it is -1"),
        ("imbalance=0.5", "setting 'imbalance' must be a number of at least 1, or null; it is 0.5"),
        ("head_size=0", "setting 'head_size' must be a whole number of at least 1, or null"),
        ("image_size=100000", "'image_size' must be a whole number from 16 to 4096; it is 100000"),
        ("schedule=cos", "'schedule' must be one of constant, cosine; it is \"cos\""),
        ("split=7:1", "'split' must be three ratios for train, validation and test, such as 7:1:2"),
        ("tiers=halves", "tiers = 'halves' is not a rule"),
        ("epoch=3", "unknown setting 'epoch': did you mean 'epochs'?"),
        ("Lambda1=3", "unknown setting 'Lambda1': did you mean 'lambda_1'?"),
    ],
)
def test_a_wrong_setting_is_one_line(data: Path, setting: str, words: str) -> None:
    assert words in refused(data, "--protocol", "demo", "--set", setting)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "mps"], "--device must be auto, cpu, cuda or cuda:N; it is 'mps'"),
        (["--device", "meta"], "--device must be auto, cpu, cuda or cuda:N; it is 'meta'"),
        (["--device", "gpu"], "--device must be auto, cpu, cuda or cuda:N; it is 'gpu'"),
        (["--method", "lmdd"], "unknown method 'lmdd': did you mean 'lmd'?"),
        (["--profile", "offical"], "unknown profile 'offical': did you mean 'official'?"),
        (["--epochs", "3", "--set", "epochs=4"], "--epochs 3 and --set epochs=4 differ: give one"),
        (["--set", "batch_size=1"], "setting 'batch_size' must be at least 2 for backbone"),
        (["--set", "backbone=resnet9"], "unknown backbone 'resnet9': did you mean 'resnet8'?"),
        (["--weights", "nowhere.pth"], "nowhere.pth is not a file"),
        (["--set", "tiers=head=nevus;tail=melanom"], "unknown class 'melanom': did you mean"),
        (["--set", "split=1:0:0"], "the test part is empty: give it a share, such as --set split="),
    ],
)
def test_everything_is_checked_before_an_image_is_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("an image was read")

    monkeypatch.setattr(cache, "_read", read)
    assert said in refused(data, "--protocol", "demo", *words)


def test_an_unknown_protocol_and_an_unknown_column(data: Path) -> None:
    assert "unknown protocol 'smal': did you mean 'small'?" in refused(data, "--protocol", "smal")
    manifest = [data.with_suffix(".csv"), "--root", data, *QUICK]
    assert "--group-column patient_id, if that is meant" in refused(
        *manifest, "--group-column", "patientid"
    )


def test_python_has_the_same_messages(data: Path) -> None:
    (Path("run")).write_text("a file")
    with pytest.raises(LmdError, match=r"choose another folder with --out$"):
        lmd.train(data, protocol="demo", out="run")
    with pytest.raises(LmdError, match=r"'workers' must be .* or null; it is -1"):
        lmd.train(data, protocol="demo", settings={"workers": -1})
    with pytest.raises(LmdError, match="unknown name 'grup_column': did you mean 'group_column'"):
        lmd.train(data, protocol="demo", columns={"grup_column": "a"})


def test_an_unused_patient_column_is_as_loud_as_in_the_doctor(data: Path) -> None:
    manifest, root = str(data.with_suffix(".csv")), str(data)
    asked = CliRunner().invoke(app, ["data", "doctor", manifest, "--root", root, "--quiet"])
    done = CliRunner().invoke(app, ["train", manifest, "--root", root, *QUICK, "--seed", "3"])
    assert done.exit_code == 0, done.exception
    found = "Column 'patient_id' has 10 values for 20 images but is not used as the group"
    assert found in asked.output
    said = " ".join(done.stderr.split())
    assert f"warning: {found}: a split by image would leak." in said
    assert "Use it with --group-column patient_id." in said
    record = json.loads(Path("runs/images-ce-seed3/record.json").read_text())
    assert any(found in note for note in record["notes"])
    # The first line says what takes how long.
    first = done.stderr.splitlines()[0]
    for words in ("16 px", "1 epoch;", "resnet8 with random weights"):
        assert words in first
    used = ["--group-column", "Patient_ID", "--set", "split=6:2:2", "--out", "used"]
    again = CliRunner().invoke(app, ["train", manifest, "--root", root, *QUICK, *used])
    assert again.exit_code == 0, again.exception
    assert "warning" not in again.stderr
    record = json.loads(Path("used/record.json").read_text())
    assert record["data"]["grouped"]
    assert record["protocol"]["split"] == [0.6, 0.2, 0.2]


@pytest.mark.parametrize("bundled", [True, False])
def test_a_folder_trains_offline_by_default(
    data: Path, monkeypatch: pytest.MonkeyPatch, bundled: bool
) -> None:
    monkeypatch.setattr(resnet, "_URL", "http://127.0.0.1:9/")  # nobody listens

    def missing(_: str) -> Path:
        raise LmdError("not installed")

    if not bundled:
        monkeypatch.setattr(lite, "imagenet_file", missing)
    words = ["train", str(data), *QUICK[:2], *QUICK[4:], "--out", "run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert "The ImageNet weights of resnet18 cannot be had (cannot reach" in done.stderr
    chosen = ["efficientnet_lite0", "imagenet"] if bundled else ["resnet18", "none"]
    with_words = "ImageNet weights" if bundled else "random weights"
    assert f"{chosen[0]} with {with_words}" in done.stderr.splitlines()[1]
    record = json.loads(Path("run/record.json").read_text())
    assert [record["model"][key] for key in ("backbone", "weights")] == chosen
    assert f"--set 'weights=\"{chosen[1]}\"'" in record["command"]
    assert any("cannot be had" in note for note in record["notes"])
    # The same command resumes it, whatever can be had by then.
    monkeypatch.setattr(resnet, "imagenet_file", lambda _: Path("weights.pth"))
    assert CliRunner().invoke(app, [*words, "--resume"]).exit_code == 0
    # What was asked for is never replaced.
    if bundled:
        asked = CliRunner().invoke(app, [*words[:-1], "asked", "--weights", "imagenet"])
        assert isinstance(asked.exception, LmdError)


def test_folders_that_a_failed_start_made_are_removed(data: Path) -> None:
    (data / "nevus" / "x0y.png").write_bytes(b"no image")
    done = CliRunner().invoke(app, ["train", str(data), *QUICK, "--out", "a/b/run"])
    assert isinstance(done.exception, LmdError)
    assert "x0y.png" in str(done.exception)
    assert list(Path().iterdir()) == []
    Path("kept").mkdir()
    CliRunner().invoke(app, ["train", str(data), *QUICK, "--out", "kept/run"])
    assert list(Path().iterdir()) == [Path("kept")]
    assert list(Path("kept").iterdir()) == []
