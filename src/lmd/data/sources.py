"""Sources of images and labels: folders, arrays, a manifest, or the synthetic set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, SPECIAL, listing_problem, what_is
from lmd.base.text import printable, shorten
from lmd.data.images import Pixels, as_uint8, is_image
from lmd.data.scan import Case, Finding, Scan, class_order, part_name, scan_table
from lmd.data.source import Columns
from lmd.data.table import ArrayImages, Table
from lmd.data.walk import Tree, tree_below, visible

ACCEPTED = (
    "a folder of class folders (ROOT/CLASS/*.jpg, or ROOT/{train,validation,test}/CLASS/*.jpg), "
    "a .csv or .tsv manifest with the columns image and label, "
    "an .npz with images and labels (or MedMNIST's train_images, train_labels, …), "
    "or the word 'synthetic'"
)
MEDMNIST = {"train": "train", "val": "validation", "test": "test"}
ARRAYS = (
    "images and labels (and optionally classes, groups, splits), "
    "or MedMNIST's train_images, train_labels, val_images, val_labels, test_images, test_labels"
)


def open_table(path: str | Path, *, skip_bad: bool = False, **columns: Any) -> Table:
    """Return the table of a data set, read with fields of ``Columns``; see ``Scan.table``."""
    return scan_source(path, Columns.of(columns)).table(skip_bad=skip_bad)


def scan_source(path: str | Path, columns: Columns | None = None) -> Scan:
    """Return all images of a data set and everything wrong with it; refuse one that is missing."""
    if str(path) == "synthetic":
        from lmd.data.synthetic import synthetic_table

        return scan_table(synthetic_table())
    if (name := printable(str(path))) != str(path):
        raise LmdError(f"the name of the data source {name} is not UTF-8: rename it")
    place = Path(path).expanduser()
    columns = columns or Columns()
    state, suffix = what_is(place), place.suffix.lower()
    if state not in (FILE, FOLDER):
        missing = "does not exist" if state == MISSING else f"is no file or folder ({state})"
        raise LmdError(f"data source {path} {missing}; give {ACCEPTED}")
    if state == FILE and suffix in {".csv", ".tsv"}:
        from lmd.data.manifest import scan_manifest

        return scan_manifest(place, columns)
    if state == FILE and suffix != ".npz":
        raise LmdError(f"data source {path} is of an unknown kind; give {ACCEPTED}")
    # An empty name is no error: it means that the column is not used.
    unused = [key for key, value in columns.changed().items() if value and key != "allow_outside"]
    if unused:
        raise LmdError(
            f"{path} takes no {', '.join(f'--{key}'.replace('_', '-') for key in unused)}: only "
            "manifests (.csv, .tsv) have columns and a root; an .npz has groups and parts in its "
            "arrays 'groups' and 'splits', and for a folder of images a manifest can be written"
        )
    return scan_folders(place) if state == FOLDER else scan_arrays(place)


def scan_folders(root: Path) -> Scan:
    """Scan ``root/CLASS/**/*`` or ``root/{train,validation,test}/CLASS/**/*``.

    Names are paths relative to the root, in sorted order; hidden files are skipped. A folder that
    cannot be listed is an error that names it: its images would be missing without a word.
    """

    def folders_in(folder: Path) -> list[Path]:
        return [path for path in visible(folder) if what_is(path) == FOLDER]

    inside = {top: folders_in(top) for top in folders_in(root)}
    split = _means_parts(inside)
    scan = Scan(str(root), "split folders" if split else "folders", root=root, split=split)
    _check_part_folders(scan, inside)
    unusable, empty = Tree(), []
    class_folders = {root: [], **inside} if split else {root: list(inside)}
    for top, folders in class_folders.items():
        _add_stray(scan, root, top, unusable)
        for folder in folders:
            before = len(scan.cases)
            tree = tree_below(folder)
            unusable.unlisted |= tree.unlisted
            unusable.special |= tree.special
            _add_class(scan, root, folder, part_name(top.name) if split else "", tree.files)
            if len(scan.cases) == before and not tree.unlisted:
                empty.append(printable(folder.relative_to(root).as_posix()))
    _report_folders(scan, root, unusable, empty)
    return scan


def _means_parts(inside: Mapping[Path, list[Path]]) -> bool:
    """Return whether the top folders are parts, even if one of them is misspelt or empty."""
    names = {top: {folder.name for folder in folders} for top, folders in inside.items()}
    parts = {top: part_name(top.name) for top in inside}
    classes = {name for top in inside if parts[top] == "train" for name in names[top]}
    several = len({*parts.values()} - {None}) > 1
    alike = len(inside) > 1 and all(classes & held for held in names.values())
    return bool(classes) and (several or alike)


def _check_part_folders(scan: Scan, inside: Mapping[Path, list[Path]]) -> None:
    unknown = [printable(top.name) for top in inside if part_name(top.name) is None]
    parts = [top for top in inside if part_name(top.name) is not None]
    bare = [top.name for top in parts if not inside[top] and listing_problem(top) is None]
    why = [f"{shorten(unknown)} is not the name of a part"] if unknown else []
    why += [f"{shorten(bare)} has no class folders"] if bare else []
    if scan.split and why:
        text = f"The top folders look like parts, but {' and '.join(why)}."
        scan.findings.append(Finding.of("part_folders", text, names=[*unknown, *bare]))
    elif not scan.split and len(parts) > 1:
        text = f"The class folders {shorten([top.name for top in parts])} are named like parts."
        remedy = "If they are parts, put class folders into each."
        scan.findings.append(Finding.of("part_folders", text, severity="warning", remedy=remedy))


def _add_stray(scan: Scan, root: Path, folder: Path, unusable: Tree) -> None:
    """Add images beside the class folders, which belong to no class, and what cannot be opened."""
    if (why := listing_problem(folder)) is not None:
        unusable.unlisted[folder] = why
    for path in visible(folder):
        state = what_is(path)
        if state in SPECIAL:
            unusable.special[path] = state
        elif state == FILE and is_image(path):
            name = printable(path.relative_to(root).as_posix())
            scan.cases.append(Case(name, "", path=path, fault="stray_image"))


def _add_class(scan: Scan, root: Path, folder: Path, part: str | None, files: list[Path]) -> None:
    """Add the images of a class folder to ``cases`` and its other files to ``others``."""
    label = printable(folder.name)
    for path in sorted(files, key=lambda path: path.relative_to(folder).parts):
        name = path.relative_to(root).as_posix()
        image = is_image(path)
        fault = "ignored_file" if not image else "unknown_split" if part is None else ""
        if not fault and printable(name) != name:
            fault = "encoding"
        case = Case(printable(name), label, part=part or "", path=path, fault=fault)
        (scan.cases if image else scan.others).append(case)


def _report_folders(scan: Scan, root: Path, unusable: Tree, empty: list[str]) -> None:
    for kind, text, paths in (
        ("unlisted_folder", "{n} [folder|folders] cannot be listed.", unusable.unlisted),
        ("special_file", "{n} [entry is|entries are] not a regular file.", unusable.special),
    ):
        shown = {path: path if path == root else path.relative_to(root) for path in paths}
        names = [f"{printable(str(shown[path]))} ({why})" for path, why in paths.items()]
        scan.report(kind, text, names=names)
    scan.report("unknown_split", "{n} [image lies|images lie] in a folder that is not a part.")
    scan.report("stray_image", "{n} [image lies|images lie] outside any class folder.")
    scan.report("encoding", "{n} file [name is|names are] not UTF-8.", remedy="Rename these files.")
    if not scan.cases:
        text = f"There is no image in a class folder: expected {root}/CLASS/*.jpg."
        scan.findings.append(Finding.of("source", text, remedy=""))
    else:
        text = "{n} class [folder holds|folders hold] no image."
        scan.report("empty_class_folder", text, names=empty)


def scan_arrays(path: Path) -> Scan:
    """Scan ``images (N, H, W[, 1 or 3])`` and ``labels (N,)`` or ``(N, 1)``, or MedMNIST's arrays.

    Labels are names or integers; integers index the array ``classes`` if there is one, otherwise
    they are the class names. Pixels are uint8, uint16 (scaled by 65535) or floats in [0, 1].
    """
    scan = Scan(str(path), "arrays")
    try:
        _add_arrays(scan, path)
    except LmdError as error:
        scan.findings.append(Finding.of("source", f"{error}.", remedy=""))
    return scan


def _add_arrays(scan: Scan, path: Path) -> None:
    try:
        arrays = read_npz(path)
    except LmdError as error:
        raise LmdError(
            f"The file cannot be read as .npz ({error}): arrays of Python objects are refused, "
            "because loading them could run code; save plain arrays with numpy.savez"
        ) from error
    prefixes = {f"{word}_": part for word, part in MEDMNIST.items() if f"{word}_images" in arrays}
    if "images" in arrays:
        prefixes = {"": ""}
    if not prefixes:
        raise LmdError(f"It has the arrays {', '.join(arrays) or 'none'}; expected {ARRAYS}")
    blocks, labels, ids, parts = [], [], [], []
    for prefix, part in prefixes.items():
        block = _pixels(f"{prefix}images", arrays[f"{prefix}images"])
        blocks.append(block)
        labels.append(label_column(f"{prefix}labels", arrays, len(block)))
        ids += [f"{part}/{i}" if part else str(i) for i in range(len(block))]
        parts += [part] * len(block)
    if not ids:
        raise LmdError("It has no images: its arrays are empty")
    scan.images = ArrayImages(tuple(blocks))
    scan.classes, names = class_names(np.concatenate(labels), arrays.get("classes"))
    groups = _column(arrays, "groups", len(ids))
    splits = _column(arrays, "splits", len(ids))
    scan.grouped, scan.split = groups is not None, splits is not None or all(parts)
    for i, (name, label, word) in enumerate(zip(ids, names, splits or parts, strict=True)):
        meant = part_name(word) if scan.split else ""
        fault, detail = ("unknown_split", f"splits[{i}] is {word!r}") if meant is None else ("", "")
        # Without a group, an image is one of its own.
        group = "" if groups is None else groups[i] or f"image {name}"
        scan.cases.append(Case(name, label, group, meant or "", fault=fault, detail=detail))
    scan.report("unknown_split", "{n} [entry|entries] of splits [is|are] not the name of a part.")


def _pixels(name: str, images: NDArray[Any]) -> Pixels:
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim != 3 and not (images.ndim == 4 and images.shape[3] == 3):
        raise LmdError(
            f"{name} has the shape {images.shape}; "
            "expected (N, H, W), (N, H, W, 1) or (N, H, W, 3), channels last"
        )
    if images.dtype == np.uint8:
        return images
    if images.dtype == np.uint16:
        return as_uint8(images / 65535)
    # NaN fails this check too.
    if images.dtype.kind == "f" and np.all((images >= 0) & (images <= 1)):
        return as_uint8(images)
    raise LmdError(
        f"{name} is of type {images.dtype}; "
        "expected uint8, uint16, or floating point with all values in [0, 1]"
    )


def label_column(name: str, arrays: Mapping[str, NDArray[Any]], n: int) -> NDArray[Any]:
    """Return labels ``(N,)``, integers or strings, from the array ``name``."""
    if name not in arrays:
        raise LmdError(f"It has the arrays {', '.join(arrays)}, but not {name}")
    labels = arrays[name]
    if labels.shape not in {(n,), (n, 1)}:
        raise LmdError(
            f"{name} has the shape {labels.shape}; expected one label for each of the "
            f"{n} images, ({n},) or ({n}, 1) (several labels per image are not supported)"
        )
    if labels.dtype.kind not in "iuU":
        raise LmdError(f"{name} is of type {labels.dtype}; expected integers or strings")
    return labels.reshape(-1)


def class_names(
    labels: NDArray[Any], classes: NDArray[Any] | None
) -> tuple[tuple[str, ...], list[str]]:
    """Return class names in their order, and the name of each label ``(N,)``."""
    values, named = labels.tolist(), labels.dtype.kind == "U"
    if classes is None:
        # Integers are sorted by value, also negative ones.
        names = class_order(values) if named else tuple(map(str, np.unique(labels).tolist()))
        return names, [str(value) for value in values]
    names = tuple(map(str, classes.reshape(-1).tolist()))
    by_label: dict[Any, str] = dict(zip(names if named else range(len(names)), names, strict=True))
    if len(set(names)) < len(names):
        raise LmdError(f"classes contains a name twice: {', '.join(names)}")
    for value in np.unique(labels).tolist():
        if value not in by_label:
            raise LmdError(
                f"label {value!r} is not among the {len(names)} classes "
                f"({', '.join(names)}); integer labels count from 0"
            )
    return names, [by_label[value] for value in values]


def _column(arrays: Mapping[str, NDArray[Any]], name: str, n: int) -> list[str] | None:
    if name not in arrays:
        return None
    values = arrays[name].reshape(-1)
    if len(values) != n:
        raise LmdError(f"{name} has {len(values)} entries for {n} images; expected {n}")
    if values.dtype.kind == "f":  # whole numbers with gaps, as pandas writes them
        whole = ~np.isnan(values)
        if not np.array_equal(values[whole], np.round(values[whole])):
            raise LmdError(f"{name} has fractions; expected integers or strings")
        return [str(int(value)) if ok else "" for value, ok in zip(values, whole, strict=True)]
    if values.dtype.kind not in "iuU":
        raise LmdError(f"{name} is of type {values.dtype}; expected integers or strings")
    return [str(value) for value in values.tolist()]
