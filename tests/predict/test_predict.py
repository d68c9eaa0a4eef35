"""Which images a prediction is made for, and how they are named in its CSV file."""

import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmd.base.errors import LmdError
from lmd.decisions.policy import Decided, Policy
from lmd.model import build_model
from lmd.model.files import ModelSpec
from lmd.predict.engines import TorchEngine
from lmd.predict.predictor import Prediction, Predictor, find_images
from lmd.scoring.conformal import Guarantee


def test_a_folder_is_searched_as_in_training(tmp_path: Path) -> None:
    for name in ("b.png", "deep/a.JPG", ".hidden.png", "__MACOSX/b.png", "notes.txt", "README"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "deep" / "IM0001").write_bytes(bytes(128) + b"DICM")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images([tmp_path])]
    assert found == ["b.png", "deep/IM0001", "deep/a.JPG"]


def test_what_cannot_be_listed_or_read_is_named_or_counted(
    tmp_path: Path, unlistable: Callable[[Path], None]
) -> None:
    for name in ("good.png", "closed/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 20), "red").save(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop").symlink_to(tmp_path)
    unlistable(tmp_path / "closed")
    model, preprocessing = build_model("resnet8", "none", 2, image_size=16)
    width = model.classifier.in_features
    spec = ModelSpec(("a", "b"), "resnet8", "linear", width, preprocessing, "CE", (9, 5))
    predictor = Predictor(TorchEngine(model, spec))
    with pytest.raises(LmdError, match=r"closed cannot be read \(Permission denied\)"):
        predictor.predict(find_images([tmp_path]))
    found = predictor.predict(find_images([tmp_path]), skip_bad=True)
    assert [Path(name).name for name in found.names] == ["good.png"]
    assert len(found.skipped) == 3
    assert sum("pipe.png cannot be read (a pipe)" in why for why in found.skipped) == 1


def test_files_are_taken_as_they_are_and_nothing_is_an_error(tmp_path: Path) -> None:
    odd = tmp_path / ".odd"
    odd.write_bytes(b"x")
    assert find_images([odd]) == [odd]
    with pytest.raises(LmdError, match="does not exist"):
        find_images([tmp_path / "nowhere.png"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden.png").write_bytes(b"x")
    with pytest.raises(LmdError, match="there are no images in the folder"):
        find_images([tmp_path / "empty"])


def test_names_are_neither_formulas_nor_separators(tmp_path: Path) -> None:
    classes = ("=1+1", "a|b", "-ve", "c\\")
    p = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1]], np.float32)
    sets = np.array(
        [[True, True, False, False], [False, True, True, True], [False, False, True, True]]
    )
    decided = Decided(p, p.argmax(1), sets, np.array([False, True, False]))
    policy = Policy(sets=[Guarantee("class", 20, 0.1, 0.9, 0.8, 1.0)] * 4, refer_above=2)
    names = ("-x.png", "@y.png", "z=1.png")
    Prediction(names, classes, p, decided, policy).write_csv(tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == ["-x.png", "@y.png", "z=1.png"]
    assert [row["predicted"] for row in rows] == ["'=1+1", "a|b", "-ve"]
    assert [row["set"] for row in rows] == ["'=1+1|a\\|b", "a\\|b|-ve|c\\\\", "-ve|c\\\\"]
    assert list(rows[0])[-4:] == ["p:'=1+1", "p:a|b", "p:-ve", "p:c\\"]
    for row in rows:  # columns can be joined
        assert row["probability"] == row[f"p:{row['predicted']}"]


def test_a_name_that_is_not_utf8_is_named_or_counted(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), "red").save(tmp_path / "good.png")
    try:
        odd = tmp_path / os.fsdecode(b"caf\xe9.png")
        odd.write_bytes((tmp_path / "good.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    model, preprocessing = build_model("resnet8", "none", 2, image_size=16)
    width = model.classifier.in_features
    spec = ModelSpec(("a", "b"), "resnet8", "linear", width, preprocessing, "CE", (9, 5))
    predictor = Predictor(TorchEngine(model, spec))
    for given in (tmp_path, [str(odd)], find_images([odd])):
        with pytest.raises(LmdError, match="is not UTF-8: rename it"):
            predictor.predict(given)
    found = predictor.predict(tmp_path, skip_bad=True)
    found.write_csv(tmp_path / "p.csv")
    assert (len(found.names), len(found.skipped)) == (1, 1)
