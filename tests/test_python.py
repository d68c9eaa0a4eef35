"""lmd from Python: the page's code as it stands, what is public, and what is printed."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicoms import write_dicom
from PIL import Image
from toys import ROOT, toy_images

import lmd
from lmd.runs.folder import Run

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the code of the page leaves, run in a folder with images."""
    folder = tmp_path_factory.mktemp("python")
    images = toy_images((14, 8, 6), size=24)
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        place = folder / "skin" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i}.png")
    shutil.copytree(folder / "skin" / "class2", folder / "new")
    (folder / "new" / "notes.txt").write_text("notes")
    Image.open(folder / "new" / "22.png").save(
        folder / "new" / "pages.tif", save_all=True, append_images=[Image.new("RGB", (9, 9))]
    )
    names: dict[str, Any] = {"folder": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMD_CACHE", str(folder / "cache"))
        for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(code, names)
        names["printed"] = repr(names["run"])
    return names


def test_the_page_runs_as_it_stands(said: dict[str, Any]) -> None:
    assert (said["folder"] / "out" / "predictions.csv").read_text().count("\n") == 8
    assert said["found"].labels == tuple(said["found"].labels)
    assert len(said["found"]) == 7


def test_a_folder_names_what_it_passes_over_and_which_frame_was_taken(said: dict[str, Any]) -> None:
    assert [Path(name).name for name in said["found"].passed_over] == ["notes.txt"]
    (note,) = said["found"].notes
    assert note == (
        "1 file has several frames or pages, and the first was taken: new/pages.tif (2)"
    )
    assert said["one"].notes == said["one"].passed_over == ()


def test_the_first_page_is_the_one_that_was_taken(said: dict[str, Any]) -> None:
    folder, model = said["folder"], said["model"]
    same = model.predict([folder / "new" / "pages.tif", folder / "new" / "22.png"])
    np.testing.assert_array_equal(same.probabilities[0], same.probabilities[1])


def test_metrics_are_those_of_the_record(said: dict[str, Any]) -> None:
    run: Run = said["run"]
    record = Run(said["folder"] / "runs" / "skin").record
    assert dict(record.metrics["test"]) == Run(said["folder"] / run.path).metrics
    assert {"auc", "balanced_accuracy", "bacc_tail"} <= record.metrics["test"].keys()


def test_representations_help(said: dict[str, Any]) -> None:
    assert re.fullmatch(
        r"<run runs/skin: LMD on skin, finished, balanced_accuracy \d\.\d{3} \(\d\.\d{3} to "
        r"\d\.\d{3}\), auc \d\.\d{3}( \(.*\))?>",
        said["printed"],
    )
    assert repr(said["model"]) == (
        "<model from runs/skin: LMD on resnet8 at 32 px, 3 classes: class0, class1, class2>"
    )
    first, *rows, last = repr(said["found"]).splitlines()
    assert first == "<prediction of 7 images"
    assert re.fullmatch(r"  new/22\.png: class\d \d\.\d{3}", rows[0])
    assert last == "  and 2 more>"
    assert repr(Run(said["folder"])) == (f"<run {said['folder']}: it has no readable record>")


def test_dicom_without_a_suffix_is_seen_in_a_folder(said: dict[str, Any], tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for name in ("IM0001", "1.2.840.10008.5"):
        write_dicom(tmp_path / name, grey)
    write_dicom(tmp_path / "several.dcm", np.stack([grey, grey[::-1], grey]))
    found = said["model"].predict(tmp_path)
    assert [Path(name).name for name in found.names] == [
        "1.2.840.10008.5", "IM0001", "several.dcm"
    ]  # fmt: skip
    np.testing.assert_array_equal(found.probabilities[0], found.probabilities[2])
    assert found.notes[0].endswith(f"{tmp_path / 'several.dcm'} (3)")


def test_grey_arrays_and_stacks(said: dict[str, Any]) -> None:
    model, grey = said["model"], np.arange(100, dtype=np.uint8).reshape(10, 10)
    three = np.repeat(grey[:, :, None], 3, axis=2)
    several = model.predict([grey, grey[:, :, None], three]).probabilities
    np.testing.assert_array_equal(several[0], several[1])
    np.testing.assert_array_equal(several[0], several[2])
    np.testing.assert_array_equal(
        several[:2], model.predict(np.stack([three, three])).probabilities
    )


def test_evaluate_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(lmd.LmdError, match="is not a run folder"):
        lmd.evaluate(tmp_path)


def test_dir_shows_what_is_public() -> None:
    public = [name for name in dir(lmd) if not name.startswith("_")]
    assert public == [
        "LmdError", "LongTailClassifier", "METHODS", "calibrate", "cross_validate", "evaluate",
        "load", "load_classifier", "train",
    ]  # fmt: skip
    assert all(getattr(lmd, name) is not None for name in public)
