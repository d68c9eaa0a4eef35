"""The recipes for skin: trees in the layout of the downloads, and the real label files."""

import csv
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.model_selection import train_test_split as sklearn_split

from lmd.base.errors import LmdError
from lmd.data.recipes import RECIPES, make
from lmd.data.recipes.ham10000 import PUBLISHED as HAM
from lmd.data.recipes.isic2019 import PUBLISHED as ISIC2019
from lmd.data.recipes.isic2019 import sample, train_test_split
from lmd.data.recipes.isic_archive import DIAGNOSES, diagnosis
from lmd.data.recipes.isic_archive import PUBLISHED as ARCHIVE
from lmd.data.sources import open_table
from lmd.data.splits import check_no_leak

PARTS = ("train", "validation", "test")
COLUMNS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")
OFFICIAL = {  # training, validation, test of the split released at r = 100
    "NV": (9012, 1288, 2575),
    "MEL": (2898, 414, 828),
    "BCC": (1949, 279, 557),
    "BKL": (1409, 202, 402),
    "AK": (426, 61, 122),
    "SCC": (282, 41, 81),
    "VASC": (104, 15, 30),
    "DF": (90, 13, 26),
}
RELEASED = {
    "train": "28d6c744fa5d2ac2e06b552efe630fa9a13ca4b3409595a951cf653463b5fe00",
    "validation": "62b3833065ff1613edddb42e7564323160399f05b2da85de3928175664828a8f",
    "test": "d4f6e3e877f0ab9b2f88d4454a2d95464943dd61c2e98e96bc57de83ca2c2c33",
}


def _picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (180, 120, 100)).save(file, "JPEG")
    return file.getvalue()


