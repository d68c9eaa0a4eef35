"""What the doctor can find, how grave it is, and what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Severity = Literal["error", "warning", "note"]
# Kinds whose names are files or lines, and not classes or columns that the sentence says already.
LISTS = frozenset({"unlisted_file", "ragged_row", "empty_class_folder"})
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Case:
    """One image as the source names it; ``fault`` is the kind of finding that bars its use.

    ``group`` and ``part`` are empty where the source has none; ``line`` counts lines of a manifest
    from 1; ``path`` is ``None`` where no file was found, or where pixels lie in an array.
    """

    name: str
    label: str
    group: str = ""
    part: str = ""
    path: Path | None = None
    line: int = 0
    fault: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of finding: its title, how grave it is as a rule, and the remedy."""

    title: str
    severity: Severity
    remedy: str


@dataclass(frozen=True)
class Finding:
    """One finding: ``cases`` are numbers of the images concerned, ``sets`` those that belong
    together (copies of one image, images of one group), ``names`` are files, classes or columns.
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
    """A finding of a kind of the catalogue, with the severity and remedy usual for it."""
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
    "refused": Kind("Training would refuse this", "error", "Mend the errors below first."),
    "source": Kind("The source cannot be examined", "error", "Write the file anew."),
    "encoding": Kind("Not UTF-8", "error", "Save the manifest as CSV in UTF-8."),
    "columns": Kind(
        "Columns not found", "error", "Name the right ones: --image-column, --label-column, …"
    ),
    "ragged_row": Kind(
        "Lines with too many cells", "warning", "Put cells that hold the delimiter into quotes."
    ),
    "missing_file": Kind(
        "Files that are not there", "error", "Say where they are with --root, or drop the lines."
    ),
    "outside_root": Kind(
        "Paths that leave the root", "error", "Write paths relative to the root of the data."
    ),
    "ambiguous_file": Kind(
        "Names that mean several files", "error", "Write the path with folder and suffix."
    ),
    "unlabelled": Kind("Images without a label", "error", "Fill the label, or drop the line."),
    "unknown_split": Kind(
        "Unknown words for a part", "error", "Write train, validation (or val) or test."
    ),
    "part_folders": Kind(
        "Folders of parts taken for classes",
        "error",
        "Name all folders at the top train, validation or test, with class folders in each.",
    ),
    "repeated_row": Kind("Lines given twice", "warning", "Drop the repeats."),
    "conflicting_rows": Kind(
        "Lines that contradict each other", "error", "Find out which line is right, drop the rest."
    ),
    "unlisted_file": Kind(
        "Files that the manifest does not name", "note", "Add them if they belong to the data."
    ),
    "stray_image": Kind(
        "Images outside of any class folder", "error", "Move them into the folder of their class."
    ),
    "empty_class_folder": Kind("Class folders without images", "error", "Fill or remove them."),
    "ignored_file": Kind(
        "Images passed over for their names", "warning", "Give them the suffix of their format."
    ),
    # Classes and parts
    "counts": Kind("Images of each class", "note", ""),
    "imbalance": Kind(
        "A long tail", "note", "Judge a model by balanced accuracy, and each class by its own."
    ),
    "one_class": Kind("One class only", "error", "Give images of at least two classes."),
    "too_few": Kind(
        "Classes too small to split", "error", "Merge the class with another, or drop it."
    ),
    "absent_in_part": Kind(
        "Classes missing from a part", "warning", "Give each part images of every class."
    ),
    "tiny_test": Kind(
        "Test classes of a few images",
        "warning",
        "Read such classes by their intervals; collect more, or cross-validate.",
    ),
    "class_name": Kind(
        "One class under two names", "warning", "Use one spelling; --fix takes the commonest."
    ),
    "class_spelling": Kind(
        "Class names that look alike", "warning", "If they mean one class, rename one of them."
    ),
    # Groups
    "groups": Kind(
        "Groups of images", "note", "Always split by group; lmd does so where there is a group."
    ),
    "group_in_parts": Kind("Groups in two parts", "error", "Put each group into one part."),
    "group_labels": Kind(
        "Groups of several classes", "note", "Right for patients, suspicious for lesions: check."
    ),
    "group_hint": Kind(
        "There may be groups", "note", "If so, say them in a group column of a manifest."
    ),
    # Files
    "empty_file": Kind("Empty files", "error", "Copy them again from where they came, or drop."),
    "truncated": Kind("Files cut short", "error", "Copy them again from where they came, or drop."),
    "end_missing": Kind(
        "JPEG without an end", "warning", "Look at the lower edge: the last rows may be lost."
    ),
    "unreadable": Kind("Unreadable images", "error", "Replace or remove them."),
    "huge": Kind("Images too large to decode", "error", "Make them smaller, or remove them."),
    "tiny": Kind("Tiny images", "warning", "Check for thumbnails among the images."),
    "one_colour": Kind("Images of one colour", "warning", "They show nothing: remove them."),
    "greyscale": Kind(
        "Grey images among coloured ones",
        "warning",
        "Check that grey or coloured does not give the class away.",
    ),
    "cmyk": Kind("CMYK images", "warning", "Convert them to RGB with their colour profile."),
    "palette": Kind("Images with a palette", "note", "They were reduced to few colours: check."),
    "alpha": Kind(
        "Transparent images", "warning", "Transparent pixels read as black: flatten them yourself."
    ),
    "deep": Kind(
        "More than 8 bits", "note", "They are scaled to 8 bits by their whole range: check."
    ),
    "exif_rotated": Kind(
        "Images turned by EXIF", "note", "lmd turns them upright; check that your other tools do."
    ),
    "wrong_suffix": Kind(
        "Suffixes that lie", "warning", "lmd goes by content; rename them for other tools."
    ),
    "frames": Kind(
        "Several frames or pages", "warning", "The first alone is used: extract the one you mean."
    ),
    "metadata": Kind(
        "Corrupt metadata", "note", "Pixels are fine; a broken orientation is ignored: check."
    ),
    # Copies
    "duplicate": Kind("Exact duplicates", "warning", "Keep one of each."),
    "duplicate_in_parts": Kind(
        "The same image in two parts", "error", "Keep it in one part: it is known at test."
    ),
    "conflicting_duplicates": Kind(
        "One image under two labels", "error", "Find out which is right, or drop all of them."
    ),
    "near_duplicate": Kind(
        "Near-duplicates", "warning", "Give those of one origin one group, or drop the copies."
    ),
    "near_duplicate_in_parts": Kind(
        "Near-duplicates in two parts", "warning", "If of one origin, put them into one part."
    ),
    "near_duplicate_labels": Kind(
        "Near-duplicates under two labels", "warning", "Look at them: one label may be wrong."
    ),
}
