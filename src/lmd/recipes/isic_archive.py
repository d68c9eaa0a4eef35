"""ISIC-Archive-LT: fourteen diagnoses from the metadata of the ISIC Archive."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.splits import split, subsample
from lmd.data.walk import files_below
from lmd.recipes import RECIPES, Download, Made, Row, read_rows

CLASSES = {
    name: label for label, names in RECIPES["isic-archive-lt"].details.items() for name in names
}
NAME = ("isic_id", "name", "image_name")
PLAIN = ("diagnosis", "meta.clinical.diagnosis")
# The deepest level first: it is the most exact.
LEVELS = tuple(f"diagnosis_{level}" for level in (5, 4, 3, 2, 1))
TYPE = ("image_type", "meta.acquisition.image_type")
# What names the group of an image, in the order of preference.
GROUPS = {"lesion": ("lesion",), "patient": ("patient", "lesion"), "none": ()}


def build(
    download: Download, *, group: str = "lesion", published_counts: bool = False, seed: int = 0
) -> Made:
    """Split every dermoscopic image with one of the diagnoses, 7:1:2 in each class.

    The metadata is one CSV file or several, with the archive's old or new columns. ``group`` stays
    in one part: lesion, patient (the lesion if the patient is unknown) or none.
    ``published_counts`` draws the published number of images where the archive has more now.
    """
    if group not in GROUPS:
        raise LmdError(f"group is {group!r}; expected lesion, patient or none")
    rows = _rows(download)
    images, left_out = _diagnosed(rows, group)
    if not images:
        raise LmdError(
            f"{download.root}: none of {len(rows)} rows has one of the 14 diagnoses: "
            f"{download.recipe.source}"
        )
    names = sorted(images)  # The order of files and rows changes from export to export.
    groups = [images[name][1] for name in names]
    download.locate(names, [images[name][0] for name in names], groups)
    if left_out:
        most = [f"{what}: {count}" for what, count in left_out.most_common()]
        download.notes.append(f"{left_out.total()} rows are left out ({shorten(most, 8)})")
    table = download.table(grouped=any(groups))
    if published_counts:
        published = np.array([download.recipe.published[name] for name in table.classes])
        table = subsample(table, np.minimum(published, table.counts()), seed=seed)
    if any(groups):
        note = (
            f"split by {group}: {len({*groups} - {''})} groups; {groups.count('')} images without "
            f"a known {group} are groups of their own"
        )
    else:
        why = "as asked" if group == "none" else f"the metadata has no {group}"
        note = f"split by image ({why}): images of one lesion may be in training and in test"
    download.notes.append(note)
    return download.manifest(split(table, seed=seed), "group" if any(groups) else None)


def _diagnosed(
    rows: Iterable[tuple[Row, str]], group: str
) -> tuple[dict[str, tuple[str, str]], Counter[str]]:
    """Return class and group of each image by its name, and why other rows are left out."""
    images: dict[str, tuple[str, str]] = {}
    left_out: Counter[str] = Counter()
    for row, stem in rows:
        if (image_type := _first(row, TYPE)) not in {"", "dermoscopic"}:
            left_out[f"image type {image_type}"] += 1
        elif (label := diagnosis(row, stem)) not in CLASSES.values():
            left_out[f"diagnosis {label or 'empty'}"] += 1
        else:
            name = _first(row, NAME)
            other, _ = images.setdefault(name, (label, _group(row, group)))
            if other != label:
                raise LmdError(
                    f"image {name!r} is {other} in one row of the metadata and {label} in "
                    "another: remove one of them"
                )
    return images, left_out


def diagnosis(row: Row, stem: str) -> str:
    """Return the class of a row, or its diagnosis if that is not a class.

    Without a column for the diagnosis, the name of the file (``stem``) is the diagnosis.

    >>> diagnosis({"diagnosis_2": "Benign epidermal proliferations",
    ...            "diagnosis_3": "Lichen planus like keratosis"}, "metadata")
    'LK'
    >>> diagnosis({"diagnosis": "scar"}, "metadata")
    'scar'
    """
    plain = _first(row, PLAIN)
    if not any(column in row for column in (*PLAIN, *LEVELS)):
        plain = stem.lower().replace("metadata", "").replace("_", " ").replace("-", " ").strip()
    names = [plain] if plain else [row[level] for level in LEVELS if row.get(level)]
    labels = [CLASSES[name.lower()] for name in names if name.lower() in CLASSES]
    return next(iter(labels or names), "")


def _rows(download: Download) -> list[tuple[Row, str]]:
    """Read all rows of metadata, each with the stem of its file."""
    rows: list[tuple[Row, str]] = []
    used: list[str] = []
    other: list[str] = []
    for path in (path for path in files_below(download.root) if path.suffix.lower() == ".csv"):
        table = read_rows(path)
        usable = any(name in table[0] for name in NAME)
        (used if usable else other).append(path.name)
        rows += [(row, path.stem) for row in table if usable and _first(row, NAME)]
    if not used:
        raise LmdError(
            f"root {download.root} contains no metadata of the archive: expected .csv files with a "
            f"column {' or '.join(NAME)}, found {shorten(other) or 'no .csv file'} "
            f"({download.recipe.source})"
        )
    download.notes.append(f"metadata from {shorten(used)}")
    if other:
        download.notes.append(f"not read, no column {' or '.join(NAME)}: {shorten(other)}")
    return rows


def _group(row: Row, group: str) -> str:
    # With a prefix, so that a patient and a lesion with the same number stay apart.
    for what in GROUPS[group]:
        if name := _first(row, (f"{what}_id", f"meta.clinical.{what}_id")):
            return f"{what} {name}"
    return ""


def _first(row: Row, columns: Iterable[str]) -> str:
    return next((row[column] for column in columns if row.get(column)), "")
