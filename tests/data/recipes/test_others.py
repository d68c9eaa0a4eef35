"""The recipes for Hyper-Kvasir and MedMNIST, the written file, and `lmd data`."""

import csv
import hashlib
import io
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.cli.data import data_app
from lmd.data.recipes import RECIPES, make
from lmd.data.recipes.hyper_kvasir import PUBLISHED as KVASIR
from lmd.data.recipes.medmnist import KNOWN
from lmd.data.sources import open_table

PARTS = ("train", "validation", "test")
CATEGORY = {
    "bbps-2-3": ("lower", "quality-of-mucosal-views"),
    "cecum": ("lower", "anatomical-landmarks"),
    "pylorus": ("upper", "anatomical-landmarks"),
    "barretts": ("upper", "pathological-findings"),
}


def _picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (180, 120, 100)).save(file, "JPEG")
    return file.getvalue()


PICTURE = _picture()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table_of(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[int, ...]]:
    found = Counter((row["label"], row["split"]) for row in rows)
    return {c: tuple(found[c, part] for part in PARTS) for c in sorted({k[0] for k in found})}


# --- Hyper-Kvasir ---------------------------------------------------------------------------------

TINY = {"bbps-2-3": 30, "cecum": 20, "pylorus": 12, "barretts": 6}


def kvasir(root: Path, counts: Mapping[str, int], *, labels: bool = True) -> Path:
    """The layout of the archive of labelled images; the names are as random as real ones."""
    rows = []
    for finding, n in counts.items():
        tract, category = CATEGORY.get(finding, ("lower", "pathological-findings"))
        folder = root / "labeled-images" / f"{tract}-gi-tract" / category / finding
        folder.mkdir(parents=True)
        for i in range(n):
            name = hashlib.md5(f"{finding} {i}".encode()).hexdigest()
            (folder / f"{name}.jpg").write_bytes(PICTURE)
            rows.append((name, f"{tract.title()} GI", finding, category))
    if labels:
        header = ("Video file", "Organ", "Finding", "Classification")
        write_csv(root / "labeled-images" / "image-labels.csv", header, rows)
    return root


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
    assert "191.3 in all (1148 : 6), 229.5 in training (918 : 4)" in notes
    assert "does not say which images are of one patient" in notes
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
    assert any("other words than the folders: barrett's is barretts" in n for n in made.notes)
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


# --- MedMNIST -------------------------------------------------------------------------------------


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
    assert after.classes == KNOWN["dermamnist"].classes
    assert np.array_equal(before.labels, after.labels)
    assert before.parts is not None
    assert after.parts is not None
    assert np.array_equal(before.parts, after.parts)
    assert before.signature == after.signature
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
    assert {name: len(known.classes) for name, known in KNOWN.items()} == expected
    assert sum(KNOWN["pathmnist"].counts[0]) == 107180
    assert sum(KNOWN["tissuemnist"].counts[0]) == 236386
    assert sum(KNOWN["dermamnist"].counts[0]) == 10015


