"""`lmd data`: the written file and the command line."""

import hashlib
import shlex
from pathlib import Path
from typing import Any

import pytest
from downloads import TINY, kvasir, read
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.data.sources import open_table
from lmd.recipes import RECIPES, make


def run(*words: str | Path) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["data", *map(str, words)])


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", TINY)
    out = tmp_path / "k.csv"
    out.write_text("mine")
    with pytest.raises(LmdError, match=r"k\.csv exists: choose another file, or replace it with"):
        make("hyper-kvasir", root, out)
    assert out.read_text() == "mine"
    result = make("hyper-kvasir", root, out, overwrite=True)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == result.sha256
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["k.csv"]
    with pytest.raises(LmdError, match=r"recipe 'hyper-kvasir' writes a \.csv file"):
        make("hyper-kvasir", root, tmp_path / "k.npz")
    with pytest.raises(LmdError, match=r"unknown recipe 'kvasir': did you mean 'hyper-kvasir'\?"):
        make("kvasir", root, tmp_path / "x.csv")
    with pytest.raises(LmdError, match=r"unknown option '--factor'; choose one of --seed"):
        make("hyper-kvasir", root, tmp_path / "x.csv", factor=3)


def test_paths_hold_wherever_the_manifest_lies(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "a" / "kvasir", TINY)
    places = [
        root / "k.csv",
        tmp_path / "a" / "k.csv",
        tmp_path / "k.csv",
        tmp_path / "b" / "k.csv",
    ]
    starts = ["labeled-images/", "kvasir/labeled", "a/kvasir/labeled", "labeled-images/"]
    for out, start in zip(places, starts, strict=True):
        words = shlex.split(make("hyper-kvasir", root, out).command)
        assert read(out)[0]["image"].startswith(start)
        assert words[:3] == ["lmd", "train", str(out)]
        assert words[3:] == (["--root", str(root)] if out == places[3] else [])
        table = open_table(out, root=words[4] if words[3:] else None)
        assert len(table) == 68
        assert table.read(0).shape == (16, 16, 3)


def test_the_printed_command_trains(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "my download", TINY)
    result = run("make", "hyper-kvasir", "--root", root, "--out", tmp_path / "made" / "k.csv")
    assert result.exit_code == 0, result.output
    command = result.output.split("Next: ")[1].strip()
    fast = "epochs=1,image_size=16,backbone=resnet8,weights=none,batch_size=16,workers=0"
    words = [*shlex.split(command)[1:], "--method", "ce", "--out", str(tmp_path / "run"), "--quiet"]
    for setting in fast.split(","):
        words += ["--set", setting]
    trained = CliRunner().invoke(app, words)
    assert trained.exit_code == 0, (trained.output, trained.exception)
    assert (tmp_path / "run" / "record.json").exists()


def test_make_prints_counts_notes_and_the_digest(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", TINY)
    result = run("make", "hyper-kvasir", "--root", root, "--out", tmp_path / "k.csv", "--seed", "3")
    assert result.exit_code == 0, result.output
    table = result.output.replace("│", " ").replace("|", " ")
    lines = [line.split() for line in table.splitlines()]
    assert ["bbps-2-3", "24", "3", "3", "30"] in lines
    assert ["all", "54", "7", "7", "68"] in lines
    digest = hashlib.sha256((tmp_path / "k.csv").read_bytes()).hexdigest()
    assert f"SHA-256 {digest}" in result.output
    assert "bbps-2-3 30 (published 1148)" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make", "kvasir"], "unknown recipe 'kvasir': did you mean 'hyper-kvasir'?"),
        (["make", "hyper-kvasir", "--factor", "3"], "unknown option '--factor'"),
        (["make", "ham10000"], "contain no HAM10000_metadata.csv"),
        (["make", "isic2019-lt", "--by-image"], "contain no ISIC_2019_Training_GroundTruth.csv"),
        (["make", "isic-archive-lt", "--published-counts"], "contains no metadata of the archive"),
    ],
)
def test_what_cannot_be_made_is_an_error_for_the_user(
    tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "root").mkdir()
    result = run(*words, "--root", tmp_path / "root", "--out", tmp_path / "out.csv")
    assert isinstance(result.exception, LmdError)
    assert message in str(result.exception)


def test_every_option_of_every_recipe_is_on_the_command_line() -> None:
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["data", "make", "--help"]).output
    for recipe in RECIPES.values():
        for name in recipe.option_names():
            assert name.split()[0] in text


def test_list_names_every_recipe_with_its_source_and_licence() -> None:
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["data", "list"]).output
    for recipe in RECIPES.values():
        assert recipe.key in text
        assert recipe.source in text
        assert recipe.licence.split(":")[0] in text


def test_each_recipe_says_where_its_data_are() -> None:
    for key, recipe in RECIPES.items():
        assert recipe.key == key
        assert recipe.source.startswith("https://")
        assert "CC" in recipe.licence
        assert recipe.option_names()
