"""Hyper-Kvasir: the labelled images, twenty-three findings of the digestive tract."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.splits import split
from lmd.data.walk import files_below, images_of
from lmd.recipes import Download, Made, read_rows, require_distinct

LABELS = "image-labels.csv"
TRACTS = ("lower-gi-tract", "upper-gi-tract")
Images = Mapping[str, tuple[str, str]]  # by stem: path relative to the root, and finding


def build(download: Download, *, seed: int = 0) -> Made:
    """Split all labelled images, 8:1:1 in each class.

    Classes are the folders ``{lower,upper}-gi-tract/CATEGORY/FINDING``. ``image-labels.csv``, if
    present, is compared with them and shows which images are missing.
    """
    images = _tree(download)
    findings: dict[str, str] = {}
    if path := download.find(LABELS):
        findings = _findings(path, images, download.notes)
        download.note_missing(sorted(findings.keys() - images.keys()), len(findings))
    else:
        download.notes.append(f"there is no {LABELS}: the labels are those of the folders")
        counts = Counter(label for _, label in images.values())
        published = download.recipe.published.items()
        short = [f"{name} {counts[name]} of {n}" for name, n in published if counts[name] < n]
        # Without a list of images, only the published counts show a partial download.
        if short and not download.allow_missing:
            raise LmdError(
                f"root {download.root} contains only part of the data set ({shorten(short)}): "
                "complete the download, or use the images you have with --allow-missing-images"
            )
    download.names = names = sorted({*images, *findings})
    places = [images.get(name) or (name, findings[name]) for name in names]
    download.cells, download.labels = zip(*places, strict=True)
    download.compare_counts()
    download.notes.append(
        "split by image: the data set does not name patients, so frames of one examination may be "
        "in training and in test"
    )
    return download.manifest(split(download.table(), (0.8, 0.1, 0.1), seed), None)


def _tree(download: Download) -> Images:
    """Find the images in the folders of their findings."""
    root = download.root
    tracts = [folder for name in TRACTS for folder in sorted(root.rglob(name)) if folder.is_dir()]
    images: dict[str, tuple[str, str]] = {}
    for tract in tracts:
        for path in images_of(files_below(tract), tract):
            inside = path.relative_to(tract).parts
            if len(inside) != 3:
                raise LmdError(f"image {path} is not in {tract}/CATEGORY/FINDING: move it there")
            if path.stem in images:
                other = root / images[path.stem][0]
                raise LmdError(f"images {other} and {path} have the same name: keep one of them")
            images[path.stem] = (path.relative_to(root).as_posix(), inside[1])
    if not images:
        raise LmdError(
            f"root {root} contains no labelled images: looked for labeled-images/"
            f"{{{','.join(TRACTS)}}}/CATEGORY/FINDING/*.jpg ({download.recipe.source})"
        )
    return images


def _findings(path: Path, images: Images, notes: list[str]) -> dict[str, str]:
    """Read the finding of each image in the CSV file, by the names of the folders."""
    rows = read_rows(path, ["Video file", "Finding"])
    names = [Path(row["Video file"]).stem for row in rows]
    require_distinct(path, names)
    findings = {name: row["Finding"] for name, row in zip(names, rows, strict=True)}
    # Both names of a finding, in the file and of the folder, must belong to each other alone.
    folders: dict[str, str] = {}
    folder_words: dict[str, str] = {}
    common = sorted(findings.keys() & images.keys())
    for name in common:
        word, folder = findings[name], images[name][1]
        same = folder_words.setdefault(folder, word) == word
        if not same or folders.setdefault(word, folder) != folder:
            pairs = [(findings[other], *images[other]) for other in common]
            wrong = [f"{path} is {word!r} there" for word, path, folder in pairs if word != folder]
            raise LmdError(
                f"{path} and the folders disagree on {len(wrong)} images, finding {word!r} among "
                f"them ({shorten(wrong)}): unpack the download again"
            )
    if other := sorted(f"{word} is {folder}" for word, folder in folders.items() if word != folder):
        notes.append(f"{LABELS} uses other names than the folders: {shorten(other)}")
    if extra := sorted(images.keys() - findings.keys()):
        notes.append(f"{len(extra)} images are not in {LABELS} ({shorten(extra)}), but are used")
    return {name: folders.get(word, word) for name, word in findings.items()}
