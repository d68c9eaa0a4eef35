"""What can be wrong with a data set, how serious it is, and what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
# Kinds with files or lines as names; the text of other kinds contains the names already.
LISTS = frozenset(
    {"unlisted_file", "ragged_row", "empty_class_folder", "unlisted_folder", "special_file"}
)
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Kind:
    """A kind of finding: its title, its usual severity, and the usual remedy."""

    title: str
    severity: Severity
    remedy: str


@dataclass(frozen=True)
class Finding:
    """One finding: ``cases`` are indices of the affected images, ``sets`` those that belong
    together (copies of one image, images of one group), ``names`` files, classes or columns.
    """

    kind: str
    severity: Severity
    text: str
    remedy: str
    cases: tuple[int, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The kind in words."""
        return KINDS[self.kind].title


def finding(
    kind: str,
    text: str,
    *,
    cases: Iterable[int] = (),
    sets: Iterable[Sequence[int]] = (),
    names: Iterable[str] = (),
    severity: Severity | None = None,
    remedy: str | None = None,
) -> Finding:
    """A finding of this kind, by default with its usual severity and remedy."""
    usual = KINDS[kind]
    together = tuple(tuple(each) for each in sets)
    concerned = tuple(cases) or tuple(i for each in together for i in each)
    return Finding(
        kind,
        severity or usual.severity,
        text,
        usual.remedy if remedy is None else remedy,
        concerned,
        together,
        tuple(names),
    )


KINDS: dict[str, Kind] = {
    # The source
    "refused": Kind("Training would stop", "error", "Fix the errors below first."),
    "source": Kind("Unreadable source", "error", "Replace it with a complete copy."),
    "encoding": Kind("Not UTF-8", "error", "Save the file as CSV in UTF-8."),
    "columns": Kind("Missing columns", "error", "Name the columns with --image-column, …"),
    "ragged_row": Kind(
        "Lines with too many cells",
        "warning",
        "Put quotes around cells that contain the delimiter.",
    ),
    "missing_file": Kind(
        "Missing files",
        "error",
        "Set --root to the folder of the images, or leave them out with --skip-bad.",
    ),
    "outside_root": Kind(
        "Paths outside the root",
        "error",
        "Write paths relative to the root, or use --allow-outside if you trust the manifest.",
    ),
    "ambiguous_file": Kind("Ambiguous names", "error", "Write the path with folder and suffix."),
    "unlabelled": Kind(
        "Images without a label", "error", "Fill in the label, or leave them out with --skip-bad."
    ),
    "unknown_split": Kind(
        "Unknown names of parts", "error", "Use train, validation (or val) or test."
    ),
    "part_folders": Kind(
        "Part folders that cannot be used",
        "error",
        "Name all top folders train, validation or test, and put class folders into each.",
    ),
    "repeated_row": Kind("Repeated lines", "warning", "Remove the repeats."),
    "conflicting_rows": Kind(
        "Contradictory lines", "error", "Find out which line is right and remove the others."
    ),
    "unlisted_file": Kind(
        "Images not in the manifest", "note", "Add them if they belong to the data set."
    ),
    "stray_image": Kind(
        "Images outside any class folder",
        "error",
        "Move them into the folder of their class, or leave them out with --skip-bad.",
    ),
    "empty_class_folder": Kind(
        "Empty class folders", "error", "Fill or remove them, or leave them out with --skip-bad."
    ),
    "unlisted_folder": Kind(
        "Folders that cannot be listed",
        "error",
        "Make them readable, remove links in circles, or leave them out with --skip-bad.",
    ),
    "special_file": Kind(
        "Pipes, sockets and devices",
        "error",
        "Remove them, or leave them out with --skip-bad.",
    ),
    "ignored_file": Kind(
        "Images ignored because of their names", "warning", "Add the suffix of their format."
    ),
    # Classes and parts
    "counts": Kind("Images per class", "note", ""),
    "imbalance": Kind(
        "Long tail", "note", "Judge models by balanced accuracy and by the recall of each class."
    ),
    "one_class": Kind("Only one class", "error", "Provide images of at least two classes."),
    "too_few": Kind(
        "Classes too small to split", "error", "Merge each with another class, or remove it."
    ),
    "absent_in_part": Kind(
        "Classes missing from a part", "warning", "Put images of every class into every part."
    ),
    "tiny_test": Kind(
        "Very small test classes",
        "warning",
        "Rely on their intervals, collect more images, or cross-validate.",
    ),
    "class_name": Kind(
        "One class under two names", "warning", "Use one spelling; --fix uses the most common."
    ),
    "class_spelling": Kind(
        "Similar class names", "warning", "Rename one of them if they mean the same class."
    ),
    # Groups
    "groups": Kind("Groups", "note", "Split by group; lmd does this whenever groups are known."),
    "group_in_parts": Kind(
        "Groups in several parts", "error", "Put all images of a group into one part."
    ),
    "group_labels": Kind(
        "Groups with several classes", "note", "Normal for patients; for lesions, check the labels."
    ),
    "group_hint": Kind(
        "Possible groups", "note", "If they are real, add a group column to a manifest."
    ),
    # Files
    "empty_file": Kind("Empty files", "error", "Copy the originals again, or remove them."),
    "truncated": Kind("Truncated files", "error", "Copy the originals again, or remove them."),
    "end_missing": Kind(
        "JPEG files without an end marker", "warning", "Check whether the last rows are missing."
    ),
    "unreadable": Kind("Unreadable images", "error", "Replace or remove them."),
    "huge": Kind("Images too large to decode", "error", "Make them smaller, or remove them."),
    "tiny": Kind("Tiny images", "warning", "Check whether they are thumbnails."),
    "one_colour": Kind("Blank images", "warning", "Remove them."),
    "greyscale": Kind(
        "Grey images among colour images",
        "warning",
        "Check whether being grey gives the class away.",
    ),
    "cmyk": Kind("CMYK images", "warning", "Convert them to RGB with their colour profile."),
    "palette": Kind("Palette images", "note", "Check whether colours were lost."),
    "alpha": Kind(
        "Transparent images", "warning", "Flatten them; otherwise transparent pixels become black."
    ),
    "deep": Kind("More than 8 bits", "note", "Check that 8 bits of the full range suffice."),
    "exif_rotated": Kind(
        "Images rotated by EXIF", "note", "lmd turns them upright; check that other tools do too."
    ),
    "wrong_suffix": Kind(
        "Wrong suffixes", "warning", "Rename them; lmd goes by content, other tools may not."
    ),
    "frames": Kind(
        "Several frames or pages", "warning", "Extract the right one; only the first is used."
    ),
    "metadata": Kind(
        "Corrupt metadata", "note", "Check the orientation; the pixels can be read as usual."
    ),
    # Copies
    "duplicate": Kind("Exact duplicates", "warning", "Keep one of each."),
    "duplicate_in_parts": Kind(
        "The same image in several parts", "error", "Keep each image in one part only."
    ),
    "conflicting_duplicates": Kind(
        "One image with several labels", "error", "Find out which label is right, or remove all."
    ),
    "near_duplicate": Kind(
        "Near-duplicates",
        "warning",
        "Put them into one group, or keep one of them.",
    ),
    "near_duplicate_in_parts": Kind(
        "Near-duplicates in several parts",
        "warning",
        "Put similar images into the same part.",
    ),
    "near_duplicate_labels": Kind(
        "Near-duplicates with several labels", "warning", "Check them: a label may be wrong."
    ),
}