def test_medmnist_files_that_cannot_be_used(tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    several = np.zeros((20, 14), np.uint8)
    chest = npz(tmp_path / "chestmnist.npz", 2, (20, 20, 20), train_labels=several)
    with pytest.raises(LmdError, match="ChestMNIST gives an image up to 14 labels at once"):
        make("medmnist", chest, out)
    with pytest.raises(LmdError, match="ChestMNIST gives an image up to 14 labels at once"):
        make("medmnist", tmp_path, out, dataset="chestmnist")
    with pytest.raises(LmdError, match="holds volumes"):
        make("medmnist", npz(tmp_path / "organmnist3d.npz", 2, (9, 9, 9)), out)
    renamed = npz(tmp_path / "mine.npz", 2, (30, 9, 9))
    with pytest.raises(LmdError, match=r"no set that is known: expected pathmnist.*--dataset"):
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
    with pytest.raises(LmdError, match="no training image of normal"):
        make("medmnist", absent, tmp_path / "d.npz")


# --- The written file and the command line --------------------------------------------------------


def run(*words: str | Path) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(data_app, [str(word) for word in words])


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", TINY)
    out = tmp_path / "k.csv"
    out.write_text("mine")
    with pytest.raises(LmdError, match=r"k\.csv exists: choose another file, or replace it with"):
        make("hyper-kvasir", root, out)
    assert out.read_text() == "mine"
    result = make("hyper-kvasir", root, out, overwrite=True)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == result.sha256
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["k.csv"]
    with pytest.raises(LmdError, match=r"recipe 'hyper-kvasir' writes a \.csv file"):
        make("hyper-kvasir", root, tmp_path / "k.npz")
    with pytest.raises(LmdError, match=r"no recipe 'kvasir'; there are isic2019-lt, isic-archive"):
        make("kvasir", root, tmp_path / "x.csv")
    with pytest.raises(LmdError, match=r"no option --factor; it has --seed 0, --allow-missing"):
        make("hyper-kvasir", root, tmp_path / "x.csv", factor=3)


def test_paths_hold_wherever_the_manifest_lies(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "a" / "kvasir", TINY)
    places = [
        root / "k.csv",
        tmp_path / "a" / "k.csv",
        tmp_path / "k.csv",
        tmp_path / "b" / "k.csv",
    ]
    starts = ["labeled-images/", "kvasir/labeled", "a/kvasir/labeled", "labeled-images/"]
    for out, start in zip(places, starts, strict=True):
        words = shlex.split(make("hyper-kvasir", root, out).command)
        assert read(out)[0]["image"].startswith(start)
        assert words[:3] == ["lmd", "train", str(out)]
        assert words[3:] == (["--root", str(root)] if out == places[3] else [])
        table = open_table(out, root=words[4] if words[3:] else None)
        assert len(table) == 68
        assert table.read(0).shape == (16, 16, 3)


def test_the_printed_command_trains(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "my download", TINY)
    result = run("make", "hyper-kvasir", "--root", root, "--out", tmp_path / "made" / "k.csv")
    assert result.exit_code == 0, result.output
    command = result.output.split("Next: ")[1].strip()
    fast = "epochs=1,image_size=16,backbone=resnet8,weights=none,batch_size=16,workers=0"
    words = [*shlex.split(command)[1:], "--method", "ce", "--out", str(tmp_path / "run"), "--quiet"]
    for setting in fast.split(","):
        words += ["--set", setting]
    trained = CliRunner().invoke(app, words)
    assert trained.exit_code == 0, (trained.output, trained.exception)
    assert (tmp_path / "run" / "record.json").exists()


def test_make_prints_counts_notes_and_the_digest(tmp_path: Path) -> None:
    root = kvasir(tmp_path / "kvasir", TINY)
    result = run("make", "hyper-kvasir", "--root", root, "--out", tmp_path / "k.csv", "--seed", "3")
    assert result.exit_code == 0, result.output
    table = result.output.replace("│", " ").replace("|", " ")
    lines = [line.split() for line in table.splitlines()]
    assert ["bbps-2-3", "24", "3", "3", "30"] in lines
    assert ["all", "54", "7", "7", "68"] in lines
    digest = hashlib.sha256((tmp_path / "k.csv").read_bytes()).hexdigest()
    assert f"SHA-256 {digest}" in result.output
    assert "bbps-2-3 30 (published 1148)" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make", "kvasir"], "no recipe 'kvasir'"),
        (["make", "hyper-kvasir", "--factor", "3"], "no option --factor"),
        (["make", "ham10000"], "holds no HAM10000_metadata.csv"),
        (["make", "isic2019-lt", "--by-image"], "holds no ISIC_2019_Training_GroundTruth.csv"),
        (["make", "isic-archive-lt", "--published-counts"], "holds no metadata of the archive"),
    ],
)
def test_what_cannot_be_made_is_an_error_for_the_user(
    tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "root").mkdir()
    result = run(*words, "--root", tmp_path / "root", "--out", tmp_path / "out.csv")
    assert isinstance(result.exception, LmdError)
    assert message in str(result.exception)


def test_every_option_of_every_recipe_is_on_the_command_line() -> None:
    text = CliRunner(env={"COLUMNS": "200"}).invoke(data_app, ["make", "--help"]).output
    for recipe in RECIPES.values():
        for name in recipe.option_names():
            assert name.split()[0] in text


def test_list_names_every_recipe_with_its_source_and_licence() -> None:
    text = CliRunner(env={"COLUMNS": "200"}).invoke(data_app, ["list"]).output
    for recipe in RECIPES.values():
        assert recipe.key in text
        assert recipe.source in text
        assert recipe.licence.split(":")[0] in text
