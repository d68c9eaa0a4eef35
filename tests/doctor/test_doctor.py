"""`lmd data doctor` from the outside: what it prints, writes and returns."""

import json
import re
from pathlib import Path

import pytest
from damage import cut_in_half, same_in_test, tiny, upper_case
from patients import Patient, make_patient
from typer.testing import CliRunner, Result

from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.data.scan import KINDS
from lmd.data.sources import open_table


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return make_patient(tmp_path / "data")


def doctor(*words: object) -> Result:
    return CliRunner().invoke(app, ["data", "doctor", *map(str, words)])


def test_exit_codes_and_words(patient: Patient) -> None:
    fine = doctor(patient.manifest)
    assert fine.exit_code == 3
    assert "70 images examined: 0 errors, 1 warning, 2 notes." in fine.output
    name = cut_in_half(patient, 3)
    broken = doctor(patient.save())
    assert broken.exit_code == 4
    assert "error: Truncated files [truncated]" in broken.output
    assert f"line 5: {name} (train)" in broken.output
    assert isinstance(doctor("nowhere.csv").exception, LmdError)


def test_notes_alone_are_exit_code_0(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (300, 20, 20, 3), np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.repeat([0, 1], [280, 20]) % 2)
    result = doctor(tmp_path / "data.npz", "--split", "0.2,0.1,0.7")
    assert "Long tail" in result.output
    assert result.exit_code == 3  # 14 test images of class 1
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(300) % 2)
    assert doctor(tmp_path / "data.npz", "--split", "0.2,0.1,0.7").exit_code == 0


def test_fix_json_and_page(patient: Patient, tmp_path: Path) -> None:
    cut = cut_in_half(patient, 3)
    upper_case(patient, 4)
    copy = same_in_test(patient, 5)
    small = tiny(patient, 6)
    patient.rows[7]["group"] = "<script>alert(1)</script>"
    fix, page, listed = (tmp_path / name for name in ("clean.csv", "page.html", "found.json"))
    result = doctor(patient.save(), "--fix", fix, "--html", page, "--json", listed)
    assert result.exit_code == 4
    assert f"lmd train {fix} --root {patient.root}" in result.output
    table = open_table(fix, root=patient.root)
    ids = table.ids.tolist()
    assert cut not in ids
    assert copy in ids  # the one in test stays
    assert patient.rows[5]["image"] not in ids
    assert small in ids
    assert "NEVUS" not in table.classes
    found = json.loads(listed.read_text())
    assert found["exit_code"] == 4
    assert {each["kind"] for each in found["findings"]} <= set(KINDS)
    tiny_one = next(each for each in found["findings"] if each["kind"] == "tiny")
    assert tiny_one["images"] == [f"line 8: {small} (train)"]
    assert len(found["fix"]["removed"]) == 2
    html = page.read_text()
    assert not re.search(r"""(?:src|href)=["'](?!data:image/jpeg;base64,|#)""", html)
    assert "<script>alert" not in html
    assert html.count("data:image/jpeg;base64,") >= 3
    assert len(page.read_bytes()) < 400_000


def test_fix_does_not_replace_the_data(patient: Patient, tmp_path: Path) -> None:
    before = patient.manifest.read_bytes()
    refused = doctor(patient.manifest, "--fix", patient.manifest).exception
    assert "the data set itself" in str(refused)
    assert patient.manifest.read_bytes() == before
    assert "must end in .csv" in str(
        doctor(patient.manifest, "--fix", tmp_path / "x.txt").exception
    )


def test_fix_does_not_hide_patients(patient: Patient, tmp_path: Path) -> None:
    for i, row in enumerate(patient.rows):
        row["patient_id"] = row.pop("group")
        row["note"] = f"note {i}"
    patient.rows[1]["patient_id"] = patient.rows[0]["patient_id"]
    patient.columns = ["image", "label", "split", "patient_id", "note"]
    fix = tmp_path / "clean.csv"
    refused = doctor(patient.save(), "--fix", fix)
    assert "clean.csv was not written" in str(refused.exception)
    assert "patient_id" in str(refused.exception)
    assert not fix.exists()
    assert doctor(patient.manifest, "--fix", fix, "--group-column", "patient_id").exit_code == 3
    header, first = fix.read_text().splitlines()[:2]
    assert header == "image,label,group,split,note"
    assert first.endswith(",note 0")
    assert doctor(patient.manifest, "--fix", fix, "--group-column", "").exit_code == 3
    assert fix.read_text().splitlines()[0] == "image,label,split,patient_id,note"


def test_a_misspelt_data_set_is_told_although_the_file_to_write_exists(tmp_path: Path) -> None:
    (tmp_path / "clean.csv").write_text("image,label\n")
    refused = doctor(tmp_path / "typo", "--fix", tmp_path / "clean.csv").exception
    assert "does not exist" in str(refused)


@pytest.mark.parametrize("words", ["7:3", "a:b:c", "0:1:1", "7:-1:2", ""])
def test_ratios_that_are_none(words: str) -> None:
    refused = doctor("synthetic", "--split", words).exception
    assert "must be three ratios for train, validation and test, such as 7:1:2" in str(refused)
