"""Bad input of every command that decides: one line that names the option, and nothing written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explained import skin, skin_run
from PIL import Image
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app

DECISIONS = [
    (
        ["--prevalence", "0=0.5,1=0.3,2=0.1"],
        "--prevalence: the shares of the classes must sum to 1",
    ),
    (["--prevalence", "0=90,1=8,2=2"], "give shares, not counts or per cent"),
    (["--prevalence", "0=0.5,1=0.5"], "--prevalence: no value for 2"),
    (["--prevalence", "0=0.5,1=0.3,2=0.1,mel=0.1"], "mel"),
    (["--prevalence", "nonsense"], "--prevalence must be uniform, training"),
    (["--costs", "unknown.csv"], "mel"),
    (["--costs", "short.csv"], "--costs: no value for 2"),
    (["--costs", "negative.csv"], "--costs"),
    (["--costs", "absent.csv"], "absent.csv cannot be read"),
    (["--coverage", "1"], "--coverage must be above 0 and below 1"),
    (["--coverage", "nan"], "--coverage must be above 0 and below 1"),
    (["--refer-above", "2"], "--refer-above needs --coverage"),
    (["--coverage", "0.9", "--refer-above", "0"], "--refer-above must be at least 1"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    skin_run(folder)
    Image.fromarray(skin(0, 1)[0]).save(folder / "image.png")
    labels = np.repeat(np.arange(3), 2)
    images = np.concatenate([skin(label, 2, 800) for label in (0, 2, 6)])
    np.savez(folder / "clinic.npz", images=images, labels=labels)
    (folder / "unknown.csv").write_text("class,cost\n0,1\n1,1\n2,1\nmel,20\n")
    (folder / "short.csv").write_text("class,cost\n0,1\n1,20\n")
    (folder / "negative.csv").write_text("class,cost\n0,1\n1,20\n2,-1\n")
    return folder


def refused(words: list[str]) -> str:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, LmdError), (done.output, done.exception)
    message = str(done.exception)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("path", ["/data/scan --out/a.png", "/data/skip_bad --skip-bad.csv"])
def test_what_was_typed_is_not_rewritten(path: str, place: Path) -> None:
    assert path in refused(["predict", str(place / "run"), path, "--out", str(place / "new.csv")])
    image, costs = place / "image.png", place / "named --costs.csv"
    costs.write_text("class,cost\n0,1\n1,1\n2,1\n--root,20\n")
    typed = refused(["evaluate", str(place / "run"), "--costs", str(costs)])
    assert "'--root'" in typed
    with pytest.raises(LmdError, match="'--root'"):
        lmd.load(place / "run").predict([image], costs=costs)


@pytest.mark.parametrize(("words", "message"), DECISIONS)
def test_decisions(
    words: list[str], message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for command in (
        ["predict", "run", "image.png", "--out", "out.csv"],
        ["evaluate", "run"],
        ["evaluate", "run", "--data", "clinic.npz", "--quiet"],
    ):
        assert message in refused([*command, *words]), command
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def features(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {"features": rng.normal(size=(40, 5)), "labels": np.arange(40) % 2}
    return {k: v for k, v in (found | changes).items() if v is not None}


def with_nan() -> Any:
    found = features()["features"]
    found[7, 2] = np.nan
    return found


ARRAYS = [
    ({"features": with_nan()}, "features must be finite numbers within float32; row 7"),
    ({"features": np.full((40, 5), 1e300)}, "must be finite numbers within float32; row 0"),
    ({"features": np.array([[1, "a"]] * 40, dtype=object)}, "Python objects"),
    ({"labels": np.array(["a", None] * 20, dtype=object)}, "Python objects"),
    ({"features": np.array([["x"] * 5] * 40)}, "features must be numbers (N, C)"),
    ({"features": np.zeros((0, 5)), "labels": np.zeros(0, int)}, "features is empty"),
    ({"weight": np.zeros((2, 4)), "bias": np.zeros(2)}, "weight must be (K, C) with C = 5"),
    ({"labels": np.zeros(40, int)}, "has only one class"),
    ({"labels": np.zeros(39, int)}, "labels has the shape (39,)"),
    ({"features": None, "train_features": np.zeros((30, 5)), "train_labels": np.arange(30) % 2,
      "test_features": np.zeros((10, 6)), "test_labels": np.arange(10) % 2},
     "features of the parts do not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), ARRAYS)
def test_features(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", **features(**changes))
    words = ["calibrate", str(tmp_path / "f.npz"), "--out", str(tmp_path / "out"), "--quiet"]
    assert message in refused(words)
    assert not (tmp_path / "out").exists()


def test_python_refuses_them_too(place: Path) -> None:
    given = features()
    classifier = lmd.calibrate(given["features"], given["labels"])
    for bad, message in ((given["features"][:, :4], "C = 5"), (with_nan(), "must be finite")):
        with pytest.raises(LmdError, match=message):
            classifier.predict_proba(bad)
    with pytest.raises(LmdError, match="row 7"):
        lmd.calibrate(with_nan(), given["labels"])
    model = lmd.load(place / "run")
    for options, message in (
        ({"prevalence": {"0": 0.5, "1": 0.4, "2": 0.2}}, "must sum to 1"),
        ({"costs": {"0": 1, "1": 1, "mel": 1}}, "mel"),
    ):
        with pytest.raises(LmdError, match=message):
            model.predict([], **options)  # type: ignore[arg-type]


def test_a_run_among_the_class_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(6):
            Image.fromarray(skin(0, 1)[0]).save(tmp_path / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--folds", "2"]):
        done = CliRunner().invoke(app, ["train", ".", "--method", "ce", *more])
        assert "lies inside the data" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_calibrate_without_a_network_names_its_own_options(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmd.model.backbones.resnet._URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("LMD_CACHE", str(tmp_path))
    words = ["resnet18", "--data", str(place / "skin.npz"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["calibrate", *words])
    message = str(done.exception)
    assert "cannot reach" in message
    assert "--weights FILE, or efficientnet_lite0 as SOURCE" in message
    assert "--set" not in message
    assert not (tmp_path / "out").exists()
