"""Where images and labels come from: folders, a manifest, arrays, or a synthetic set."""

from pathlib import Path

from lmd.base.errors import LmdError
from lmd.data.sources.arrays import open_arrays
from lmd.data.sources.folders import open_folders
from lmd.data.sources.manifest import open_manifest
from lmd.data.table import Table

ACCEPTED = (
    "a folder of class folders (ROOT/CLASS/*.jpg, or ROOT/{train,validation,test}/CLASS/*.jpg), "
    "a .csv or .tsv manifest with the columns image and label, "
    "an .npz with images and labels (or MedMNIST's train_images, train_labels, …), "
    "or the word 'synthetic'"
)


def open_table(
    path: str | Path,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    split_column: str | None = None,
    root: str | Path | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
) -> Table:
    """The table of a data set, whatever kind of source it is.

    The columns concern manifests alone: ``None`` means ``image``, ``label``, and ``group`` and
    ``split`` where the manifest has them; an empty string says not to use a group or split column.
    ``root`` is where a manifest's images lie (its own folder if ``None``); ``allow_outside`` lets
    its paths leave that root. ``skip_bad`` leaves out what is missing and says so in ``skipped``.
    """
    if str(path) == "synthetic":
        from lmd.data.synthetic import synthetic_table

        return synthetic_table()
    place = Path(path).expanduser()
    if not place.exists():
        raise LmdError(f"data source {path} does not exist; accepted are {ACCEPTED}")
    if place.is_dir():
        return open_folders(place, skip_bad=skip_bad)
    kind = place.suffix.lower()
    if kind in {".csv", ".tsv"}:
        return open_manifest(
            place,
            image_column=image_column,
            label_column=label_column,
            group_column=group_column,
            split_column=split_column,
            root=None if root is None else Path(root).expanduser(),
            skip_bad=skip_bad,
            allow_outside=allow_outside,
        )
    if kind == ".npz":
        return open_arrays(place)
    raise LmdError(f"data source {path} is of no kind that is known; accepted are {ACCEPTED}")
