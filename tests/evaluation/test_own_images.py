"""`lmd evaluate RUN --data OTHER` refuses what the run was trained on, and nothing else."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explained import LABELS, SETTINGS, skin
from PIL import Image

import lmd
from lmd.base.errors import LmdError
from lmd.crossval.folds import write_pooled
from lmd.crossval.record import Final
from lmd.runs.folder import Run

ONE_EPOCH = SETTINGS | {"epochs": 1}


def write_folder(root: Path, start: int = 0) -> Path:
    """Twelve images of each of three classes; the names do not depend on ``start``."""
    for label, name in zip(LABELS, "abc", strict=True):
        (root / name).mkdir(parents=True)
        for i, pixels in enumerate(skin(label, 12, start)):
            Image.fromarray(pixels).save(root / name / f"{name}{i}.png")
    return root


def trained(data: Path | str, out: Path, **changes: Any) -> Run:
    settings = ONE_EPOCH | changes.pop("settings", {})
    return lmd.train(data, method="ce", settings=settings, out=out, quiet=True, **changes)


def evaluated(run: Run, data: Path | str, out: Path, **options: Any) -> Run:
    return lmd.evaluate(run, data, out=out, resamples=20, quiet=True, **options)


def listed(root: Path, name: str, files: list[str]) -> Path:
    """A manifest beside the folder ``root``, of some of its files."""
    lines = [f"{root.name}/{file},{file[0]}" for file in sorted(files)]
    (root.parent / name).write_text("\n".join(["image,label", *lines]))
    return root.parent / name


def all_files(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*.png")]


def test_training_images_are_refused_whatever_lists_them(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "skin")
    run = trained(root, tmp_path / "run")
    tested = run.read_predictions().parts["test"].ids.tolist()
    with pytest.raises(LmdError, match=r"was trained on .* of these images"):
        evaluated(run, listed(root, "all.csv", all_files(root)), tmp_path / "out")
    made = evaluated(run, listed(root, "test.csv", tested), tmp_path / "out").record
    assert any("have the name of a validation or test image" in note for note in made.notes)


def test_images_left_out_of_training_do_not_hide_the_others(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "skin")
    whole = listed(root, "all.csv", all_files(root))
    (root / "a" / "broken.png").write_bytes(b"no image")
    run = trained(root, tmp_path / "run", skip_bad=True)
    assert len(run.record.data.skipped) == 1
    counts = run.record.data.counts["train"]
    with pytest.raises(LmdError, match=rf"was trained on {sum(counts)} of these images"):
        evaluated(run, whole, tmp_path / "out")
    shutil.copytree(root, tmp_path / "copy")
    with pytest.raises(LmdError, match=r"was trained on .*copy;"):
        evaluated(run, tmp_path / "copy", tmp_path / "out", skip_bad=True)


@pytest.mark.parametrize("final", ["average", "refit"])
def test_the_training_images_of_all_folds_are_refused(tmp_path: Path, final: Final) -> None:
    root = write_folder(tmp_path / "skin")
    names = ["fold-1", "fold-2"]
    for i, name in enumerate(names, start=1):
        trained(root, tmp_path / "cv" / name, settings={"fold": [i, 2]})
    if final == "refit":
        trained(root, tmp_path / "cv" / "final", settings={"fold": [0, 2]})
    run = write_pooled(tmp_path / "cv", names, final, (), ("lmd",))
    whole = listed(root, "all.csv", all_files(root))
    with pytest.raises(LmdError, match=r"cv was trained on \d+ of these images"):
        evaluated(run, whole, tmp_path / "out")
    shutil.copytree(root, tmp_path / "copy")
    with pytest.raises(LmdError, match=r"cv was trained on .*copy;"):
        evaluated(run, tmp_path / "copy", tmp_path / "out")
    evaluated(run, write_folder(tmp_path / "clinic", 500), tmp_path / "out")


def test_data_of_the_same_name_elsewhere_is_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative name says nothing: the content does."""
    write_folder(tmp_path / "home" / "skin")
    write_folder(tmp_path / "clinic" / "skin", 500)
    monkeypatch.chdir(tmp_path / "home")
    run = trained("skin", tmp_path / "run")
    with pytest.raises(LmdError, match="run was trained on skin;"):
        evaluated(run, "skin", tmp_path / "out")
    shutil.copytree("skin", tmp_path / "copy")
    with pytest.raises(LmdError, match=r"run was trained on .*copy;"):
        evaluated(run, tmp_path / "copy", tmp_path / "out")
    monkeypatch.chdir(tmp_path / "clinic")
    made = evaluated(run, "skin", tmp_path / "out")
    assert sum(made.record.data.counts["test"]) == 36


def test_a_file_of_the_same_name_elsewhere_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, start in (("home", 0), ("clinic", 500)):
        (tmp_path / place).mkdir()
        images = np.concatenate([skin(label, 12, start) for label in LABELS])
        np.savez(tmp_path / place / "skin.npz", images=images, labels=np.repeat(np.arange(3), 12))
    monkeypatch.chdir(tmp_path / "home")
    run = trained("skin.npz", tmp_path / "run")
    monkeypatch.chdir(tmp_path / "clinic")
    evaluated(run, "skin.npz", tmp_path / "out")
    shutil.copy(tmp_path / "home" / "skin.npz", "again.npz")
    with pytest.raises(LmdError, match=r"run was trained on again\.npz;"):
        evaluated(run, "again.npz", tmp_path / "second")
