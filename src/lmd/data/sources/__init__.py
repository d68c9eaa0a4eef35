"""Sources of images and labels: folders, a manifest, arrays, or the synthetic set."""

from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, what_is
from lmd.base.text import printable
from lmd.data.source import Columns
from lmd.data.sources.arrays import scan_arrays
from lmd.data.sources.folders import scan_folders
from lmd.data.sources.manifest import scan_manifest
from lmd.data.sources.scan import Scan, scan_table
from lmd.data.table import Table

WHAT = ("image", "label", "group", "split")
ACCEPTED = (
    "a folder of class folders (ROOT/CLASS/*.jpg, or ROOT/{train,validation,test}/CLASS/*.jpg), "
    "a .csv or .tsv manifest with the columns image and label, "
    "an .npz with images and labels (or MedMNIST's train_images, train_labels, …), "
    "or the word 'synthetic'"
)


def scan_source(path: str | Path, columns: Columns | None = None) -> Scan:
    """All images of a data set and everything wrong with it; an ``LmdError`` if it is missing."""
    if str(path) == "synthetic":
        from lmd.data.synthetic import synthetic_table

        return scan_table(synthetic_table())
    if (name := printable(str(path))) != str(path):
        raise LmdError(f"the name of the data source {name} is not UTF-8: rename it")
    place = Path(path).expanduser()
    columns = columns or Columns()
    kind = what_is(place)
    if kind not in (FILE, FOLDER):
        missing = "does not exist" if kind == MISSING else f"is no file or folder ({kind})"
        raise LmdError(f"data source {path} {missing}; give {ACCEPTED}")
    suffix = place.suffix.lower()
    if kind == FILE and suffix in {".csv", ".tsv"}:
        return scan_manifest(place, columns)
    if kind == FILE and suffix != ".npz":
        raise LmdError(f"data source {path} is of an unknown kind; give {ACCEPTED}")
    _refuse_columns(path, columns)
    return scan_folders(place) if kind == FOLDER else scan_arrays(place)


def _refuse_columns(path: str | Path, columns: Columns) -> None:
    """An ``LmdError`` if the columns of a manifest are named for a source that has none.

    An empty name is no error: it says that the column is not used.
    """
    given = {f"{what}_column": getattr(columns, f"{what}_column") for what in WHAT}
    given |= {"root": columns.root}
    named = [f"--{key.replace('_', '-')}" for key, value in given.items() if value]
    if named:
        raise LmdError(
            f"{path} takes no {', '.join(named)}: only manifests (.csv, .tsv) have columns and a "
            "root; an .npz has groups and parts in its arrays 'groups' and 'splits', and for a "
            "folder of images a manifest can be written"
        )


def open_table(path: str | Path, *, skip_bad: bool = False, **columns: Any) -> Table:
    """The table of a data set of any kind; an ``LmdError`` if the data set has errors.

    ``columns`` are fields of ``Columns``; for ``skip_bad`` see ``Scan.table``.
    """
    return scan_source(path, Columns.of(columns)).table(skip_bad=skip_bad)
