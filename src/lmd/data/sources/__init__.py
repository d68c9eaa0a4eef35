"""Where images and labels come from: folders, a manifest, arrays, or a synthetic set."""

from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.data.sources.arrays import scan_arrays
from lmd.data.sources.folders import scan_folders
from lmd.data.sources.manifest import scan_manifest
from lmd.data.sources.scan import Columns, Scan, scan_table
from lmd.data.table import Table

ACCEPTED = (
    "a folder of class folders (ROOT/CLASS/*.jpg, or ROOT/{train,validation,test}/CLASS/*.jpg), "
    "a .csv or .tsv manifest with the columns image and label, "
    "an .npz with images and labels (or MedMNIST's train_images, train_labels, …), "
    "or the word 'synthetic'"
)


def scan_source(path: str | Path, columns: Columns | None = None) -> Scan:
    """All images of a data set and all that is wrong with it; an ``LmdError`` if there is none."""
    if str(path) == "synthetic":
        from lmd.data.synthetic import synthetic_table

        return scan_table(synthetic_table())
    place = Path(path).expanduser()
    if not place.exists():
        raise LmdError(f"data source {path} does not exist; accepted are {ACCEPTED}")
    if place.is_dir():
        return scan_folders(place)
    kind = place.suffix.lower()
    if kind in {".csv", ".tsv"}:
        return scan_manifest(place, columns or Columns())
    if kind == ".npz":
        return scan_arrays(place)
    raise LmdError(f"data source {path} is of an unknown kind; accepted are {ACCEPTED}")


def open_table(path: str | Path, *, skip_bad: bool = False, **columns: Any) -> Table:
    """The table of a data set, whatever kind of source it is; an ``LmdError`` if it has errors.

    ``columns`` are the fields of ``Columns``. ``skip_bad`` leaves out images that are missing or
    have no label, and lists them in ``Table.skipped``.
    """
    return scan_source(path, Columns(**columns)).table(skip_bad=skip_bad)
