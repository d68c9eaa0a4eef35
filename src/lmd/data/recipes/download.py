"""What a download holds: its tables, and where its images lie."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.reading import FileImages
from lmd.data.sources.csv_file import read_csv
from lmd.data.sources.finder import Finder
from lmd.data.sources.labelling import class_order, encode, require_classes
from lmd.data.sources.walk import files_below
from lmd.data.table import Table

Row = Mapping[str, str]


@dataclass(frozen=True)
class Listing:
    """The labelled images of a download.

    ``names (N,)`` decide what is drawn, ``cells (N,)`` are paths relative to the root (the bare
    name where the image is not on disk), ``groups (N,)`` name the lesion or patient, empty where
    that is not known, ``None`` where the download says nothing about it.
    """

    root: Path
    names: tuple[str, ...]
    labels: tuple[str, ...]
    cells: tuple[str, ...]
    groups: tuple[str, ...] | None = None

    def table(self, *, grouped: bool = False) -> Table:
        """The table with names as ids, so that a split does not depend on where images lie."""
        require_classes(self.labels, self.root)
        classes = class_order(self.labels)
        groups = None
        if grouped:
            assert self.groups is not None
            own = [f"image {name}" for name in self.names]
            groups = np.array([g or o for g, o in zip(self.groups, own, strict=True)], np.str_)
        return Table(
            ids=np.array(self.names, dtype=np.str_),
            labels=encode(self.labels, classes),
            classes=classes,
            images=FileImages(tuple(self.root / cell for cell in self.cells)),
            rows=np.arange(len(self.names), dtype=np.int64),
            groups=groups,
            source=str(self.root),
            kind="recipe",
        )


def require_root(root: Path) -> Path:
    """The folder of a download; an ``LmdError`` if it is not there."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise LmdError(f"root {root} {what}: give the folder that the data set was unpacked to")
    return root


def find_file(root: Path, names: Sequence[str]) -> Path | None:
    """The file of one of these names: in the root first, else the only one anywhere below it."""
    for name in names:
        if (root / name).is_file():
            return root / name
    found = [path for path in files_below(root) if path.name in names]
    if len(found) > 1:
        listed = shorten([str(path) for path in found])
        raise LmdError(f"root {root} holds several files of that name: {listed}: keep one of them")
    return found[0] if found else None


def require_file(root: Path, names: Sequence[str], source: str) -> Path:
    """Like ``find_file``; an ``LmdError`` says what was looked for where."""
    found = find_file(root, names)
    if found is None:
        raise LmdError(
            f"root {root} holds no {' or '.join(names)}, neither directly nor in a folder below: "
            f"it comes with the data set ({source})"
        )
    return found


def read_rows(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """The rows of a table in CSV (commas, semicolons or tabs) that must have these columns."""
    table = read_csv(path)
    errors = [found.text for found in table.findings if found.severity == "error"]
    if errors:
        raise LmdError(f"{path}: {errors[0]} Download it again")
    absent = [name for name in columns if name not in table.header]
    if absent:
        raise LmdError(
            f"{path} has no column {', '.join(absent)}; its columns are "
            f"{', '.join(table.header)}: is it the file that comes with the data set?"
        )
    return [dict(zip(table.header, cells, strict=False)) for _, cells in table.lines]


def require_distinct(path: Path, names: Sequence[str]) -> None:
    """An ``LmdError`` if an image is in two rows of a table."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LmdError(f"{path} has {len(twice)} images in more than one row: {shorten(twice)}")


def locate(
    root: Path, names: Sequence[str], folders: Sequence[str], *, allow_missing: bool
) -> tuple[tuple[str, ...], list[str]]:
    """The path of each image relative to the root, and a note on those that are not there.

    An image is looked for in ``folders``, then anywhere below the root. Missing ones are an
    ``LmdError`` unless allowed; their path is then the bare name.
    """
    finder = Finder(root, ())
    cells, missing = [], []
    for name in names:
        tries = (finder.find(f"{folder}/{name}") for folder in folders)
        found = next((paths for paths in tries if paths), None) or finder.find(name)
        if len(found) > 1:
            listed = shorten([str(path) for path in found])
            raise LmdError(f"image {name!r} may be any of {listed}: keep one of them below {root}")
        cells.append(found[0].relative_to(root).as_posix() if found else name)
        if not found:
            missing.append(name)
    return tuple(cells), missing_note(root, missing, len(names), allow_missing=allow_missing)


def missing_note(root: Path, missing: list[str], total: int, *, allow_missing: bool) -> list[str]:
    """A sentence on images that are not on disk; an ``LmdError`` unless that is allowed."""
    if not missing:
        return []
    text = f"{len(missing)} of {total} images are not below {root} ({shorten(missing)})"
    if not allow_missing:
        raise LmdError(
            f"{text}: complete the download, or keep them in the split with --allow-missing-images"
        )
    return [f"{text}: they are in the split nevertheless, and training will require them"]


def compare_counts(labels: Sequence[str], published: Mapping[str, int]) -> list[str]:
    """Sentences on how many images each class has, against how many were published."""
    counts = {
        name: labels.count(name) for name in dict.fromkeys((*published, *sorted(set(labels))))
    }
    different = [
        f"{name} {count} (published {published.get(name, 0)})"
        for name, count in counts.items()
        if count != published.get(name, 0)
    ]
    if not different:
        total = sum(published.values())
        return [f"all {len(published)} classes have the published counts, {total} images in all"]
    return [
        f"{len(labels)} images where {sum(published.values())} were published; these classes "
        f"differ: {', '.join(different)}"
    ]
