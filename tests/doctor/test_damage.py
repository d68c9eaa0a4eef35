"""Whatever is broken in a data set, the doctor finds it and names the image."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from damage import (
    DAMAGES,
    WHOLE,
    Damage,
    nearly_same,
    npz_bytes,
    same_in_test,
)
from patients import Patient, make_folders, make_patient
from toys import ROOT

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.cache import decode
from lmd.data.scan import KINDS
from lmd.data.source import Columns
from lmd.data.sources import open_table
from lmd.data.splits import split
from lmd.data.walk import LOOP
from lmd.doctor.command import as_json, exit_code, write_page
from lmd.doctor.examine import Examination, examine


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    return make_patient(tmp_path_factory.mktemp("healthy") / "data")


@pytest.fixture
def patient(healthy: Patient, tmp_path: Path) -> Patient:
    shutil.copytree(healthy.root, tmp_path / "data")
    return Patient(tmp_path / "data", [dict(row) for row in healthy.rows])


def kinds(found: Examination) -> set[str]:
    return {each.kind for each in found.findings}


def names(found: Examination, kind: str) -> set[str]:
    return {found.scan.cases[i].name for f in found.findings if f.kind == kind for i in f.cases}


def test_a_healthy_set_has_notes_and_small_test_classes_alone(healthy: Patient) -> None:
    found = examine(healthy.manifest)
    assert kinds(found) == {"counts", "groups", "tiny_test"}
    assert exit_code(found) == 3
    assert len(found.scan.usable()) == len(found.looks) == 70


@pytest.mark.parametrize(
    ("damage", "kind"), [*DAMAGES, *WHOLE], ids=lambda x: getattr(x, "__name__", x)
)
def test_one_damage_is_found(patient: Patient, damage: Damage, kind: str) -> None:
    i = 17  # a training image of the second class
    name = damage(patient, i)
    found = examine(patient.save())
    assert kind in kinds(found)
    if name:
        assert name in names(found, kind)
    # What bars training is an error, and an error bars training.
    severities = {f.kind: f.severity for f in found.findings}
    opens = True
    try:
        decode(split(open_table(patient.manifest)), 8, Display(quiet=True))
    except Exception:
        opens = False
    copies = {"duplicate_in_parts", "conflicting_duplicates"}
    assert (exit_code(found) == 4) == (not opens or bool(copies & kinds(found))), severities
    assert ("refused" in severities) == (not opens)


def test_a_jpeg_without_its_end_mark_is_found_whether_it_decodes_or_not(patient: Patient) -> None:
    for i in range(0, 60, 2):
        patient.path(i).write_bytes(patient.path(i).read_bytes()[:-2])
    found = examine(patient.manifest)
    stripped = {patient.rows[i]["image"] for i in range(0, 60, 2)}
    assert names(found, "end_missing") | names(found, "truncated") == stripped
    assert not names(found, "end_missing") & names(found, "truncated")


def break_all(patient: Patient) -> dict[str, set[str]]:
    """Each damage on an image of its own; the images that should be found, by kind."""
    train = [i for i, row in enumerate(patient.rows) if row["split"] == "train"]
    by_turns = sorted(train, key=lambda i: (i % 14, i))  # classes share the damage
    expected: dict[str, set[str]] = {}
    for i, (damage, kind) in zip(by_turns, DAMAGES, strict=False):
        name = damage(patient, i)
        expected.setdefault(kind, set()).update({name} - {""})
    return expected


def test_all_damages_at_once_are_all_found(patient: Patient) -> None:
    expected = break_all(patient)
    found = examine(patient.save())
    assert set(expected) <= kinds(found)
    for kind, images in expected.items():
        assert images <= names(found, kind), kind


def test_the_cleaned_manifest_of_a_ruin_trains(patient: Patient, tmp_path: Path) -> None:
    from lmd.fit.train import train

    break_all(patient)
    found = examine(patient.save())
    cleaned = found.clean()
    fixed = tmp_path / "fixed.csv"
    cleaned.write(fixed)
    table = split(open_table(fixed, root=cleaned.root))
    clean, _, bad = decode(table, 16, Display(quiet=True))
    assert len(clean) == len(cleaned.cases)
    assert bad == table.skipped == ()
    assert len(cleaned.cases) + len(cleaned.removed) == len(found.looks)
    again = examine(fixed, columns=Columns(root=cleaned.root))
    left = {f.kind for f in again.findings if f.severity == "error"}
    assert not left
    assert not {"duplicate", "class_name", "near_duplicate_in_parts", "one_colour"} & kinds(again)
    run = train(
        fixed,
        method="ce",
        columns={"root": str(cleaned.root)},
        settings={
            "backbone": "resnet8",
            "weights": "none",
            "image_size": 16,
            "epochs": 1,
            "workers": 0,
        },
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    record = run.record
    assert record.status == "finished"
    assert sum(sum(n) for n in record.data.counts.values()) == len(cleaned.cases)


def test_a_near_copy_stays_with_the_copy_that_is_kept(patient: Patient, tmp_path: Path) -> None:
    kept = same_in_test(patient, 17)
    near = nearly_same(patient, 17)
    cleaned = examine(patient.save()).clean()
    cases = {case.name: case for case in cleaned.cases.values()}
    assert patient.rows[17]["image"] not in cases
    assert cases[near].group == cases[kept].group
    assert cases[near].part == cases[kept].part == "test"  # one in each: test keeps what it has


def test_near_copies_without_a_group_are_joined_in_the_written_file(
    patient: Patient, tmp_path: Path
) -> None:
    nearly_same(patient, 17)
    for row in (patient.rows[17], patient.rows[-1]):
        row["group"] = ""
        row["image"] = row["image"].rpartition(".")[0]  # as in the metadata of HAM10000
    cleaned = examine(patient.save()).clean()
    cleaned.write(tmp_path / "fixed.csv")
    table = open_table(tmp_path / "fixed.csv", root=cleaned.root)
    assert table.groups is not None
    first = patient.rows[17]["image"]
    place = table.ids.tolist().index(f"{first}.jpg")
    copy = table.ids.tolist().index(f"{patient.rows[-1]['image']}.jpg")
    assert table.groups[place] == table.groups[copy]


def test_folders_broken_in_all_ways(tmp_path: Path) -> None:
    root = make_folders(tmp_path)
    image = next((root / "nevus").iterdir())
    shutil.copy(image, root / "stray.jpg")
    (root / "empty").mkdir()
    shutil.move(image, image.with_suffix(".image"))
    (root / "nevus" / "link.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (root / "rare").mkdir()
    shutil.copy(
        root / "melanoma" / sorted(p.name for p in (root / "melanoma").iterdir())[0], root / "rare"
    )
    (root / "Keratosis ").mkdir()
    shutil.move(sorted((root / "keratosis").iterdir())[0], root / "Keratosis ")
    found = examine(root)
    wanted = {"stray_image", "empty_class_folder", "ignored_file", "missing_file", "too_few"}
    assert wanted | {"class_name", "conflicting_duplicates", "refused"} <= kinds(found)
    cleaned = found.clean()
    cleaned.write(tmp_path / "fixed.csv")
    table = split(open_table(tmp_path / "fixed.csv", root=cleaned.root))
    assert table.classes == ("actinic", "carcinoma", "keratosis", "melanoma", "nevus")
    # One nevus was renamed, one melanoma is also filed as "rare"; the keratosis came back.
    assert table.counts().tolist() == [14, 14, 14, 13, 13]
    decode(table, 8, Display(quiet=True))


def test_a_misspelt_part_folder_is_not_taken_for_a_class(tmp_path: Path) -> None:
    root = make_folders(tmp_path, parts=True)
    assert not {"part_folders", "unknown_split"} & kinds(examine(root))
    (root / "test").rename(root / "tset")
    found = examine(root)
    assert {"part_folders", "unknown_split", "absent_in_part"} <= kinds(found)
    assert set(found.counts) == {"nevus", "melanoma", "keratosis", "carcinoma", "actinic"}


def test_one_class_and_no_class(tmp_path: Path) -> None:
    root = make_folders(tmp_path)
    for folder in root.iterdir():
        if folder.name != "nevus":
            shutil.rmtree(folder)
    assert "one_class" in kinds(examine(root))
    shutil.rmtree(root / "nevus")
    assert {"source", "refused"} <= kinds(examine(root))


@pytest.mark.parametrize("how", ["folders", "names"])
def test_names_that_suggest_groups(tmp_path: Path, how: str) -> None:
    root = make_folders(tmp_path)
    assert "group_hint" not in kinds(examine(root))
    for folder in list(root.iterdir()):
        for k, image in enumerate(sorted(folder.iterdir())):
            patient = f"P{folder.name[:2]}{k // 2:03d}"
            name = f"{patient}/{k}.jpg" if how == "folders" else f"{patient}_{k % 2 + 1:02d}.jpg"
            (folder / name).parent.mkdir(exist_ok=True)
            image.rename(folder / name)
    found = examine(root)
    assert [f.severity for f in found.findings if f.kind == "group_hint"] == ["note"]


def test_arrays_whole_and_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(npz_bytes(damaged=False))
    found = examine(file)
    assert len(found.looks) == 24
    assert not any(f.severity == "error" for f in found.findings)
    file.write_bytes(npz_bytes(damaged=True))
    assert kinds(examine(file)) == {"source", "refused"}


@pytest.mark.skipif(os.name != "posix", reason="such names exist on POSIX alone")
def test_names_and_files_that_only_a_doctor_meets(tmp_path: Path) -> None:
    root = make_folders(tmp_path)
    first, second, third = sorted((root / "nevus").iterdir())[:3]
    try:
        first.rename(root / "nevus" / os.fsdecode(b"f\xfcr.jpg"))
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    second.rename(root / "nevus" / "back\\slash.jpg")
    third.rename(root / "nevus" / ' blank, comma "quote".jpg')
    os.mkfifo(root / "nevus" / "pipe.jpg")
    (root / " blank").mkdir()
    for image in sorted((root / "actinic").iterdir())[:5]:
        image.rename(root / " blank" / image.name)
    (root / "nevus" / "loop").symlink_to(root)
    found = examine(root)
    named = {each.kind: each.names for each in found.findings}
    assert named["special_file"] == ("nevus/pipe.jpg (a pipe)",)
    assert named["unlisted_folder"] == (f"nevus/loop ({LOOP})",)
    cleaned = found.clean()
    assert len(cleaned.removed) == 2
    cleaned.write(tmp_path / "fixed.csv")
    table = open_table(tmp_path / "fixed.csv", root=cleaned.root)
    assert len(table) == 68
    assert table.counts()[table.classes.index("blank")] == 5
    decode(split(table), 8, Display(quiet=True))
    json.dumps(as_json(found, cleaned), ensure_ascii=False).encode()
    write_page(found, tmp_path / "page.html", cleaned)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "image,label",
        "image,label\n",
        "a,b\n1,2\n",
        '"',
        "image,label\nx.jpg",
        "x" * 200_000,
        "\0",
    ],
)
def test_manifests_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.csv").write_text(text)
    found = examine(tmp_path / "data.csv")
    assert "refused" in kinds(found)
    assert exit_code(found) == 4
    with pytest.raises(LmdError, match="would remove every image"):
        found.clean()


def test_every_kind_is_provoked_here_and_explained() -> None:
    here = Path(__file__).read_text()
    provoked = Counter(kind for _, kind in [*DAMAGES, *WHOLE])
    page = (ROOT / "docs" / "doctor.md").read_text()
    for kind in KINDS:
        assert f"`{kind}`" in page, f"docs/doctor.md does not explain {kind}"
        assert kind in provoked or f'"{kind}"' in here or kind == "imbalance", kind


def test_the_column_of_patients_is_named_not_an_attribute_of_theirs(tmp_path: Path) -> None:
    root = make_folders(tmp_path)
    lines = ["image,label,PatientSex,lesion_id,PatientID,patient_age"]
    for i, path in enumerate(sorted(root.rglob("*.jpg"))):
        cells = (path.relative_to(root), path.parent.name, "mf"[i % 2], i // 2, i // 3, 40 + i // 4)
        lines.append(",".join(map(str, cells)))
    (root / "m.csv").write_text("\n".join(lines))
    (hint,) = (f for f in examine(root / "m.csv").findings if f.kind == "group_hint")
    assert hint.names == ("PatientID",)
    assert "So might be 'lesion_id'" in hint.text


def test_a_cleaned_manifest_keeps_odd_names_and_leaves_the_root_if_asked(tmp_path: Path) -> None:
    root = make_folders(tmp_path)
    first = sorted((root / "nevus").iterdir())[0]
    first.rename(first.with_name("Screenshot 0\u202fPM.jpg"))
    (root / "nevus" / "caf\u00e9\u00a01.jpg").write_bytes(
        sorted((root / "nevus").iterdir())[1].read_bytes()[:-1] + b"\xd9"
    )
    (tmp_path / "lists").mkdir()
    paths = sorted(root.rglob("*.jpg"))
    lines = [f"../{path.relative_to(tmp_path)},{path.parent.name}" for path in paths]
    (tmp_path / "lists" / "m.csv").write_text("\n".join(["image,label", *lines]))
    found = examine(tmp_path / "lists" / "m.csv", columns=Columns(allow_outside=True))
    cleaned = found.clean()
    assert not [change for change in cleaned.removed if "control character" in change.why]
    cleaned.write(tmp_path / "clean.csv")
    table = open_table(tmp_path / "clean.csv", root=cleaned.root)
    assert any("Screenshot 0\u202fPM" in name for name in table.ids)
