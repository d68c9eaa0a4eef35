"""HAM10000: seven skin diagnoses, split by lesion, with the natural tail or a longer one."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from lmd.base.errors import LmdError
from lmd.data.imbalance import pareto_counts, size_ranks, subsample
from lmd.data.splits import hash_order, part_sizes, split
from lmd.data.table import PARTS, Table
from lmd.recipes.recipe import Download, Listing, Made, Recipe, read_rows, require_distinct

SOURCE = "https://doi.org/10.7910/DVN/DBW86T"
METADATA = ("HAM10000_metadata.csv", "HAM10000_metadata.tab", "HAM10000_metadata")
FOLDERS = (
    "HAM10000_images_part_1",
    "HAM10000_images_part_2",
    "ISIC2018_Task3_Training_Input",
    "images",
    ".",
)
PUBLISHED = {"nv": 6705, "mel": 1113, "bkl": 1099, "bcc": 514, "akiec": 327, "vasc": 142, "df": 115}
HEAD_SIZE = 2000
# With fewer lesions a recall says little: one lesion of ten changes it by ten points.
FEW = 10


def ham10000(
    root: Path,
    *,
    factor: float | None = None,
    head_size: int | None = None,
    validation_share: float | None = None,
    seed: int = 0,
    allow_missing_images: bool = False,
) -> Made:
    """Split by lesion: 7:1:2 with the natural tail, or with a long-tailed training part.

    With ``factor`` r the training counts are N_0 r^(-c / (K - 1)), N_0 = ``head_size`` (2000). Of
    the other lesions ``validation_share`` (0.1) is for validation and the rest for test, so that
    rare classes are tested on many images. All images of a lesion are in the same part.
    """
    download = Download(root, SOURCE, PUBLISHED, allow_missing_images, FOLDERS)
    path = download.require(*METADATA)
    rows = read_rows(path, ["image_id", "lesion_id", "dx"])
    names = [row["image_id"] for row in rows]
    require_distinct(path, names)
    for row in rows:
        if row["dx"] not in PUBLISHED:
            raise LmdError(
                f"{path}: image {row['image_id']!r} has dx {row['dx']!r}; expected one of "
                f"{', '.join(PUBLISHED)}"
            )
    labels, lesions = [row["dx"] for row in rows], [row["lesion_id"] for row in rows]
    listing = download.locate(names, labels, lesions)
    _require_one_diagnosis(listing)
    table = listing.table(grouped=True)
    if factor is None:
        if head_size is not None or validation_share is not None:
            raise LmdError("head_size and validation_share need a factor: set --factor")
        table = split(table, seed=seed)
    else:
        share = 0.1 if validation_share is None else validation_share
        if not 0 < share < 1:
            raise LmdError(f"validation_share is {share:g}; expected a number between 0 and 1")
        table = long_tailed(
            table, factor, HEAD_SIZE if head_size is None else head_size, share, seed
        )
    download.notes.append(_lesions(table))
    return download.made(listing, table, "group")


def long_tailed(table: Table, factor: float, head_size: int, share: float, seed: int) -> Table:
    """Draw a Pareto-shaped training part by whole lesions; validation is a share of the rest."""
    counts = table.counts()
    wanted = pareto_counts(head_size, factor, len(counts))[size_ranks(counts)]
    for name, has, asked in zip(table.classes, counts, wanted, strict=True):
        if asked > has:
            raise LmdError(
                f"head_size {head_size} and factor {factor:g} ask for {asked} training images of "
                f"class {name!r}, which has {has}: choose a smaller head_size or a larger factor"
            )
    drawn = subsample(table, wanted, seed=seed).rows
    parts = np.where(np.isin(table.rows, drawn), "train", "").astype("<U10")
    assert table.groups is not None
    for c, name in enumerate(table.classes):
        rest = (parts == "") & (table.labels == c)
        lesions = np.unique(table.groups[rest])
        if len(lesions) < 2:
            raise LmdError(
                f"head_size {head_size} and factor {factor:g} leave {len(lesions)} lesions of "
                f"class {name!r} for validation and test, which need one each: choose a smaller "
                "head_size or a larger factor"
            )
        size = part_sizes(len(lesions), (share, 1 - share))[0]
        chosen = lesions[hash_order(lesions.tolist(), f"validation {seed}")[:size]]
        parts[rest] = np.where(np.isin(table.groups[rest], chosen), "validation", "test")
    return replace(table, parts=parts)


def _require_one_diagnosis(listing: Listing) -> None:
    diagnoses: dict[str, str] = {}
    several = []
    for lesion, diagnosis in zip(listing.groups or (), listing.labels, strict=True):
        if lesion and diagnoses.setdefault(lesion, diagnosis) != diagnosis:
            several.append(lesion)
    if several:
        raise LmdError(
            f"{len(set(several))} lesions have more than one dx, for example {several[0]!r}: "
            "a lesion has one diagnosis in this data set, so correct its metadata"
        )


def _lesions(table: Table) -> str:
    listed, few = [], []
    for part in PARTS:
        images = table.part(part)
        assert images.groups is not None
        listed.append(f"{len(np.unique(images.groups))} in {part}")
        for c, name in enumerate(table.classes):
            held = len(np.unique(images.groups[images.labels == c]))
            if held < FEW and part != "train":
                few.append(f"{name} {held} in {part}")
    text = f"split by lesion, each in one part: {', '.join(listed)}"
    return f"{text}; few lesions, so wide intervals: {', '.join(few)}" if few else text


RECIPE = Recipe(
    key="ham10000",
    title="HAM10000",
    what="7 skin diagnoses, dermoscopy; by lesion 7:1:2, or HAM10000-LT with --factor 100",
    source=SOURCE,
    licence="CC BY-NC 4.0",
    size="10 015 images of 7470 lesions, about 3 GB",
    function=ham10000,
)