PICTURE = _picture()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_images(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.jpg").write_bytes(PICTURE)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table_of(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[int, ...]]:
    found = Counter((row["label"], row["split"]) for row in rows)
    return {c: tuple(found[c, part] for part in PARTS) for c in sorted({k[0] for k in found})}


def leaks(rows: Iterable[Mapping[str, str]], column: str = "group") -> list[str]:
    places = defaultdict(set)
    for row in rows:
        places[row[column]].add(row["split"])
    places.pop("", None)
    assert places, "no group at all: the test would check nothing"
    return [group for group, parts in places.items() if len(parts) > 1]


# --- ISIC-2019-LT ---------------------------------------------------------------------------------

SMALL = {"NV": 240, "MEL": 90, "BCC": 70, "BKL": 60, "AK": 40, "SCC": 30, "VASC": 24, "DF": 20}


def isic2019(
    root: Path, counts: Mapping[str, int] | None = None, *, metadata: bool = True, **kept: Any
) -> Path:
    """Images of two to a lesion, every seventh without a lesion id."""
    labels = [name for name, n in (counts or SMALL).items() for _ in range(n)]
    order = np.random.RandomState(0).permutation(len(labels))
    rows = [(f"ISIC_{i:07d}", labels[k]) for i, k in enumerate(order)]
    truth = ((n, *(f"{float(c == label)}" for c in COLUMNS)) for n, label in rows)
    write_csv(root / "ISIC_2019_Training_GroundTruth.csv", ("image", *COLUMNS), truth)
    if metadata:
        seen: Counter[str] = Counter()
        lines = []
        for i, (name, label) in enumerate(rows):
            lesion = "" if i % 7 == 0 else f"BCN_{label}{seen[label] // 2}"
            seen[label] += 1
            lines.append((name, 50, "anterior torso", lesion, "female"))
        header = ("image", "age_approx", "anatom_site_general", "lesion_id", "sex")
        write_csv(root / "ISIC_2019_Training_Metadata.csv", header, lines)
    images = kept.get("images", len(rows))
    write_images(root / "ISIC_2019_Training_Input", [name for name, _ in rows[:images]])
    return root


@pytest.mark.parametrize("count", [3, 26, 129, 4140, 12875])
def test_the_two_part_split_is_scikit_learns(count: int) -> None:
    for share in (0.3, 1 / 3):
        first, second = train_test_split(count, share, 42)
        expected = sklearn_split(np.arange(count), test_size=share, random_state=42)
        assert [first.tolist(), second.tolist()] == [part.tolist() for part in expected]


def test_a_sample_is_drawn_without_replacement_as_pandas_draws() -> None:
    # pandas.DataFrame({"x": range(10)}).sample(4, random_state=42).x is 8, 1, 5, 0.
    assert sample(10, 4, 42).tolist() == [8, 1, 5, 0]
    assert sorted(sample(50, 50, 1).tolist()) == list(range(50))


def test_the_released_split_to_the_last_image(shared: Path, tmp_path: Path) -> None:
    result = make(
        "isic2019-lt", shared / "data/isic2019", tmp_path / "r100.csv", allow_missing_images=True
    )
    rows = read(result.path)
    assert table_of(rows) == OFFICIAL
    for part, expected in RELEASED.items():
        names = sorted(row["image"] for row in rows if row["split"] == part)
        assert hashlib.sha256("\n".join(names).encode()).hexdigest() == expected
    assert any("25331 of 25331 images are not below" in note for note in result.notes)
    assert any("published counts, 25331 images" in note for note in result.notes)


@pytest.mark.parametrize(("factor", "smallest", "tested"), [(300, 43, 8), (500, 26, 5)])
def test_longer_tails_of_the_real_set(
    shared: Path, tmp_path: Path, factor: int, smallest: int, tested: int
) -> None:
    root, out = shared / "data/isic2019", tmp_path / "lt.csv"
    make("isic2019-lt", root, out, factor=factor, allow_missing_images=True)
    counts = table_of(read(out))
    assert sum(counts["NV"]) == 12875
    assert sum(counts["DF"]) == smallest
    assert counts["DF"][2] == tested
    sizes = [sum(counts[name]) for name in ISIC2019]
    assert sizes == sorted(sizes, reverse=True)
    for train, validation, test in counts.values():
        total = train + validation + test
        assert (train, validation, test) == pytest.approx(
            (0.7 * total, 0.1 * total, 0.2 * total), abs=1.5
        )


def test_the_pareto_shape_of_the_real_set(shared: Path, tmp_path: Path) -> None:
    root, out = shared / "data/isic2019", tmp_path / "lt.csv"
    make("isic2019-lt", root, out, shape="pareto", factor=500, allow_missing_images=True)
    sizes = {name: sum(n) for name, n in table_of(read(out)).items()}
    # 12875 · 500^(-c / 7); MEL has 4522, fewer than its place in the tail asks for.
    expected = [12875, 4522, 2181, 898, 369, 152, 63, 26]
    assert [sizes[name] for name in ISIC2019] == expected


def test_the_official_split_tells_that_it_leaks(tmp_path: Path) -> None:
    root = isic2019(tmp_path / "isic")
    result = make("isic2019-lt", root, tmp_path / "lt.csv", factor=24)
    rows = read(result.path)
    # Under the name of group it would be refused before training.
    assert list(rows[0]) == ["image", "label", "lesion", "split"]
    found = leaks(rows, "lesion")
    training = {row["lesion"] for row in rows if row["split"] == "train"} - {""}
    known = sum(row["split"] == "test" and row["lesion"] in training for row in rows)
    assert known > 10
    note = next(note for note in result.notes if "as it was released" in note)
    assert f"{len(found)} of " in note
    assert f"and {known} of " in note
    open_table(result.path, root=root)


@pytest.mark.parametrize("shape", ["official", "pareto"])
def test_a_split_by_lesion_does_not_leak(tmp_path: Path, shape: str) -> None:
    root = isic2019(tmp_path / "isic")
    out = tmp_path / "lt.csv"
    make("isic2019-lt", root, out, factor=24, shape=shape, by_lesion=True)
    rows = read(out)
    assert leaks(rows) == []
    assert all(min(n) > 0 for n in table_of(rows).values())
    check_no_leak(open_table(out, root=root))
    # 240 / 24 = 10, to within one lesion.
    assert sum(table_of(rows)["DF"]) == pytest.approx(10, abs=1)


def test_pareto_is_by_lesion_unless_asked_otherwise(tmp_path: Path) -> None:
    root = isic2019(tmp_path / "isic")
    make("isic2019-lt", root, tmp_path / "a.csv", factor=24, shape="pareto")
    make("isic2019-lt", root, tmp_path / "b.csv", factor=24, shape="pareto", by_lesion=False)
    assert leaks(read(tmp_path / "a.csv")) == []
    assert leaks(read(tmp_path / "b.csv"), "lesion") != []


def test_the_same_seed_gives_the_same_file_everywhere(tmp_path: Path) -> None:
    root = isic2019(tmp_path / "isic")
    variants: list[dict[str, Any]] = [{}, {"shape": "pareto"}, {"seed": 1}, {"by_lesion": True}]
    digests = [
        make("isic2019-lt", root, tmp_path / f"{i}.csv", factor=24, **options).sha256
        for i, options in enumerate(variants)
    ]
    assert digests == FIXED_ISIC2019


FIXED_ISIC2019 = [
    "51c9980cd7dedb47eed1d21d00899f14c54f3adc644e04eab5748977d1753d32",
    "e577b331c8164b69f0d96341442c8b45df6fe324baaf5cb0d35356514c415e08",
    "a17021a5862cb28c8bef331867447fc3040e3e3afb0b6446b382629e3122e9bb",
    "f806d54ad75f4723154ac507c9e78193a2919b3b3b0fc32302ea2c5bc2f00b5f",
]


def test_an_incomplete_download_is_named(tmp_path: Path) -> None:
    root = isic2019(tmp_path / "isic", images=500)
    with pytest.raises(LmdError, match=r"74 of 574 images are not below .*ISIC_0000500, .*71 more"):
        make("isic2019-lt", root, tmp_path / "lt.csv", factor=24)
    assert not (tmp_path / "lt.csv").exists()
    make("isic2019-lt", root, tmp_path / "lt.csv", factor=24, allow_missing_images=True)
    cells = [row["image"] for row in read(tmp_path / "lt.csv")]
    assert any(cell.startswith("isic/ISIC_2019_Training_Input/") for cell in cells)
    with pytest.raises(LmdError, match="images are not on disk"):
        open_table(tmp_path / "lt.csv", root=root)
    # When the download is complete, the very same manifest works.
    write_images(root / "ISIC_2019_Training_Input", [f"ISIC_{i:07d}" for i in range(500, 574)])
    assert len(open_table(tmp_path / "lt.csv", root=root)) == len(cells)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 5}, "factor is 5, but the set itself has 12"),
        ({"factor": 200}, "too few for three parts"),
        ({"shape": "linear"}, "expected 'official' or 'pareto'"),
        ({"factor": 24, "by_lesion": True}, "needs ISIC_2019_Training_Metadata.csv"),
        ({"head_size": 10}, "has no option --head-size; it has --factor 100, --shape"),
    ],
)
def test_options_of_isic2019_that_cannot_be(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    root = isic2019(tmp_path / "isic", metadata=False)
    with pytest.raises(LmdError, match=message):
        make("isic2019-lt", root, tmp_path / "lt.csv", **options)


def test_a_label_file_that_is_not_right(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match=r"root .* does not exist"):
        make("isic2019-lt", tmp_path / "no", tmp_path / "lt.csv")
    root = tmp_path / "isic"
    root.mkdir()
    with pytest.raises(LmdError, match=r"holds no ISIC_2019_Training_GroundTruth.csv"):
        make("isic2019-lt", root, tmp_path / "lt.csv")
    truth = root / "ISIC_2019_Training_GroundTruth.csv"
    write_csv(truth, ("image", *COLUMNS[1:]), [("ISIC_1", *([0] * 8))])
    with pytest.raises(LmdError, match=r"no column MEL; its columns are image, NV, BCC"):
        make("isic2019-lt", root, tmp_path / "lt.csv")
    for cells, message in (
        ([1, 1, 0, 0, 0, 0, 0, 0, 0], r"'ISIC_1' has 2 classes \(NV, MEL\)"),
        ([0] * 9, "'ISIC_1' has 0 classes"),
        (["x", *[0] * 8], "has 'x' in column MEL; expected 0 or 1"),
    ):
        write_csv(truth, ("image", *COLUMNS), [("ISIC_1", *cells)])
        with pytest.raises(LmdError, match=message):
            make("isic2019-lt", root, tmp_path / "lt.csv")
    write_csv(truth, ("image", *COLUMNS), [("ISIC_1", 1, *[0] * 8)] * 2)
    with pytest.raises(LmdError, match="1 images in more than one row: ISIC_1"):
        make("isic2019-lt", root, tmp_path / "lt.csv")


def test_unk_is_left_out_and_images_may_lie_beside_the_csv(tmp_path: Path) -> None:
    root = isic2019(tmp_path / "isic", {**SMALL, "UNK": 4}, metadata=False)
    for image in (root / "ISIC_2019_Training_Input").iterdir():
        image.rename(root / image.name)
    result = make("isic2019-lt", root, root / "lt.csv", factor=24)
    assert any("4 images of class UNK are left out" in note for note in result.notes)
    assert result.command == f"lmd train {root / 'lt.csv'}"
    rows = read(result.path)
    assert "UNK" not in table_of(rows)
    assert rows[0]["image"].startswith("ISIC_")
    assert len(open_table(result.path)) == len(rows)


# --- ISIC-Archive-LT ------------------------------------------------------------------------------

PLAIN = {code: name for name, code in reversed(DIAGNOSES.items()) if name in [*DIAGNOSES][:14]}
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
    assert set(PLAIN) == set(ARCHIVE)
    assert set(DIAGNOSES.values()) == set(ARCHIVE)
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
    assert "not read: licenses.csv" in notes
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
    assert any("the metadata name no lesion" in note for note in result.notes)
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
    with pytest.raises(LmdError, match=r"holds no metadata .*found no .csv file"):
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


# --- HAM10000 -------------------------------------------------------------------------------------


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
        ({"head_size": 100}, "give a factor"),
        ({"factor": 1e6}, "ask for 200 training images of class 'mel', which has 135"),
        ({"factor": 1, "head_size": 35}, "leave 0 lesions of class 'df'"),
        ({"factor": 10, "head_size": 50, "validation_share": 1.5}, "validation_share is 1.5"),
        ({"shape": "official"}, "has no option --shape"),
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


def test_each_recipe_says_where_its_data_are() -> None:
    for key, recipe in RECIPES.items():
        assert recipe.key == key
        assert recipe.source.startswith("https://")
        assert "CC" in recipe.licence
        assert recipe.option_names()
