"""ISIC-2019-LT: eight diagnoses of the ISIC 2019 challenge with a tail of a chosen length."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.imbalance import imbalance_factor, official_counts, subsample
from lmd.data.splits import groups_in_two_parts, split
from lmd.data.table import Table
from lmd.recipes.recipe import (
    Download,
    Listing,
    Made,
    Recipe,
    Row,
    read_rows,
    require_distinct,
)

SOURCE = "https://challenge.isic-archive.com/data/#2019"
TRUTH = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
FOLDERS = ("ISIC_2019_Training_Input", ".")
PUBLISHED = {
    "NV": 12875,
    "MEL": 4522,
    "BCC": 3323,
    "BKL": 2624,
    "AK": 867,
    "SCC": 628,
    "VASC": 253,
    "DF": 239,
}


def isic2019_lt(
    root: Path,
    *,
    factor: float = 100.0,
    shape: str = "official",
    by_lesion: bool | None = None,
    seed: int = 42,
    allow_missing_images: bool = False,
) -> Made:
    """Thin the set to an imbalance factor and split it 7:1:2 in each class.

    ``shape="official"`` splits image by image; with seed 42 and r = 100 this is the split that the
    paper's authors released. ``"pareto"`` has the counts of the paper's formula. ``by_lesion``
    keeps each lesion in one part; ``None`` does so for ``"pareto"`` if there is metadata.
    """
    if shape not in {"official", "pareto"}:
        raise LmdError(f"shape is {shape!r}; expected 'official' or 'pareto'")
    download = Download(root, SOURCE, PUBLISHED, allow_missing_images, FOLDERS)
    listing = _read(download)
    if by_lesion and listing.groups is None:
        raise LmdError(f"a split by lesion needs {METADATA}: put it below {root} ({SOURCE})")
    grouped = listing.groups is not None and (shape == "pareto" if by_lesion is None else by_lesion)
    table = listing.table(grouped=grouped)
    if shape == "pareto":
        table = split(subsample(table, factor, seed=seed), seed=seed)
    elif grouped:
        counts = _official_counts(table, factor)
        table = split(subsample(table, counts, seed=seed), seed=seed)
    else:
        table = released_split(table, factor, seed)
    if not grouped:
        download.notes.append(_leak(listing, table))
    # Training refuses a column named group if a group is in two parts, as in the released split.
    column = None if listing.groups is None else "group" if grouped else "lesion"
    return download.made(listing, table, column)


def released_split(table: Table, factor: float, seed: int) -> Table:
    """Draw and split class by class, the largest first, as for the released lists."""
    counts = _official_counts(table, factor)
    index: list[NDArray[np.int64]] = []
    parts: list[str] = []
    for c in np.argsort(-table.counts(), kind="stable"):
        rows = np.flatnonzero(table.labels == c)
        drawn = rows[sample(len(rows), int(counts[c]), seed)]
        train, rest = train_test_split(len(drawn), 0.3, seed)
        test, validation = train_test_split(len(rest), 1 / 3, seed)
        if not len(test):
            raise LmdError(
                f"factor {factor:g} leaves {len(drawn)} images of class {table.classes[c]!r}, too "
                "few for three parts: choose a smaller factor"
            )
        index += [drawn[train], drawn[rest[validation]], drawn[rest[test]]]
        parts += ["train"] * len(train) + ["validation"] * len(validation) + ["test"] * len(test)
    chosen = np.concatenate(index)
    order = np.argsort(chosen)
    return replace(table.take(chosen[order]), parts=np.array(parts, dtype=np.str_)[order])


def sample(count: int, size: int, seed: int) -> NDArray[np.int64]:
    """Positions that pandas' ``DataFrame.sample(size, random_state=seed)`` draws: ``(size,)``."""
    drawn: NDArray[np.int64] = np.random.RandomState(seed).choice(count, size=size, replace=False)
    return drawn


def train_test_split(
    count: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the two parts of scikit-learn's ``train_test_split(test_size=share)``."""
    size = math.ceil(share * count)
    order: NDArray[np.int64] = np.random.RandomState(seed).permutation(count)
    return order[size:], order[:size]


def _official_counts(table: Table, factor: float) -> NDArray[np.int64]:
    natural = imbalance_factor(table.counts())
    if factor < natural:
        raise LmdError(
            f"factor is {factor:g}, but the set itself has {natural:.4g}: choose a larger one, or "
            "use shape 'pareto' with a factor that the rarest class allows"
        )
    return official_counts(table.counts(), factor)


def _read(download: Download) -> Listing:
    path = download.require(TRUTH)
    rows = read_rows(path, ["image", *PUBLISHED])
    unknown = [row for row in rows if _is_one(path, row, "UNK")]
    if unknown:
        download.notes.append(f"{len(unknown)} images of class UNK are left out")
        rows = [row for row in rows if not _is_one(path, row, "UNK")]
    names = [row["image"] for row in rows]
    require_distinct(path, names)
    labels = [_label(path, row) for row in rows]
    groups = None
    if (metadata := download.find(METADATA)) is not None:
        described = read_rows(metadata, ["image", "lesion_id"])
        lesions = {row["image"]: row["lesion_id"] for row in described}
        groups = [lesions.get(name, "") for name in names]
    return download.locate(names, labels, groups)


def _is_one(path: Path, row: Row, column: str) -> bool:
    try:
        return float(row.get(column) or 0) == 1
    except ValueError:
        raise LmdError(
            f"{path}: image {row['image']!r} has {row[column]!r} in column {column}; "
            "expected 0 or 1"
        ) from None


def _label(path: Path, row: Row) -> str:
    classes = [name for name in PUBLISHED if _is_one(path, row, name)]
    if len(classes) != 1:
        raise LmdError(
            f"{path}: image {row['image']!r} has {len(classes)} classes ({', '.join(classes)}); "
            "expected a 1 in exactly one column"
        )
    return classes[0]


def _leak(listing: Listing, table: Table) -> str:
    if listing.groups is None:
        return (
            f"split by image: without {METADATA} it is not known which images show the same "
            "lesion, so a lesion may be in training and in test"
        )
    lesions = np.array([listing.groups[row] for row in table.rows], dtype=np.str_)
    named = replace(table, groups=lesions).take(lesions != "")
    leaks = groups_in_two_parts(named)
    known = sum(parts["test"] for parts in leaks.values() if parts["train"])
    return (
        f"split by image, as it was released: {len(leaks)} of {len(set(lesions) - {''})} lesions "
        f"are in more than one part, and {known} of {len(table.part('test'))} test images show a "
        "lesion that is in training, so scores are too high; --by-lesion avoids this (the column "
        "lesion names the lesions)"
    )


RECIPE = Recipe(
    key="isic2019-lt",
    title="ISIC-2019-LT",
    what="8 skin diagnoses, dermoscopy; r = 100, 300, 500 in the paper; 7:1:2",
    source=SOURCE,
    licence="CC BY-NC 4.0",
    size="25 331 images, about 9 GB",
    function=isic2019_lt,
)
