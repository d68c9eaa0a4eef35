"""`lmd explain` writes pictures, a page and numbers, or nothing at all."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from documentation import run_python
from explained import endoscopy, skin, skin_data, skin_run
from PIL import Image
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("explain"), keep_features=True)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    (folder / "deep").mkdir(parents=True)
    Image.fromarray(skin(0, 1)[0]).save(folder / "a <b>.png")
    Image.fromarray(skin(2, 1)[0]).resize((90, 60)).save(folder / "deep" / "a <b>.jpg")
    Image.fromarray(endoscopy(1)[0]).save(folder / "tube.png")
    return folder


def explained(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, LmdError | SystemExit):
        raise done.exception
    return done.exit_code, done.output + str(done.exception or "")


def test_every_image_gets_a_picture_a_place_in_the_page_and_numbers(
    run: Run, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "out"
    code, output = explained(run.path, images, "--out", out)
    assert code == 0, output
    assert "3 images explained, 0 skipped" in output
    assert "1 images are unlike the training images" in output
    numbers = json.loads((out / "explanations.json").read_text())
    files = [each["file"] for each in numbers["images"]]
    assert sorted(p.name for p in out.iterdir()) == sorted(
        [*files, "explanations.json", "index.html"]
    )
    predicted = lmd.load(run.path).predict([each["image"] for each in numbers["images"]])
    for each, label in zip(numbers["images"], predicted.labels, strict=True):
        first, second = each["classes"]
        assert first["class"] == label
        assert first["probability"] >= second["probability"]
        assert np.shape(first["evidence"]) == (4, 4)
        assert all(0 < place < 1 for place in first["peak"])
        assert len(each["nearest"]) == 5
        assert set(each["nearest"][0]) == {"label", "distance", "row"}
        with Image.open(out / each["file"]) as picture:
            assert picture.width > 3 * 256
    assert [each["unlike_training"] for each in numbers["images"]].count(True) == 1
    page = (out / "index.html").read_text()
    assert page.count("<img ") == 9
    assert page.count('src="data:image/jpeg;base64,') == 9
    assert "<b>.png" not in page  # names are escaped
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # it stands alone
    assert page.count("Unlike the training images: do not rely") == 1


def test_names_are_shown_only_if_they_were_kept(run: Run, images: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run.path, tmp_path / "copy")
    one, out = images / "tube.png", tmp_path / "out"
    words = ["index", str(folder), "--quiet"]
    refused = CliRunner().invoke(app, words)
    assert "neighbours.npz exists: use --overwrite" in str(refused.exception)
    (folder / "neighbours.npz").write_bytes(b"damaged")
    done = CliRunner().invoke(app, [*words, "--overwrite"])
    assert done.exit_code == 0, done.output
    assert "without file names" in done.output
    # Training kept the same, to the last digit.
    with np.load(folder / "neighbours.npz") as again, np.load(run.path / "neighbours.npz") as kept:
        assert sorted(again) == sorted(kept)
        assert all(np.array_equal(again[name], kept[name]) for name in kept)
    done = CliRunner().invoke(app, [*words, "--overwrite", "--with-names"])
    assert "with file names" in done.output
    code, output = explained(folder, one, "--out", out, "--neighbours", 2)
    assert code == 0, output
    nearest = json.loads((out / "explanations.json").read_text())["images"][0]["nearest"]
    assert len(nearest) == 2
    assert all(near["name"] in (out / "index.html").read_text() for near in nearest)


def test_an_index_needs_the_data_of_the_run(run: Run, tmp_path: Path) -> None:
    other = skin_data(tmp_path / "other.npz", counts=(9, 8, 7))
    words = ["index", str(run.path), "--overwrite", "--quiet", "--data", str(other)]
    before = (run.path / "neighbours.npz").read_bytes()
    refused = CliRunner().invoke(app, words)
    assert "is not what run was trained on" in str(refused.exception)
    assert (run.path / "neighbours.npz").read_bytes() == before


def test_a_command_that_fails_leaves_nothing_behind(run: Run, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (images / "zz.png").write_bytes(b"not an image")
    for words, message in (
        ([run.path, images], "Use --skip-bad to leave out such images"),
        ([tmp_path / "model.onnx", images], "heat maps need the run folder, and .*is an ONNX file"),
        ([run.path, tmp_path / "nowhere"], "nowhere does not exist"),
        ([tmp_path, images], r"model\.json does not exist"),
    ):
        code, output = explained(*words, "--out", out)
        assert code == 1
        assert re.search(message, output)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]
    code, output = explained(run.path, images, "--out", out, "--skip-bad")
    assert code == 0
    assert "3 images explained, 1 skipped" in output


def test_earlier_explanations_are_replaced_only_if_asked(
    run: Run, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert explained(run.path, images, "--out", out)[0] == 0
    code, output = explained(run.path, images / "tube.png", "--out", out)
    assert (code, "is not empty" in output) == (1, True)
    assert explained(run.path, images / "tube.png", "--out", out, "--overwrite")[0] == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "0001-tube.png", "explanations.json", "index.html",
    ]  # fmt: skip
    code, output = explained(run.path, images, "--out", images, "--overwrite")
    assert (code, "was not written by `lmd explain`" in output) == (1, True)
    code, output = explained(run.path, images, "--out", images / "tube.png")
    assert (code, "is a file" in output) == (1, True)


def test_the_example_of_the_docs_runs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(skin(0, 1)[0]).save(tmp_path / "image.jpg")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "NAME").symlink_to(run.path)
    monkeypatch.chdir(tmp_path)
    names = run_python("explaining.md")
    assert np.shape(names["heat"]) == (256, 256)
