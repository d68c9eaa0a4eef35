"""Hyper-Kvasir: the labelled images, twenty-three findings of the digestive tract."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.sources.folders import images_below
from lmd.data.splits import split
from lmd.recipes.recipe import Download, Listing, Made, Recipe, read_rows, require_distinct

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
    """Split all labelled images, 8:1:1 in each class.

    Classes are the folders ``{lower,upper}-gi-tract/CATEGORY/FINDING``. ``image-labels.csv``, if
    present, is compared with them and shows which images are missing.
    """
    download = Download(root, SOURCE, PUBLISHED, allow_missing_images)
    images = _tree(root)
    listed: dict[str, str] = {}
    path = download.find(LABELS)
    if path is not None:
        listed = _listed(path, images, download.notes)
        download.note_missing(sorted(listed.keys() - images.keys()), len(listed))
    else:
        download.notes.append(f"there is no {LABELS}: the labels are those of the folders")
        # Without a list of images only the published counts show a partial download.
        _require_whole([label for _, label in images.values()], root, allow_missing_images)
    names = sorted({*images, *listed})
    labels = [images[name][1] if name in images else listed[name] for name in names]
    cells = [images[name][0] if name in images else name for name in names]
    listing = Listing(root, names, labels, cells)
    download.compare_counts(labels)
    download.notes.append(
        "split by image: the data set does not name patients, so frames of one examination may be "
        "in training and in test"
    )
    return download.made(listing, split(listing.table(), (0.8, 0.1, 0.1), seed), None)


def _tree(root: Path) -> dict[str, tuple[str, str]]:
    """Find each image by its stem: path relative to the root, and its finding."""
    tracts = [folder for name in TRACTS for folder in sorted(root.rglob(name)) if folder.is_dir()]
    images: dict[str, tuple[str, str]] = {}
    for tract in tracts:
        for path in images_below(tract):
            inside = path.relative_to(tract).parts
            if len(inside) != 3:
                raise LmdError(f"image {path} is not in {tract}/CATEGORY/FINDING: move it there")
            if path.stem in images:
                other = root / images[path.stem][0]
                raise LmdError(f"images {other} and {path} have the same name: keep one of them")
            images[path.stem] = (path.relative_to(root).as_posix(), inside[1])
    if not images:
        raise LmdError(
            f"root {root} contains no labelled images: looked for "
            f"labeled-images/{{{','.join(TRACTS)}}}/CATEGORY/FINDING/*.jpg ({SOURCE})"
        )
    return images


def _listed(path: Path, images: Mapping[str, tuple[str, str]], notes: list[str]) -> dict[str, str]:
    """Read the finding of each image in the CSV file, by the names of the folders."""
    rows = read_rows(path, ["Video file", "Finding"])
    names = [Path(row["Video file"]).stem for row in rows]
    require_distinct(path, names)
    findings = {name: row["Finding"] for name, row in zip(names, rows, strict=True)}
    # Both names of a finding, in the file and of the folder, must belong to each other alone.
    folders: dict[str, str] = {}
    words: dict[str, str] = {}
    for name in sorted(findings.keys() & images.keys()):
        word, folder = findings[name], images[name][1]
        if folders.setdefault(word, folder) != folder or words.setdefault(folder, word) != word:
            _contradiction(path, word, findings, images)
    if other := sorted(f"{word} is {folder}" for word, folder in folders.items() if word != folder):
        notes.append(f"{LABELS} uses other names than the folders: {shorten(other)}")
    if extra := sorted(images.keys() - findings.keys()):
        notes.append(f"{len(extra)} images are not in {LABELS} ({shorten(extra)}), but are used")
    return {name: folders.get(word, word) for name, word in findings.items()}


def _contradiction(
    path: Path, word: str, findings: Mapping[str, str], images: Mapping[str, tuple[str, str]]
) -> None:
    wrong = [
        f"{images[name][0]} is {finding!r} there"
        for name, finding in sorted(findings.items())
        if name in images and finding != images[name][1]
    ]
    raise LmdError(
        f"{path} and the folders disagree on {len(wrong)} images, finding {word!r} among them "
        f"({shorten(wrong)}): unpack the download again"
    )


def _require_whole(labels: Sequence[str], root: Path, allow_missing: bool) -> None:
    counts = Counter(labels)
    short = [f"{name} {counts[name]} of {n}" for name, n in PUBLISHED.items() if counts[name] < n]
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
