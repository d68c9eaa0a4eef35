"""ISIC-Archive-LT: old and new columns of the metadata."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from downloads import leaks, read, table_of, write_csv, write_images

from lmd.base.errors import LmdError
from lmd.data.sources import open_table
from lmd.data.splits import check_no_leak
from lmd.recipes import RECIPES, make
from lmd.recipes.isic_archive import diagnosis

ARCHIVE = RECIPES["isic-archive-lt"].published
PLAIN = {code: names[0] for code, names in RECIPES["isic-archive-lt"].details.items()}
NEW = {
    "NV": ("Benign", "Benign melanocytic proliferations", "Nevus", "Nevus, NOS, Compound"),
    "MEL": (
        "Malignant",
        "Malignant melanocytic proliferations (Melanoma)",
        "Melanoma Invasive",
        "",
    ),
    "VASC": ("Benign", "Benign soft tissue proliferations - Vascular", "Angiokeratoma", ""),
    "AN": ("Benign", "Benign soft tissue proliferations - Vascular", "Hemangioma", ""),
    "LK": ("Benign", "Benign epidermal proliferations", "Lichen planus like keratosis", ""),
}


def archive_sizes(scale: int) -> dict[str, int]:
    return {name: max(count // scale, 8) for name, count in ARCHIVE.items()}


def test_the_fourteen_diagnoses_are_mapped() -> None:
    assert len(set(PLAIN.values())) == len(ARCHIVE) == 14
    for code, levels in NEW.items():
        row = {f"diagnosis_{i + 1}": level for i, level in enumerate(levels)}
        assert diagnosis(row, "metadata") == code
        assert diagnosis({"diagnosis": PLAIN[code].capitalize(), **row}, "metadata") == code
    metastasis = {"diagnosis_2": NEW["MEL"][1], "diagnosis_3": "Melanoma metastasis"}
    assert diagnosis(metastasis, "metadata") == "Melanoma metastasis"
    assert diagnosis({"isic_id": "ISIC_1"}, "lentigo_simplex-metadata") == "LS"
    assert diagnosis({"diagnosis": ""}, "nevus") == ""


def archive_new(root: Path, sizes: Mapping[str, int]) -> list[str]:
    """One export with the new columns; lesions of two images, each patient with two lesions."""
    rows: list[tuple[str, ...]] = []
    for code, n in sizes.items():
        for i in range(n):
            levels = NEW.get(code, ("", "", PLAIN[code].capitalize(), ""))
            lesion, patient = f"IL_{code}{i // 2}", f"IP_{code}{i // 4}"
            rows.append((f"ISIC_{len(rows):07d}", *levels, lesion, patient, "dermoscopic"))
    scar = ("ISIC_8000000", "Benign", "x", "Scar", "", "", "", "dermoscopic")
    tile = ("ISIC_9000000", *NEW["NV"], "", "", "TBP tile: close-up")
    header = ("isic_id", *(f"diagnosis_{i}" for i in range(1, 5)), "lesion_id", "patient_id")
    write_csv(root / "metadata.csv", (*header, "image_type"), [*rows, scar, tile])
    write_csv(root / "licenses.csv", ("licence", "text"), [("CC-0", "…")])
    names = [row[0] for row in rows]
    write_images(root, names)
    return names


def test_the_archive_with_its_new_columns(tmp_path: Path) -> None:
    sizes = archive_sizes(100)
    archive_new(tmp_path / "archive", sizes)
    result = make("isic-archive-lt", tmp_path / "archive", tmp_path / "a.csv")
    rows = read(result.path)
    assert {name: sum(n) for name, n in table_of(rows).items()} == sizes
    assert leaks(rows) == []
    assert table_of(rows)["NV"] == pytest.approx((90, 13, 25), abs=2)
    notes = "\n".join(result.notes)
    assert "2 rows are left out (" in notes
    assert "diagnosis Scar: 1" in notes
    assert "image type TBP tile: close-up: 1" in notes
    assert "NV 128 (published 12875)" in notes
    assert "not read, no column isic_id or name or image_name: licenses.csv" in notes
    check_no_leak(open_table(result.path, root=tmp_path / "archive"))


def test_the_archive_by_patient_or_by_image(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    names = archive_new(root, {name: max(n, 16) for name, n in archive_sizes(100).items()})
    patient = {row["isic_id"]: row["patient_id"] for row in read(root / "metadata.csv")}
    parts: dict[str, dict[str, set[str]]] = {}
    for group in ("patient", "lesion", "none"):
        make("isic-archive-lt", root, tmp_path / f"{group}.csv", group=group)
        parts[group] = defaultdict(set)
        for row in read(tmp_path / f"{group}.csv"):
            parts[group][patient[Path(row["image"]).stem]].add(row["split"])
    assert max(map(len, parts["patient"].values())) == 1
    assert max(map(len, parts["lesion"].values())) > 1
    assert "group" not in read(tmp_path / "none.csv")[0]
    assert len(names) == len(read(tmp_path / "none.csv"))
    with pytest.raises(LmdError, match="expected lesion, patient or none"):
        make("isic-archive-lt", root, tmp_path / "x.csv", group="eye")


def test_the_archive_with_its_old_columns_one_file_for_each_diagnosis(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    number = 0
    header = ("_id", "name", "meta.clinical.diagnosis", "meta.acquisition.image_type")
    for code, n in archive_sizes(200).items():
        rows = []
        for _ in range(n):
            rows.append((f"5436{number}", f"ISIC_{number:07d}", PLAIN[code], "dermoscopic"))
            number += 1
        write_csv(root / f"{PLAIN[code]}.csv", header, rows)
        write_images(root / "images" / code, [row[1] for row in rows])
    result = make("isic-archive-lt", root, tmp_path / "a.csv")
    rows = read(result.path)
    assert list(rows[0]) == ["image", "label", "split"]
    assert len(rows) == number
    assert table_of(rows)["AMP"] == (5, 1, 2)
    assert any("the metadata has no lesion" in note for note in result.notes)
    # The same images with the rows of all files in one give the same manifest.
    merged = [row for path in root.glob("*.csv") for row in read(path)]
    for path in root.glob("*.csv"):
        path.unlink()
    write_csv(root / "all.csv", header, [list(row.values()) for row in reversed(merged)])
    assert make("isic-archive-lt", root, tmp_path / "b.csv").sha256 == result.sha256
    assert result.sha256 == FIXED_ARCHIVE


FIXED_ARCHIVE = "9f8d2f10e6970e3f2068505712d15c904a52e4d27814edf9ff642047ccbf8318"


def test_published_counts_are_drawn_where_the_archive_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = archive_sizes(100)
    archive_new(tmp_path / "archive", sizes)
    monkeypatch.setitem(ARCHIVE, "NV", 100)
    monkeypatch.setitem(ARCHIVE, "AMP", 6)
    out = tmp_path / "a.csv"
    make("isic-archive-lt", tmp_path / "archive", out, published_counts=True)
    found = {name: sum(n) for name, n in table_of(read(out)).items()}
    assert found == {**sizes, "NV": 100, "AMP": 6}


def test_metadata_of_the_archive_that_are_not_right(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    root.mkdir()
    with pytest.raises(LmdError, match=r"contains no metadata .*found no .csv file"):
        make("isic-archive-lt", root, tmp_path / "a.csv")
    write_csv(root / "metadata.csv", ("isic_id", "diagnosis"), [("ISIC_1", "scar")])
    with pytest.raises(LmdError, match="none of 1 rows has one of the 14 diagnoses"):
        make("isic-archive-lt", root, tmp_path / "a.csv")
    rows = [("ISIC_1", "nevus"), ("ISIC_2", "melanoma"), ("ISIC_1", "melanoma")]
    write_csv(root / "metadata.csv", ("isic_id", "diagnosis"), rows)
    with pytest.raises(LmdError, match="'ISIC_1' is NV in one row of the metadata and MEL in"):
        make("isic-archive-lt", root, tmp_path / "a.csv")
    write_csv(root / "metadata.csv", ("isic_id", "diagnosis"), rows[:2])
    with pytest.raises(LmdError, match=r"2 of 2 images are not below .*\(ISIC_1, ISIC_2\)"):
        make("isic-archive-lt", root, tmp_path / "a.csv")
