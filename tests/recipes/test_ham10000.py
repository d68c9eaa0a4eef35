"""HAM10000: its natural tail and HAM10000-LT."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from downloads import PARTS, leaks, read, table_of, write_csv, write_images

from lmd.base.errors import LmdError
from lmd.recipes import RECIPES, make

HAM = RECIPES["ham10000"].published


def ham(root: Path, scale: int = 10) -> Path:
    """One to three images for each lesion, in the two folders of the download."""
    rows = []
    for dx, count in HAM.items():
        for i in range(count // scale + 24):
            image = f"ISIC_{len(rows) + 24306:07d}"
            rows.append((f"HAM_{dx}{i * 2 // 3}", image, dx, "histo", 50.0, "male", "back"))
    header = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization")
    write_csv(root / "HAM10000_metadata.csv", header, rows)
    half = len(rows) // 2
    write_images(root / "HAM10000_images_part_1", [row[1] for row in rows[:half]])
    write_images(root / "HAM10000_images_part_2", [row[1] for row in rows[half:]])
    return root


def test_ham10000_with_its_natural_tail(tmp_path: Path) -> None:
    root, out = ham(tmp_path / "ham"), tmp_path / "made" / "ham.csv"
    result = make("ham10000", root, out)
    rows = read(result.path)
    assert leaks(rows) == []
    assert table_of(rows)["nv"] == pytest.approx((486, 69, 139), abs=2)
    assert rows[0]["image"] == "HAM10000_images_part_1/ISIC_0024306.jpg"
    assert result.command == f"lmd train {out} --root {root}"
    assert result.sha256 == FIXED_HAM[0]


FIXED_HAM = (
    "560b76c9c585561e5e843ad1bd10da82994c9ae901f640c61ec17ec341fe0b74",
    "5d60773f4dab989c712bc8728727c119dbf648330d0c0a136b9a644a3855763b",
)


def test_ham10000_lt_trains_on_a_pareto_tail_and_tests_on_all_the_rest(tmp_path: Path) -> None:
    root = ham(tmp_path / "ham")
    result = make("ham10000", root, tmp_path / "lt.csv", factor=25, head_size=100)
    rows = read(result.path)
    assert leaks(rows) == []
    assert len(rows) == sum(n // 10 + 24 for n in HAM.values())
    # 100 · 25^(-c / 6)
    training = [table_of(rows)[dx][0] for dx in HAM]
    assert training == [100, 58, 34, 20, 12, 7, 4]
    lesions = {
        part: {row["group"] for row in rows if row["label"] == "nv" and row["split"] == part}
        for part in PARTS
    }
    rest = len(lesions["validation"]) + len(lesions["test"])
    assert len(lesions["validation"]) == pytest.approx(0.1 * rest, abs=0.5)
    assert result.sha256 == FIXED_HAM[1]
    many = make(
        "ham10000", root, tmp_path / "v.csv", factor=25, head_size=100, validation_share=0.5
    )
    assert table_of(read(many.path))["nv"][1] == pytest.approx(297, abs=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_size": 100}, "need a factor: set --factor"),
        ({"factor": 1e6}, "ask for 200 training images of class 'mel', which has 135"),
        ({"factor": 1, "head_size": 35}, "leave 0 lesions of class 'df'"),
        ({"factor": 10, "head_size": 50, "validation_share": 1.5}, "validation_share is 1.5"),
        ({"shape": "official"}, "unknown option '--shape'"),
    ],
)
def test_options_of_ham10000_that_cannot_be(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LmdError, match=message):
        make("ham10000", ham(tmp_path / "ham"), tmp_path / "lt.csv", **options)


def test_metadata_of_ham10000_that_are_not_right(tmp_path: Path) -> None:
    root = tmp_path / "ham"
    header = ("lesion_id", "image_id", "dx")
    root.mkdir()
    with pytest.raises(LmdError, match=r"no HAM10000_metadata.csv or HAM10000_metadata.tab or"):
        make("ham10000", root, tmp_path / "a.csv")
    path = write_csv(root / "HAM10000_metadata.csv", header[:2], [("L1", "ISIC_1")])
    with pytest.raises(LmdError, match="has no column dx; its columns are lesion_id, image_id"):
        make("ham10000", root, tmp_path / "a.csv")
    write_csv(path, header, [("L1", "ISIC_1", "wart")])
    with pytest.raises(LmdError, match="has dx 'wart'; expected one of nv, mel"):
        make("ham10000", root, tmp_path / "a.csv")
    write_csv(path, header, [("L1", "ISIC_1", "nv"), ("L1", "ISIC_2", "mel")])
    with pytest.raises(LmdError, match=r"2 of 2 images are not below"):
        make("ham10000", root, tmp_path / "a.csv")
    with pytest.raises(LmdError, match="1 lesions have more than one dx, for example 'L1'"):
        make("ham10000", root, tmp_path / "a.csv", allow_missing_images=True)


def test_a_second_copy_of_an_image_does_not_matter_in_an_unknown_folder(tmp_path: Path) -> None:
    root = ham(tmp_path / "ham")
    write_images(root / "copies", ["ISIC_0024306"])
    make("ham10000", root, tmp_path / "a.csv")
    (root / "HAM10000_images_part_1" / "ISIC_0024306.jpg").unlink()
    write_images(root / "more", ["ISIC_0024306"])
    with pytest.raises(LmdError, match=r"'ISIC_0024306' may be any of .*copies.* .*more.*keep one"):
        make("ham10000", root, tmp_path / "b.csv")


def test_the_real_ham10000(shared: Path, tmp_path: Path) -> None:
    root = shared / "data/ham10000"
    natural = make("ham10000", root, tmp_path / "ham.csv")
    rows = read(natural.path)
    assert len(rows) == 10015
    assert len({row["group"] for row in rows}) == 7470
    assert leaks(rows) == []
    assert any("published counts, 10015 images" in note for note in natural.notes)
    make("ham10000", root, tmp_path / "lt.csv", factor=100)
    rows = read(tmp_path / "lt.csv")
    counts = table_of(rows)
    assert leaks(rows) == []
    assert [counts[dx][0] for dx in HAM] == [2000, 928, 431, 200, 93, 43, 20]
    assert len(rows) == 10015
    lesions = Counter(
        (label, part)
        for label, part, _ in {(row["label"], row["split"], row["group"]) for row in rows}
    )
    for dx in HAM:
        rest = lesions[dx, "validation"] + lesions[dx, "test"]
        assert lesions[dx, "validation"] == pytest.approx(rest / 10, abs=0.5)
        assert lesions[dx, "test"] >= 50
