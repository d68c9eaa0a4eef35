"""ISIC-Archive-LT: fourteen diagnoses from the metadata of the ISIC Archive."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.imbalance import subsample
from lmd.data.sources.folders import files_below
from lmd.data.splits import split
from lmd.recipes.recipe import Download, Made, Recipe, Row, read_rows

SOURCE = "https://www.isic-archive.com"
FOLDERS = (".", "images")
# Published images of each class, its plain name, and its names in the archive's hierarchy.
CLASSES: dict[str, tuple[int, tuple[str, ...]]] = {
    "NV": (12875, ("nevus",)),
    "MEL": (4522, ("melanoma", "melanoma, nos", "melanoma in situ", "melanoma invasive")),
    "BCC": (3393, ("basal cell carcinoma",)),
    "SK": (1464, ("seborrheic keratosis",)),
    "AK": (869, ("actinic keratosis", "solar or actinic keratosis")),
    "SCC": (
        656,
        (
            "squamous cell carcinoma",
            "squamous cell carcinoma, nos",
            "squamous cell carcinoma in situ",
            "squamous cell carcinoma, invasive",
        ),
    ),
    "BKL": (384, ("pigmented benign keratosis",)),
    "SL": (270, ("solar lentigo",)),
    "VASC": (253, ("vascular lesion", "benign soft tissue proliferations - vascular")),
    "DF": (246, ("dermatofibroma",)),
    "LK": (32, ("lichenoid keratosis", "lichen planus like keratosis")),
    "LS": (27, ("lentigo simplex",)),
    "AN": (15, ("angioma", "hemangioma")),
    "AMP": (14, ("atypical melanocytic proliferation", "atypical melanocytic neoplasm")),
}
PUBLISHED = {code: count for code, (count, _) in CLASSES.items()}
DIAGNOSES = {name: code for code, (_, names) in CLASSES.items() for name in names}
NAME = ("isic_id", "name", "image_name")
PLAIN = ("diagnosis", "meta.clinical.diagnosis")
# The deepest level first: it is the most exact.
LEVELS = tuple(f"diagnosis_{level}" for level in (5, 4, 3, 2, 1))
KIND = ("image_type", "meta.acquisition.image_type")
# What names the group of an image, the first that is known.
GROUPS = {"lesion": ("lesion",), "patient": ("patient", "lesion"), "none": ()}


def isic_archive_lt(
    root: Path,
    *,
    group: str = "lesion",
    published_counts: bool = False,
    seed: int = 0,
    allow_missing_images: bool = False,
) -> Made:
    """Split every dermoscopic image with one of the diagnoses, 7:1:2 in each class.

    The metadata is one CSV file or several, with the archive's old or new columns. ``group`` stays
    in one part: lesion, patient (the lesion if the patient is unknown) or none.
    ``published_counts`` draws the published number of images where the archive has more now.
    """
    if group not in GROUPS:
        raise LmdError(f"group is {group!r}; expected lesion, patient or none")
    download = Download(root, SOURCE, PUBLISHED, allow_missing_images, FOLDERS)
    rows = _rows(download)
    images, left_out = _diagnosed(rows, group)
    if not images:
        raise LmdError(f"{root}: none of {len(rows)} rows has one of the 14 diagnoses: {SOURCE}")
    names = sorted(images)  # The order of files and rows changes from export to export.
    labels, groups = [images[name][0] for name in names], [images[name][1] for name in names]
    listing = download.locate(names, labels, groups)
    if left_out:
        most = [f"{what}: {count}" for what, count in left_out.most_common()]
        download.notes.append(f"{left_out.total()} rows are left out ({shorten(most, 8)})")
    table = listing.table(grouped=any(groups))
    if published_counts:
        published = np.array([PUBLISHED[name] for name in table.classes])
        table = subsample(table, np.minimum(published, table.counts()), seed=seed)
    table = split(table, seed=seed)
    download.notes.append(_group_note(group, groups))
    return download.made(listing, table, "group" if any(groups) else None)


def _diagnosed(
    rows: Iterable[tuple[Row, str]], group: str
) -> tuple[dict[str, tuple[str, str]], Counter[str]]:
    """Class and group of each image by its name, and why other rows are left out."""
    images: dict[str, tuple[str, str]] = {}
    left_out: Counter[str] = Counter()
    for row, stem in rows:
        if (kind := _first(row, KIND)) not in {"", "dermoscopic"}:
            left_out[f"image type {kind}"] += 1
        elif (label := diagnosis(row, stem)) not in PUBLISHED:
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
    """The class of a row, or its diagnosis if that is not a class.

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
    if plain:
        return DIAGNOSES.get(plain.lower(), plain)
    levels = [row[level] for level in LEVELS if row.get(level)]
    known = [DIAGNOSES[level.lower()] for level in levels if level.lower() in DIAGNOSES]
    return known[0] if known else (levels[0] if levels else "")


def _rows(download: Download) -> list[tuple[Row, str]]:
    """Read all rows of metadata, each with the stem of its file."""
    rows: list[tuple[Row, str]] = []
    used, other = [], []
    for path in files_below(download.root):
        if path.suffix.lower() != ".csv":
            continue
        table = read_rows(path)
        if not any(name in table[0] for name in NAME):
            other.append(path.name)
            continue
        used.append(path.name)
        rows += [(row, path.stem) for row in table if _first(row, NAME)]
    if not used:
        raise LmdError(
            f"root {download.root} contains no metadata of the archive: expected .csv files with a "
            f"column {' or '.join(NAME)}, found {shorten(other) or 'no .csv file'} ({SOURCE})"
        )
    download.notes.append(f"metadata from {shorten(used)}")
    if other:
        download.notes.append(f"not read, no column {' or '.join(NAME)}: {shorten(other)}")
    return rows


def _first(row: Row, columns: Iterable[str]) -> str:
    return next((row[column] for column in columns if row.get(column)), "")


def _group(row: Row, group: str) -> str:
    # With a prefix, so that a patient and a lesion with the same number stay apart.
    for what in GROUPS[group]:
        if name := _first(row, (f"{what}_id", f"meta.clinical.{what}_id")):
            return f"{what} {name}"
    return ""


def _group_note(group: str, groups: Sequence[str]) -> str:
    if any(groups):
        own = sum(not name for name in groups)
        return (
            f"split by {group}: {len({*groups} - {''})} groups; {own} images without a known "
            f"{group} are groups of their own"
        )
    why = "as asked" if group == "none" else f"the metadata has no {group}"
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
