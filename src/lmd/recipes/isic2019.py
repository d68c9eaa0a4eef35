"""ISIC-2019-LT: eight diagnoses of the ISIC 2019 challenge with a tail of a chosen length."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.splits import groups_in_two_parts, imbalance_factor, official_counts, split, subsample
from lmd.data.table import Table
from lmd.recipes import Download, Made, Row, read_rows, require_distinct

TRUTH = "ISIC_2019_Training_GroundTruth.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
UNKNOWN = "UNK"


def build(
    download: Download,
    *,
    factor: float = 100.0,
    shape: str = "official",
    by_lesion: bool | None = None,
    seed: int = 42,
) -> Made:
    """Thin the set to an imbalance factor and split it 7:1:2 in each class.

    ``shape="official"`` splits image by image; with seed 42 and r = 100 this is the split that the
    paper's authors released. ``"pareto"`` has the counts of the paper's formula. ``by_lesion``
    keeps each lesion in one part; ``None`` does so for ``"pareto"`` if there is metadata.
    """
    if shape not in {"official", "pareto"}:
        raise LmdError(f"shape is {shape!r}; expected 'official' or 'pareto'")
    _read(download)
    lesions = download.groups is not None
    if by_lesion and not lesions:
        raise LmdError(
            f"a split by lesion needs {METADATA}: put it below {download.root} "
            f"({download.recipe.source})"
        )
    grouped = lesions and (shape == "pareto" if by_lesion is None else by_lesion)
    table = download.table(grouped=grouped)
    if shape == "pareto":
        table = split(subsample(table, factor, seed=seed), seed=seed)
    elif grouped:
        table = split(subsample(table, _official_counts(table, factor), seed=seed), seed=seed)
    else:
        table = released_split(table, factor, seed)
    if not grouped:
        download.notes.append(_leak(download, table))
    # Training refuses a column named group if a group is in two parts, as in the released split.
    return download.manifest(table, ("group" if grouped else "lesion") if lesions else None)


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
    """Draw the positions ``(size,)`` of pandas' ``DataFrame.sample(size, random_state=seed)``."""
    drawn: NDArray[np.int64] = np.random.RandomState(seed).choice(count, size=size, replace=False)
    return drawn


def train_test_split(
    count: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the two parts of scikit-learn's ``train_test_split(test_size=share)``."""
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


def _read(download: Download) -> None:
    """Read the classes, and the lesions if there is metadata, and find the images."""
    path, classes = download.require(TRUTH), download.recipe.published
    images = [
        (row["image"], _label(path, row, classes)) for row in read_rows(path, ["image", *classes])
    ]
    unknown = sum(label == UNKNOWN for _, label in images)
    if unknown:
        download.notes.append(f"{unknown} images of class {UNKNOWN} are left out")
    names = [name for name, label in images if label != UNKNOWN]
    require_distinct(path, names)
    groups = None
    if metadata := download.find(METADATA):
        rows = read_rows(metadata, ["image", "lesion_id"])
        lesions = {row["image"]: row["lesion_id"] for row in rows}
        groups = [lesions.get(name, "") for name in names]
    download.locate(names, [label for _, label in images if label != UNKNOWN], groups)


def _label(path: Path, row: Row, classes: Iterable[str]) -> str:
    """Return the class of an image, which has a 1 in one column."""
    labels = []
    for column in (UNKNOWN, *classes):
        try:
            labels += [column] if float(row.get(column) or 0) == 1 else []
        except ValueError:
            raise LmdError(
                f"{path}: image {row['image']!r} has {row[column]!r} in column {column}; "
                "expected 0 or 1"
            ) from None
    if len(labels) != 1 and UNKNOWN not in labels:
        raise LmdError(
            f"{path}: image {row['image']!r} has {len(labels)} classes ({', '.join(labels)}); "
            "expected a 1 in exactly one column"
        )
    return labels[0]


def _leak(download: Download, table: Table) -> str:
    if download.groups is None:
        return (
            f"split by image: without {METADATA} it is not known which images show the same "
            "lesion, so a lesion may be in training and in test"
        )
    lesions = np.array([download.groups[row] for row in table.rows], dtype=np.str_)
    leaks = groups_in_two_parts(replace(table, groups=lesions).take(lesions != ""))
    seen = sum(parts["test"] for parts in leaks.values() if parts["train"])
    return (
        f"split by image, as it was released: {len(leaks)} of {len(set(lesions) - {''})} lesions "
        f"are in more than one part, and {seen} of {len(table.part('test'))} test images show a "
        "lesion that is in training, so scores are too high; --by-lesion avoids this (the column "
        "lesion names the lesions)"
    )
