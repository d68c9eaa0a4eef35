"""What a download contains: its tables and its images."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.sources.folders import files_below
from lmd.data.sources.manifest import Finder, read_csv
from lmd.data.sources.scan import Case, Scan
from lmd.data.table import Table

Row = Mapping[str, str]


@dataclass(frozen=True)
class Listing:
    """The labelled images of a download.

    ``names (N,)`` decide what is drawn, ``cells (N,)`` are paths relative to the root (the bare
    name of a missing image), ``groups (N,)`` name the lesion or patient (empty where unknown).
    """

    root: Path
    names: Sequence[str]
    labels: Sequence[str]
    cells: Sequence[str]
    groups: Sequence[str] | None = None

    def table(self, *, grouped: bool = False) -> Table:
        """The table with names as ids, so that a split does not depend on where images are."""
        groups = self.groups or [""] * len(self.names)
        rows = zip(self.names, self.labels, groups, self.cells, strict=True)
        cases = [
            Case(name, label, group or f"image {name}", path=self.root / cell)
            for name, label, group, cell in rows
        ]
        return Scan(str(self.root), "recipe", self.root, grouped=grouped, cases=cases).table()


def require_root(root: Path) -> Path:
    """The folder of a download; an ``LmdError`` if there is none."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise LmdError(f"root {root} {what}: give the folder with the unpacked data set")
    return root


def find_file(root: Path, *names: str) -> Path | None:
    """The file with one of these names: in the root, or else the only one in a folder below."""
    for name in names:
        if (root / name).is_file():
            return root / name
    found = [path for path in files_below(root) if path.name in names]
    if len(found) > 1:
        listed = shorten([str(path) for path in found])
        raise LmdError(f"root {root} contains several files of that name: {listed}: keep one")
    return found[0] if found else None


def require_file(root: Path, source: str, *names: str) -> Path:
    """Like ``find_file``, but an ``LmdError`` if there is no such file."""
    found = find_file(root, *names)
    if found is None:
        raise LmdError(
            f"root {root} and the folders below contain no {' or '.join(names)}: "
            f"it is part of the data set ({source})"
        )
    return found


def read_rows(path: Path, columns: Iterable[str] = ()) -> list[dict[str, str]]:
    """The rows of a CSV file, which must have these columns."""
    table = read_csv(path)
    errors = [found.text for found in table.findings if found.severity == "error"]
    if errors:
        raise LmdError(f"{path}: {errors[0]} Download it again")
    absent = [name for name in columns if name not in table.header]
    if absent:
        raise LmdError(
            f"{path} has no column {', '.join(absent)}; its columns are "
            f"{', '.join(table.header)}: use the file that comes with the data set"
        )
    return [dict(zip(table.header, cells, strict=False)) for _, cells in table.lines]


def require_distinct(path: Path, names: Sequence[str]) -> None:
    """An ``LmdError`` if an image is in two rows of a file."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LmdError(f"{path} has {len(twice)} images in more than one row: {shorten(twice)}")


def locate(
    root: Path,
    names: Sequence[str],
    labels: Sequence[str],
    groups: Sequence[str] | None,
    folders: Sequence[str],
    *,
    published: Mapping[str, int],
    allow_missing: bool,
) -> tuple[Listing, list[str]]:
    """The images with their paths, and notes on their counts and on missing ones.

    An image is searched for in ``folders``, then in every folder below the root. A missing image is
    an ``LmdError`` unless that is allowed.
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
    notes = compare_counts(labels, published)
    notes += missing_note(root, missing, len(names), allow_missing=allow_missing)
    return Listing(root, names, labels, cells, groups), notes


def missing_note(root: Path, missing: list[str], total: int, *, allow_missing: bool) -> list[str]:
    """A note on images that are not on disk; an ``LmdError`` unless that is allowed."""
    if not missing:
        return []
    text = f"{len(missing)} of {total} images are not below {root} ({shorten(missing)})"
    if not allow_missing:
        raise LmdError(
            f"{text}: complete the download, or keep them in the split with --allow-missing-images"
        )
    return [f"{text}: they are in the split, and training will need them"]


def compare_counts(labels: Sequence[str], published: Mapping[str, int]) -> list[str]:
    """A note on the number of images in each class compared with the published number."""
    counts, total = Counter(labels), sum(published.values())
    different = [
        f"{name} {counts[name]} (published {published.get(name, 0)})"
        for name in dict.fromkeys((*published, *sorted(counts)))
        if counts[name] != published.get(name, 0)
    ]
    if not different:
        return [f"all {len(published)} classes have the published counts, {total} images in total"]
    return [
        f"{len(labels)} images, but {total} were published; classes with other counts: "
        f"{', '.join(different)}"
    ]
