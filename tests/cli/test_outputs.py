"""Where commands write: missing folders are made, and what cannot be written is said first."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import write_grid
from PIL import Image
from runs_on_disk import make_run
from typer.testing import CliRunner, Result

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output
from lmd.cli.commands import app
from lmd.model import build_model
from lmd.model.files import ModelSpec, save_model


def said(*words: Any) -> str:
    """The message of a command that fails; it must not have printed anything before."""
    found = invoked(*words)
    assert isinstance(found.exception, LmdError), found.output
    assert found.output == ""
    return str(found.exception)


def invoked(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a model, and an image beside it."""
    make_run(tmp_path / "run", ["a", "b"], epochs=(1, 1))
    network, preprocessing = build_model("resnet8", "none", 2, image_size=16)
    width = network.classifier.in_features
    spec = ModelSpec(("a", "b"), "resnet8", "linear", width, preprocessing, "CE", (9, 5))
    save_model(network, tmp_path / "run", spec)
    Image.new("RGB", (9, 9), "red").save(tmp_path / "image.png")
    return tmp_path / "run"


def test_missing_folders_are_made_by_every_command(run: Path) -> None:
    new, image = run.parent / "new", run.parent / "image.png"
    data = run.parent / "data"
    pixels = np.random.default_rng(0).integers(0, 256, (10, 40, 40, 3), np.uint8)
    for i, one in enumerate(pixels):
        (data / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(data / "ab"[i % 2] / f"{i}.png")
    for words in (
        ["predict", run, image, "--out", new / "1" / "p.csv"],
        ["report", run, "--out", new / "3" / "r.html"],
        ["data", "doctor", data, "--quiet", "--html", new / "4" / "d.html", "--json",
         new / "5" / "d.json", "--fix", new / "6" / "d.csv"],
    ):  # fmt: skip
        found = invoked(*words)
        assert "cannot write" not in str(found.exception), words
    made = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file())
    assert made == ["1/p.csv", "3/r.html", "4/d.html", "5/d.json", "6/d.csv"]


@pytest.mark.parametrize("name", ["p.xlsx", "p.json", "p", "p.csv.gz"])
def test_predictions_are_csv_and_nothing_else(run: Path, name: str) -> None:
    out = run.parent / name
    assert said("predict", run, run.parent / "image.png", "--out", out) == (
        f"--out is {out}; the name of the file must end in .csv"
    )


def test_a_table_is_not_a_spreadsheet(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, 'methods = ["ce"]\nPROTOCOL')
    assert "must end in .txt or .md or .tex or .csv" in said("table", grid, "--out", "t.xlsx")


def test_an_output_that_is_a_folder_or_below_a_file(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match="a folder: give the name of a file"):
        check_output(tmp_path, "--out")
    (tmp_path / "file").touch()
    with pytest.raises(LmdError, match=re.escape(f"{tmp_path / 'file'} is not a folder")):
        check_output(tmp_path / "file" / "deep" / "p.csv", "--out", ".csv")
    check_output(tmp_path / "new" / "deep" / "P.CSV", "--out", ".csv")
    assert not (tmp_path / "new").exists()
    with pytest.raises(LmdError, match=r"cannot write .*File exists"):
        atomic_write(tmp_path / "file" / "p.csv", b"", parents=True)


def test_evaluate_checks_the_other_run_before_it_prints(run: Path, tmp_path: Path) -> None:
    before = (run / "record.json").read_bytes()
    assert "does not exist" in said("evaluate", run, "--against", tmp_path / "nowhere")
    make_run(tmp_path / "other", ["x", "y", "z"], epochs=(1, 1))
    assert "other classes" in said("evaluate", run, "--against", tmp_path / "other")
    assert (run / "record.json").read_bytes() == before


def test_show_reads_all_runs_before_it_prints_one(run: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "other", ["a", "b"], epochs=(1, 1))
    (tmp_path / "other" / "record.json").write_text("{")
    assert "other/record.json" in said("show", run, tmp_path / "other")


def test_predict_looks_for_its_images_before_it_loads_the_model(run: Path) -> None:
    (run / "model.json").write_text(json.dumps({}))
    out = run.parent / "p.csv"
    assert said("predict", run, run.parent / "no.png", "--out", out).endswith("does not exist")


def test_predict_and_explain_name_what_they_pass_over(run: Path) -> None:
    folder = run.parent / "images"
    folder.mkdir()
    Image.new("RGB", (9, 9), "red").save(folder / "a.png")
    for name in ("notes.txt", "table.csv"):
        (folder / name).touch()
    for words in (
        ["predict", "--out", run.parent / "p.csv"],
        ["explain", "--out", run.parent / "e"],
    ):
        found = invoked(words[0], run, folder, *words[1:])
        assert found.exit_code == 0, found.exception
        assert "2 files are not images and were passed over: " in found.output
        assert str(folder / "notes.txt") in found.output
    (folder / "a.png").unlink()
    message = said("predict", run, folder, "--out", run.parent / "q.csv")
    assert message == (
        f"there are no images in the folder {folder}: notes.txt, table.csv are not images"
    )


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_benchmark_without_its_data_fails_before_it_starts(
    tmp_path: Path, words: list[str]
) -> None:
    out = tmp_path / "out"
    grid = write_grid(tmp_path, 'methods = ["ce"]\nPROTOCOL')
    (tmp_path / "toy.npz").unlink()
    message = said("benchmark", grid, "--out", out, *words)
    assert f"data {tmp_path / 'toy.npz'} does not exist" in message
    grid = write_grid(tmp_path, 'methods = ["ce"]\nreference = "focal"\nPROTOCOL')
    assert "the reference 'focal' is not one of its methods; they are: ce" in said(
        "benchmark", grid, "--out", out, *words
    )
    assert not out.exists()
