"""HAM10000: seven skin diagnoses, split by lesion, with the natural tail or a longer one."""

from collections import Counter
from dataclasses import replace

import numpy as np

from lmd.base.errors import LmdError
from lmd.data.splits import hash_order, pareto_counts, part_sizes, size_ranks, split, subsample
from lmd.data.table import PARTS, Table
from lmd.recipes import Download, Made, read_rows, require_distinct

METADATA = ("HAM10000_metadata.csv", "HAM10000_metadata.tab", "HAM10000_metadata")
# With fewer lesions a recall says little: one lesion of ten changes it by ten points.
FEW = 10


def build(
    download: Download,
    *,
    factor: float | None = None,
    head_size: int | None = None,
    validation_share: float | None = None,
    seed: int = 0,
) -> Made:
    """Split by lesion: 7:1:2 with the natural tail, or with a long-tailed training part.

    With ``factor`` r the training counts are N_0 r^(-c / (K - 1)), N_0 = ``head_size`` (2000). Of
    the other lesions ``validation_share`` (0.1) is for validation and the rest for test, so that
    rare classes are tested on many images. All images of a lesion are in the same part.
    """
    _read(download)
    table = download.table(grouped=True)
    if factor is None:
        if head_size is not None or validation_share is not None:
            raise LmdError("head_size and validation_share need a factor: set --factor")
        table = split(table, seed=seed)
    else:
        share = 0.1 if validation_share is None else validation_share
        if not 0 < share < 1:
            raise LmdError(f"validation_share is {share:g}; expected a number between 0 and 1")
        table = long_tailed(table, factor, 2000 if head_size is None else head_size, share, seed)
    download.notes.append(_lesions(table))
    return download.manifest(table, "group")


def _read(download: Download) -> None:
    """Read the metadata, in which a lesion has one diagnosis, and find the images."""
    published = download.recipe.published
    path = download.require(*METADATA)
    rows = read_rows(path, ["image_id", "lesion_id", "dx"])
    names, labels, lesions = ([row[c] for row in rows] for c in ("image_id", "dx", "lesion_id"))
    require_distinct(path, names)
    for name, label in zip(names, labels, strict=True):
        if label not in published:
            raise LmdError(
                f"{path}: image {name!r} has dx {label!r}; expected one of {', '.join(published)}"
            )
    download.locate(names, labels, lesions)
    diagnoses = Counter(lesion for lesion, _ in dict.fromkeys(zip(lesions, labels, strict=True)))
    several = [lesion for lesion, count in diagnoses.items() if lesion and count > 1]
    if several:
        raise LmdError(
            f"{len(several)} lesions have more than one dx, for example {several[0]!r}: "
            "a lesion has one diagnosis in this data set, so correct its metadata"
        )


def long_tailed(table: Table, factor: float, head_size: int, share: float, seed: int) -> Table:
    """Draw a Pareto-shaped training part by whole lesions; validation is a share of the rest."""
    counts = table.counts()
    wanted = pareto_counts(head_size, factor, len(counts))[size_ranks(counts)]
    for name, available, target in zip(table.classes, counts, wanted, strict=True):
        if target > available:
            raise LmdError(
                f"head_size {head_size} and factor {factor:g} ask for {target} training images of "
                f"class {name!r}, which has {available}: choose a smaller head_size or a larger "
                "factor"
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


def _lesions(table: Table) -> str:
    """Count the lesions of each part, and name the classes with few of them."""
    totals, few = [], []
    for part in PARTS:
        images = table.part(part)
        assert images.groups is not None
        totals.append(f"{len(np.unique(images.groups))} in {part}")
        for c, name in enumerate(table.classes):
            lesions = len(np.unique(images.groups[images.labels == c]))
            if lesions < FEW and part != "train":
                few.append(f"{name} {lesions} in {part}")
    text = f"split by lesion, each in one part: {', '.join(totals)}"
    return f"{text}; few lesions, so wide intervals: {', '.join(few)}" if few else text
