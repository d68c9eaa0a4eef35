"""MedMNIST: checks, names and longer tails."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.data.sources import open_table
from lmd.recipes import make
from lmd.recipes.medmnist import SETS


def npz(path: Path, classes: int, counts: tuple[int, int, int], **changes: Any) -> Path:
    """The six arrays of a set; the smaller a class number the more images."""
    arrays: dict[str, Any] = {}
    rng = np.random.RandomState(0)  # whose numbers never change
    for word, n in zip(("train", "val", "test"), counts, strict=True):
        labels = np.minimum(rng.geometric(0.4, n) - 1, classes - 1)
        labels[:classes] = np.arange(min(classes, n))
        arrays[f"{word}_images"] = rng.randint(0, 256, (n, 8, 8, 3)).astype(np.uint8)
        arrays[f"{word}_labels"] = labels[:, None].astype(np.uint8)
    arrays |= changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def test_dermamnist_is_checked_and_named(tmp_path: Path) -> None:
    root = npz(tmp_path / "dermamnist.npz", 7, (7007, 1003, 2005))
    out = tmp_path / "made" / "derma.npz"
    result = make("medmnist", root, out)
    before, after = open_table(root), open_table(out)
    assert list(after.classes) == SETS["dermamnist"]["classes"]
    assert np.array_equal(before.labels, after.labels)
    assert before.parts is not None
    assert after.parts is not None
    assert np.array_equal(before.parts, after.parts)
    assert all(np.array_equal(before.read(i), after.read(i)) for i in range(0, len(after), 97))
    notes = "\n".join(result.notes)
    assert "has its published 7007 / 1003 / 2005 images" in notes
    assert "images of one lesion are in training and in test" in notes
    assert result.command == f"lmd train {out}"
    # The same set in a folder, under its name at another size.
    (tmp_path / "folder").mkdir()
    shutil.copy(root, tmp_path / "folder" / "dermamnist_64.npz")
    again = make("medmnist", tmp_path / "folder", tmp_path / "again.npz")
    assert again.sha256 == result.sha256


def test_medmnist_with_a_longer_tail_in_training_alone(tmp_path: Path) -> None:
    root = npz(tmp_path / "bloodmnist.npz", 8, (3000, 100, 200))
    out = tmp_path / "blood-lt.npz"
    result = make("medmnist", root, out, factor=50, head_size=500)
    table, before = open_table(out), open_table(root)
    counts = table.part("train").counts()
    assert counts.max() == 500
    assert counts.min() == 10
    for part in ("validation", "test"):
        assert np.array_equal(table.part(part).labels, before.part(part).labels)
    # Each kept image still has its own pixels and label.
    known = {before.read(i).tobytes(): before.labels[i] for i in range(3000)}
    assert all(known[table.read(i).tobytes()] == table.labels[i] for i in range(0, 900, 50))
    assert "3000 / 100 / 200 images in train, validation and test, published 11959" in "\n".join(
        result.notes
    )
    assert result.sha256 == FIXED_MEDMNIST
    assert make("medmnist", root, tmp_path / "b.npz", factor=50, head_size=500, seed=1).sha256 != (
        result.sha256
    )


FIXED_MEDMNIST = "aabe837f6feb5b7b79d63e8c89692feb72410aa2ebc532e583af2a9fe5679c09"


def test_the_number_of_classes_of_each_set_is_published() -> None:
    expected = {"pathmnist": 9, "dermamnist": 7, "octmnist": 4, "pneumoniamnist": 2}
    expected |= {"retinamnist": 5, "breastmnist": 2, "bloodmnist": 8, "tissuemnist": 8}
    expected |= dict.fromkeys(("organamnist", "organcmnist", "organsmnist"), 11)
    assert {name: len(about["classes"]) for name, about in SETS.items()} == expected
    assert sum(SETS["pathmnist"]["counts"][0]) == 107180
    assert sum(SETS["tissuemnist"]["counts"][0]) == 236386
    assert sum(SETS["dermamnist"]["counts"][0]) == 10015


def test_medmnist_files_that_cannot_be_used(tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    several = np.zeros((20, 14), np.uint8)
    chest = npz(tmp_path / "chestmnist.npz", 2, (20, 20, 20), train_labels=several)
    with pytest.raises(LmdError, match="images of ChestMNIST have up to 14 labels"):
        make("medmnist", chest, out)
    with pytest.raises(LmdError, match="images of ChestMNIST have up to 14 labels"):
        make("medmnist", tmp_path, out, dataset="chestmnist")
    with pytest.raises(LmdError, match="contains volumes"):
        make("medmnist", npz(tmp_path / "organmnist3d.npz", 2, (9, 9, 9)), out)
    renamed = npz(tmp_path / "mine.npz", 2, (30, 9, 9))
    with pytest.raises(LmdError, match=r"not a known set: expected pathmnist.*with --dataset"):
        make("medmnist", renamed, out)
    with pytest.raises(LmdError, match=r"expected one .npz file, it has chestmnist.npz, mine.npz"):
        make("medmnist", tmp_path, out)
    with pytest.raises(LmdError, match=r"nowhere does not exist"):
        make("medmnist", tmp_path / "nowhere", out)
    with pytest.raises(LmdError, match="nothing is thinned without a factor"):
        make("medmnist", renamed, out, dataset="breastmnist", head_size=5)
    assert make("medmnist", renamed, out, dataset="breastmnist").path == out
    wrong = npz(tmp_path / "breastmnist.npz", 4, (30, 9, 9))
    with pytest.raises(LmdError, match=r"has the labels 0, 1, 2, 3; expected 0 to 1"):
        make("medmnist", wrong, tmp_path / "b.npz")
    short = npz(tmp_path / "octmnist.npz", 4, (30, 9, 9), val_images=None, val_labels=None)
    with pytest.raises(LmdError, match="lacks some of MedMNIST's train, val and test"):
        make("medmnist", short, tmp_path / "c.npz")
    absent = npz(tmp_path / "octmnist.npz", 4, (3, 9, 9), train_labels=np.arange(3)[:, None])
    with pytest.raises(LmdError, match="no training image of class 'normal'"):
        make("medmnist", absent, tmp_path / "d.npz")
