"""The scan of a source: training and the doctor read the same one and cannot disagree."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import DAMAGES, WHOLE, Damage, npz_bytes
from patients import Patient, make_folders, make_patient

from lmd.base.errors import LmdError
from lmd.data.scan import Finding
from lmd.data.sources import open_table, scan_source
from lmd.doctor.examine import examine

# Errors of the source itself; others are about pixels, or about how the images are split.
SOURCE = {
    "source",
    "encoding",
    "columns",
    "outside_root",
    "missing_file",
    "ambiguous_file",
    "unlabelled",
    "unknown_split",
    "part_folders",
    "conflicting_rows",
    "stray_image",
    "empty_class_folder",
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    return make_patient(tmp_path_factory.mktemp("healthy") / "data")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trees")
    make_folders(root / "plain")
    make_folders(root / "parts", parts=True)
    return root


def source_errors(source: Path) -> list[Finding]:
    found = examine(source).findings
    return [each for each in found if each.severity == "error" and each.kind in SOURCE]


def refusal(source: Path, **options: bool) -> str:
    """What ``open_table`` says against a source; nothing if it opens."""
    try:
        open_table(source, **options)
    except LmdError as error:
        return str(error)
    return ""


def check_agreement(source: Path) -> None:
    errors, words = source_errors(source), refusal(source)
    assert bool(errors) == bool(words), (errors, words)
    if errors:
        first = errors[0].text.removesuffix(".")
        assert first[1:] in words  # without its capital


@pytest.mark.parametrize(
    ("damage", "kind"), [*DAMAGES, *WHOLE], ids=lambda x: getattr(x, "__name__", x)
)
def test_the_doctor_finds_an_error_where_training_refuses(
    healthy: Patient, tmp_path: Path, damage: Damage, kind: str
) -> None:
    shutil.copytree(healthy.root, tmp_path / "data")
    patient = Patient(tmp_path / "data", [dict(row) for row in healthy.rows])
    damage(patient, 17)
    source = patient.save()
    check_agreement(source)
    assert bool(refusal(source)) == (kind in SOURCE)


def stray(root: Path) -> None:
    shutil.copy(next((root / "nevus").iterdir()), root / "stray.jpg")


def empty_class(root: Path) -> None:
    (root / "empty").mkdir()


def no_class(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def not_utf8(root: Path) -> None:
    image = next((root / "nevus").iterdir())
    try:
        image.rename(image.with_name(os.fsdecode(b"\xff.jpg")))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")


def other_suffix(root: Path) -> None:
    image = next((root / "nevus").iterdir())
    image.rename(image.with_suffix(".image"))


def broken_link(root: Path) -> None:
    (root / "nevus" / "link.jpg").symlink_to(root / "nowhere.jpg")


FOLDER_DAMAGES = {
    stray: "stray_image",
    empty_class: "empty_class_folder",
    no_class: "source",
    not_utf8: "encoding",
    other_suffix: "",
}


@pytest.mark.parametrize(("damage", "kind"), FOLDER_DAMAGES.items())
def test_the_same_holds_for_folders(
    trees: Path, tmp_path: Path, damage: Callable[[Path], None], kind: str
) -> None:
    root = shutil.copytree(trees / "plain" / "data", tmp_path / "data")
    check_agreement(root)
    assert not refusal(root)
    damage(root)
    check_agreement(root)
    assert [each.kind for each in source_errors(root)] == ([kind] if kind else [])


def test_a_broken_link_opens_and_is_named_when_it_is_read(trees: Path, tmp_path: Path) -> None:
    root = shutil.copytree(trees / "plain" / "data", tmp_path / "data")
    broken_link(root)
    assert not refusal(root)
    (missing,) = source_errors(root)  # found by looking at the file, as training would
    assert missing.kind == "missing_file"
    assert not [each for each in scan_source(root).findings if each.severity == "error"]


def test_part_folders_that_are_misspelt_or_without_classes(trees: Path, tmp_path: Path) -> None:
    root = shutil.copytree(trees / "parts" / "data", tmp_path / "data")
    check_agreement(root)
    assert not refusal(root)
    (root / "test").rename(root / "tset")
    check_agreement(root)
    assert "tset is not the name of a part" in refusal(root, skip_bad=True)
    shutil.rmtree(root / "tset")
    (root / "test").mkdir()
    check_agreement(root)
    assert "test has no class folders" in refusal(root)


def test_classes_named_like_parts_are_a_warning(trees: Path, tmp_path: Path) -> None:
    root = shutil.copytree(trees / "plain" / "data", tmp_path / "data")
    (root / "nevus").rename(root / "train")
    (root / "melanoma").rename(root / "test")
    check_agreement(root)
    found = {each.kind: each.severity for each in examine(root).findings}
    assert found["part_folders"] == "warning"
    assert "train" in open_table(root).classes


def test_the_same_holds_for_arrays(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    for damaged in (False, True):
        file.write_bytes(npz_bytes(damaged))
        check_agreement(file)
        assert bool(refusal(file)) == damaged
    splits = ["train", "train", "val", "test", "", "tset"]
    images = np.random.default_rng(0).integers(0, 255, (6, 20, 20, 3), np.uint8)
    np.savez(file, images=images, labels=np.arange(6) % 2, splits=splits)
    check_agreement(file)
    scan = scan_source(file)
    assert [case.fault for case in scan.cases] == [""] * 4 + ["unknown_split"] * 2
    assert "2 entries of splits are not the name of a part" in refusal(file, skip_bad=True)


def test_the_synthetic_set_has_no_errors() -> None:
    scan = scan_source("synthetic")
    assert scan.findings == []
    assert scan.table().ids.tolist() == [case.name for case in scan.cases]


def test_every_problem_of_a_manifest_is_found_at_once(healthy: Patient, tmp_path: Path) -> None:
    lines = ["image,label,split", "gone.jpg,a,train", f"{healthy.rows[0]['image']},,train"]
    lines += [f"{healthy.rows[1]['image']},a,dev", "../x.jpg,b,train"]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    scan = scan_source(tmp_path / "data.csv")
    assert {each.kind for each in scan.findings} >= {"outside_root", "missing_file", "unlabelled"}
    assert len(scan.cases) == 4
    assert scan.usable() == []
