"""Hyper-Kvasir: the labelled images, twenty-three findings of the digestive tract."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.sources.folders import images_below
from lmd.data.splits import split
from lmd.recipes.download import (
    Listing,
    compare_counts,
    find_file,
    missing_note,
    read_rows,
    require_distinct,
    require_root,
)
from lmd.recipes.recipe import Made, Recipe, manifest

SOURCE = "https://datasets.simula.no/hyper-kvasir/"
LABELS = "image-labels.csv"
TRACTS = ("lower-gi-tract", "upper-gi-tract")
PUBLISHED = {
    "bbps-2-3": 1148,
    "polyps": 1028,
    "cecum": 1009,
    "dyed-lifted-polyps": 1002,
    "pylorus": 999,
    "dyed-resection-margins": 989,
    "z-line": 932,
    "retroflex-stomach": 764,
    "bbps-0-1": 646,
    "ulcerative-colitis-grade-2": 443,
    "esophagitis-a": 403,
    "retroflex-rectum": 391,
    "esophagitis-b-d": 260,
    "ulcerative-colitis-grade-1": 201,
    "ulcerative-colitis-grade-3": 133,
    "impacted-stool": 131,
    "barretts-short-segment": 53,
    "barretts": 41,
    "ulcerative-colitis-grade-0-1": 35,
    "ulcerative-colitis-grade-2-3": 28,
    "ulcerative-colitis-grade-1-2": 11,
    "ileum": 9,
    "hemorrhoids": 6,
}


def hyper_kvasir(root: Path, *, seed: int = 0, allow_missing_images: bool = False) -> Made:
    """All labelled images, split 8:1:1 in each class.

    Classes are the folders ``{lower,upper}-gi-tract/CATEGORY/FINDING``. ``image-labels.csv``, if
    present, is compared with them and shows which images are missing.
    """
    found = _tree(require_root(root))
    path = find_file(root, LABELS)
    if path is None:
        said: dict[str, str] = {}
        notes = [f"there is no {LABELS}: the labels are those of the folders"]
        # Without a list of images only the published counts show a partial download.
        _require_whole([label for _, label in found.values()], root, allow_missing_images)
    else:
        said, notes = _said(path, found)
        gone = sorted(said.keys() - found.keys())
        notes += missing_note(root, gone, len(said), allow_missing=allow_missing_images)
    names = sorted({*found, *said})
    labels = [found[name][1] if name in found else said[name] for name in names]
    cells = [found[name][0] if name in found else name for name in names]
    listing = Listing(root, names, labels, cells)
    notes += compare_counts(labels, PUBLISHED)
    notes.append(
        "split by image: the data set does not name patients, so frames of one examination may be "
        "in training and in test"
    )
    table = split(listing.table(), (0.8, 0.1, 0.1), seed)
    return Made(table, tuple(notes), manifest(listing, table, None))


def _tree(root: Path) -> dict[str, tuple[str, str]]:
    """Each image by its stem: path relative to the root, and its finding."""
    tracts = [folder for name in TRACTS for folder in sorted(root.rglob(name)) if folder.is_dir()]
    found: dict[str, tuple[str, str]] = {}
    for tract in tracts:
        for path in images_below(tract):
            inside = path.relative_to(tract).parts
            if len(inside) != 3:
                raise LmdError(f"image {path} is not in {tract}/CATEGORY/FINDING: move it there")
            if path.stem in found:
                other = root / found[path.stem][0]
                raise LmdError(f"images {other} and {path} have the same name: keep one of them")
            found[path.stem] = (path.relative_to(root).as_posix(), inside[1])
    if not found:
        raise LmdError(
            f"root {root} contains no labelled images: looked for "
            f"labeled-images/{{{','.join(TRACTS)}}}/CATEGORY/FINDING/*.jpg ({SOURCE})"
        )
    return found


def _said(path: Path, found: Mapping[str, tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """The finding of each image in the CSV file, by the names of the folders, and notes."""
    rows = read_rows(path, ["Video file", "Finding"])
    names = [Path(row["Video file"]).stem for row in rows]
    require_distinct(path, names)
    said = {name: row["Finding"] for name, row in zip(names, rows, strict=True)}
    folders: dict[str, set[str]] = defaultdict(set)
    words: dict[str, set[str]] = defaultdict(set)
    for name in said.keys() & found.keys():
        folders[said[name]].add(found[name][1])
        words[found[name][1]].add(said[name])
    for word, places in folders.items():
        if len(places) > 1 or any(len(words[place]) > 1 for place in places):
            _contradiction(path, word, said, found)
    renamed = {word: next(iter(places)) for word, places in folders.items()}
    notes = []
    if other := sorted(f"{word} is {folder}" for word, folder in renamed.items() if word != folder):
        notes.append(f"{LABELS} uses other names than the folders: {shorten(other)}")
    if extra := sorted(found.keys() - said.keys()):
        notes.append(f"{len(extra)} images are not in {LABELS} ({shorten(extra)}), but are used")
    return {name: renamed.get(word, word) for name, word in said.items()}, notes


def _contradiction(
    path: Path, word: str, said: Mapping[str, str], found: Mapping[str, tuple[str, str]]
) -> None:
    wrong = [
        f"{found[name][0]} is {finding!r} there"
        for name, finding in sorted(said.items())
        if name in found and finding != found[name][1]
    ]
    raise LmdError(
        f"{path} and the folders disagree on {len(wrong)} images, finding {word!r} among them "
        f"({shorten(wrong)}): unpack the download again"
    )


def _require_whole(labels: Sequence[str], root: Path, allow_missing: bool) -> None:
    found = Counter(labels)
    short = [f"{name} {found[name]} of {n}" for name, n in PUBLISHED.items() if found[name] < n]
    if short and not allow_missing:
        raise LmdError(
            f"root {root} contains only part of the data set ({shorten(short)}): complete the "
            "download, or use the images you have with --allow-missing-images"
        )


RECIPE = Recipe(
    key="hyper-kvasir",
    title="Hyper-Kvasir, labelled images",
    what="23 findings, gastro-intestinal endoscopy; natural tail; 8:1:1 per class",
    source=SOURCE,
    licence="CC BY 4.0",
    size="10 662 images, about 4 GB",
    function=hyper_kvasir,
)
