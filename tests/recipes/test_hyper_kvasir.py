"""Hyper-Kvasir: folders against the label file."""

import shutil
from pathlib import Path

import pytest
from downloads import PICTURE, TINY, kvasir, read, table_of

from lmd.base.errors import LmdError
from lmd.recipes import RECIPES, make

KVASIR = RECIPES["hyper-kvasir"].published


def test_the_whole_of_hyper_kvasir(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", KVASIR)
    result = make("hyper-kvasir", root, tmp_path / "kvasir.csv")
    counts = table_of(read(result.path))
    assert len(counts) == 23
    assert {name: sum(n) for name, n in counts.items()} == KVASIR
    assert counts["bbps-2-3"] == (918, 115, 115)
    assert counts["hemorrhoids"] == (4, 1, 1)
    notes = "\n".join(result.notes)
    assert "all 23 classes have the published counts, 10662 images" in notes
    assert "191.3 overall (1148 : 6), 229.5 in training (918 : 4)" in notes
    assert "does not name patients" in notes
    assert result.sha256 == FIXED_KVASIR
    # The tree alone says the same.
    (root / "labeled-images" / "image-labels.csv").unlink()
    assert make("hyper-kvasir", root, tmp_path / "tree.csv").sha256 == FIXED_KVASIR


FIXED_KVASIR = "5fd0d0b8955f81794b51fda67d04e529843bb047aba6e8124c2767fcbdf118e6"


def test_a_part_of_hyper_kvasir_is_named(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", TINY)
    shutil.rmtree(root / "labeled-images" / "upper-gi-tract" / "pathological-findings")
    out = tmp_path / "kvasir.csv"
    with pytest.raises(LmdError, match=r"6 of 68 images are not below .* and 3 more\)"):
        make("hyper-kvasir", root, out)
    make("hyper-kvasir", root, out, allow_missing_images=True)
    assert sum(table_of(read(out))["barretts"]) == 6
    (root / "labeled-images" / "image-labels.csv").unlink()
    with pytest.raises(LmdError, match=r"part of the data set \(bbps-2-3 30 of 1148, polyps 0 of"):
        make("hyper-kvasir", root, tmp_path / "tree.csv")
    made = make("hyper-kvasir", root, tmp_path / "tree.csv", allow_missing_images=True)
    assert set(table_of(read(made.path))) == {"bbps-2-3", "cecum", "pylorus"}


def test_labels_and_folders_of_hyper_kvasir_are_compared(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", TINY)
    path = root / "labeled-images" / "image-labels.csv"
    text = path.read_text()
    # Another word for a whole class is no contradiction.
    path.write_text(text.replace(",barretts,", ",barrett's,"))
    made = make("hyper-kvasir", root, tmp_path / "a.csv")
    assert any("other names than the folders: barrett's is barretts" in n for n in made.notes)
    assert "barretts" in table_of(read(made.path))
    path.write_text(text.replace(",cecum,", ",pylorus,", 1))
    with pytest.raises(LmdError, match=r"disagree on 1 images.*is 'pylorus' there"):
        make("hyper-kvasir", root, tmp_path / "b.csv")
    path.write_text("\n".join(text.splitlines()[:-2]) + "\n")
    made = make("hyper-kvasir", root, tmp_path / "c.csv")
    assert any("2 images are not in image-labels.csv" in note for note in made.notes)
    assert len(read(made.path)) == 68
    path.write_text(text.replace("Finding", "Label"))
    with pytest.raises(LmdError, match="has no column Finding; its columns are Video file, Organ"):
        make("hyper-kvasir", root, tmp_path / "d.csv")


def test_a_folder_that_is_not_hyper_kvasir(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(LmdError, match=r"looked for labeled-images/\{lower-gi-tract,upper"):
        make("hyper-kvasir", tmp_path / "x", tmp_path / "a.csv")
    stray = tmp_path / "x" / "lower-gi-tract" / "a.jpg"
    stray.parent.mkdir()
    stray.write_bytes(PICTURE)
    with pytest.raises(LmdError, match=r"is not in .*CATEGORY/FINDING"):
        make("hyper-kvasir", tmp_path / "x", tmp_path / "a.csv")
