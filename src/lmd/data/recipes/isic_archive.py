"""ISIC-Archive-LT: fourteen diagnoses from the metadata of the ISIC Archive."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.imbalance import subsample
from lmd.data.recipes.download import (
    Listing,
    Row,
    compare_counts,
    locate,
    read_rows,
    require_root,
)
from lmd.data.recipes.recipe import Made, Recipe, manifest
from lmd.data.sources.walk import files_below
from lmd.data.splits import split
from lmd.data.table import Table

SOURCE = "https://www.isic-archive.com"
FOLDERS = (".", "images")
PUBLISHED = {
    "NV": 12875,
    "MEL": 4522,
    "BCC": 3393,
    "SK": 1464,
    "AK": 869,
    "SCC": 656,
    "BKL": 384,
    "SL": 270,
    "VASC": 253,
    "DF": 246,
    "LK": 32,
    "LS": 27,
    "AN": 15,
    "AMP": 14,
}
# The archive's plain names, and below those that its hierarchy of diagnoses uses instead.
DIAGNOSES = {
    "nevus": "NV",
    "melanoma": "MEL",
    "basal cell carcinoma": "BCC",
    "seborrheic keratosis": "SK",
    "actinic keratosis": "AK",
    "squamous cell carcinoma": "SCC",
    "pigmented benign keratosis": "BKL",
    "solar lentigo": "SL",
    "vascular lesion": "VASC",
    "dermatofibroma": "DF",
    "lichenoid keratosis": "LK",
    "lentigo simplex": "LS",
    "angioma": "AN",
    "atypical melanocytic proliferation": "AMP",
    "melanoma, nos": "MEL",
    "melanoma in situ": "MEL",
    "melanoma invasive": "MEL",
    "solar or actinic keratosis": "AK",
    "squamous cell carcinoma, nos": "SCC",
    "squamous cell carcinoma in situ": "SCC",
    "squamous cell carcinoma, invasive": "SCC",
    "benign soft tissue proliferations - vascular": "VASC",
    "lichen planus like keratosis": "LK",
    "hemangioma": "AN",
    "atypical melanocytic neoplasm": "AMP",
}
NAME = ("isic_id", "name", "image_name")
PLAIN = ("diagnosis", "meta.clinical.diagnosis")
# The deepest level first, for it is the most exact.
LEVELS = tuple(f"diagnosis_{level}" for level in (5, 4, 3, 2, 1))
KIND = ("image_type", "meta.acquisition.image_type")
GROUPS = {
    "lesion": ("lesion_id", "meta.clinical.lesion_id"),
    "patient": ("patient_id", "meta.clinical.patient_id"),
}
RATIOS = (0.7, 0.1, 0.2)


def isic_archive_lt(
    root: Path,
    *,
    group: str = "lesion",
    published_counts: bool = False,
    seed: int = 0,
    allow_missing_images: bool = False,
) -> Made:
    """Every dermoscopic image with one of the diagnoses, split 7:1:2 in each class.

    The metadata may be one CSV or several, with the archive's old or new columns. ``group`` says
    what stays in one part: lesion, patient (and lesion where the patient is not known) or none.
    ``published_counts`` draws as many images as were published where the archive has more by now.
    """
    if group not in {*GROUPS, "none"}:
        raise LmdError(f"group is {group!r}; expected lesion, patient or none")
    rows, notes = _rows(require_root(root))
    names, labels, groups = [], [], []
    left_out: Counter[str] = Counter()
    for row, stem in rows:
        if (kind := _first(row, KIND)) not in {"", "dermoscopic"}:
            left_out[f"image type {kind}"] += 1
        elif (label := diagnosis(row, stem)) not in PUBLISHED:
            left_out[f"diagnosis {label or 'empty'}"] += 1
        else:
            names.append(_first(row, NAME))
            labels.append(label)
            groups.append(_group(row, group))
    if not names:
        raise LmdError(f"{root}: none of {len(rows)} rows has one of the 14 diagnoses: {SOURCE}")
    names, labels, groups = _distinct(names, labels, groups)
    cells, missing = locate(root, names, FOLDERS, allow_missing=allow_missing_images)
    grouped = any(groups)
    listing = Listing(root, tuple(names), tuple(labels), cells, tuple(groups) if grouped else None)
    notes += compare_counts(labels, PUBLISHED)
    if left_out:
        most = [f"{what}: {count}" for what, count in left_out.most_common()]
        notes.append(f"{left_out.total()} rows are left out ({shorten(most, 8)})")
    notes += [*missing, _group_note(group, groups)]
    table = listing.table(grouped=grouped)
    if published_counts:
        table = _thin(table, seed)
    table = split(table, RATIOS, seed)
    column = "group" if grouped else None
    return Made(table, tuple(notes), manifest(listing, table, column))


def diagnosis(row: Row, stem: str) -> str:
    """The class of a row, else the diagnosis that is none; by its file where it has no column.

    >>> diagnosis({"diagnosis_2": "Benign epidermal proliferations",
    ...            "diagnosis_3": "Lichen planus like keratosis"}, "metadata")
    'LK'
    >>> diagnosis({"diagnosis": "scar"}, "metadata")
    'scar'
    """
    plain = _first(row, PLAIN)
    if not any(column in row for column in (*PLAIN, *LEVELS)):
        plain = stem.lower().replace("metadata", "").replace("_", " ").replace("-", " ").strip()
    if plain:
        return DIAGNOSES.get(plain.lower(), plain)
    levels = [row[level] for level in LEVELS if row.get(level)]
    known = [DIAGNOSES[level.lower()] for level in levels if level.lower() in DIAGNOSES]
    return known[0] if known else (levels[0] if levels else "")


def _rows(root: Path) -> tuple[list[tuple[Row, str]], list[str]]:
    """The rows of every table of metadata with the stem of its file, and a note on them."""
    rows: list[tuple[Row, str]] = []
    used, other = [], []
    for path in files_below(root):
        if path.suffix.lower() != ".csv":
            continue
        found = read_rows(path)
        if not any(name in found[0] for name in NAME):
            other.append(path.name)
            continue
        used.append(path.name)
        rows += [(row, path.stem) for row in found if _first(row, NAME)]
    if not used:
        raise LmdError(
            f"root {root} holds no metadata of the archive: looked for .csv files with a column "
            f"{' or '.join(NAME)}, found {shorten(other) or 'no .csv file'} ({SOURCE})"
        )
    notes = [f"metadata from {shorten(used)}"]
    if other:
        notes.append(f"no column {' or '.join(NAME)}, so not read: {shorten(other)}")
    return rows, notes


def _first(row: Row, columns: Iterable[str]) -> str:
    return next((row[column] for column in columns if row.get(column)), "")


def _group(row: Row, group: str) -> str:
    if group == "none":
        return ""
    # Prefixed by what they name, so that a patient and a lesion of one number stay apart.
    wanted = ["lesion"] if group == "lesion" else ["patient", "lesion"]
    return next((f"{what} {name}" for what in wanted if (name := _first(row, GROUPS[what]))), "")


def _distinct(
    names: Sequence[str], labels: Sequence[str], groups: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Each image once; an error where two rows give it two classes."""
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        known = first.setdefault(name, i)
        if labels[known] != labels[i]:
            raise LmdError(
                f"image {name!r} is {labels[known]} in one row of the metadata and {labels[i]} in "
                "another: remove one of them"
            )
    # In order of names, for the order of files and rows changes from export to export.
    kept = sorted(first.values(), key=names.__getitem__)
    return [names[i] for i in kept], [labels[i] for i in kept], [groups[i] for i in kept]


def _thin(table: Table, seed: int) -> Table:
    published = np.array([PUBLISHED[name] for name in table.classes])
    return subsample(table, np.minimum(published, table.counts()), seed=seed)


def _group_note(group: str, groups: Sequence[str]) -> str:
    if any(groups):
        own = sum(not name for name in groups)
        return (
            f"split by {group}: {len({*groups} - {''})} of them are named; {own} images without "
            "a name stand for themselves"
        )
    why = "as asked" if group == "none" else f"the metadata name no {group}"
    return f"split by image ({why}): images of one lesion may be in training and in test"


RECIPE = Recipe(
    key="isic-archive-lt",
    title="ISIC-Archive-LT",
    what="14 skin diagnoses, dermoscopy; r about 1000; 7:1:2 per class",
    source=SOURCE,
    licence="each image its own: CC0, CC BY or CC BY-NC (column copyright_license)",
    size="25 020 images when it was published; the archive has grown since",
    function=isic_archive_lt,
)
