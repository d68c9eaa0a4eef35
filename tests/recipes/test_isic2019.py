"""ISIC-2019-LT: trees in the layout of the download, and the real label files."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from downloads import leaks, read, table_of, write_csv, write_images
from sklearn.model_selection import train_test_split as sklearn_split

from lmd.base.errors import LmdError
from lmd.data.sources import open_table
from lmd.data.splits import check_no_leak
from lmd.recipes import RECIPES, make
from lmd.recipes.isic2019 import sample, train_test_split

ISIC2019 = RECIPES["isic2019-lt"].published
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
    # When the download is complete, the same manifest works.
    write_images(root / "ISIC_2019_Training_Input", [f"ISIC_{i:07d}" for i in range(500, 574)])
    assert len(open_table(tmp_path / "lt.csv", root=root)) == len(cells)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 5}, "factor is 5, but the set itself has 12"),
        ({"factor": 200}, "too few for three parts"),
        ({"shape": "linear"}, "expected 'official' or 'pareto'"),
        ({"factor": 24, "by_lesion": True}, "needs ISIC_2019_Training_Metadata.csv"),
        ({"head_size": 10}, "unknown option '--head-size'; choose one of --factor, --shape"),
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
    with pytest.raises(LmdError, match=r"contain no ISIC_2019_Training_GroundTruth.csv"):
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
