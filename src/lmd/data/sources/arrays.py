"""Images in one ``.npz`` file, with MedMNIST's names of arrays or with plain ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.data.findings import finding
from lmd.data.images import as_uint8
from lmd.data.sources.scan import Case, Scan, class_order, part_name
from lmd.data.table import ArrayImages

MEDMNIST = {"train": "train", "val": "validation", "test": "test"}
EXPECTED = (
    "images and labels (and optionally classes, groups, splits), "
    "or MedMNIST's train_images, train_labels, val_images, val_labels, test_images, test_labels"
)


def scan_arrays(path: Path) -> Scan:
    """``images (N, H, W[, 1 or 3])`` with ``labels (N,)`` or ``(N, 1)``, or MedMNIST's six arrays.

    Labels are names or integers; integers index the array ``classes`` if there is one, otherwise
    they are the class names. Pixels are uint8, uint16 (scaled by 65535) or floats in [0, 1].
    """
    scan = Scan(str(path), "arrays")
    try:
        _fill(scan, _load(path))
    except LmdError as error:
        scan.findings.append(finding("source", f"{error}.", remedy=""))
    return scan


def _fill(scan: Scan, arrays: Mapping[str, NDArray[Any]]) -> None:
    if "images" in arrays:
        names = {"": ""}
    else:
        names = {f"{word}_": part for word, part in MEDMNIST.items() if f"{word}_images" in arrays}
    if not names:
        raise LmdError(f"It has the arrays {', '.join(arrays) or 'none'}; expected {EXPECTED}")
    blocks, labels, ids, parts = [], [], [], []
    for prefix, part in names.items():
        block = _pixels(f"{prefix}images", arrays[f"{prefix}images"])
        blocks.append(block)
        labels.append(label_column(f"{prefix}labels", arrays, len(block)))
        ids += [f"{part}/{i}" if part else str(i) for i in range(len(block))]
        parts += [part] * len(block)
    if not ids:
        raise LmdError("It has no images: its arrays are empty")
    scan.images = ArrayImages(tuple(blocks))
    scan.classes, named = class_names(np.concatenate(labels), arrays.get("classes"))
    groups = _column(arrays, "groups", len(ids))
    splits = _column(arrays, "splits", len(ids))
    scan.grouped, scan.split = groups is not None, splits is not None or all(parts)
    for i, (name, label, word) in enumerate(zip(ids, named, splits or parts, strict=True)):
        known = part_name(word) if scan.split else ""
        fault, detail = ("unknown_split", f"splits[{i}] is {word!r}") if known is None else ("", "")
        # Without a group, an image is one of its own.
        group = "" if groups is None else groups[i] or f"image {name}"
        scan.cases.append(Case(name, label, group, known or "", fault=fault, detail=detail))
    scan.report("unknown_split", "{n} [entry|entries] of splits [is|are] not the name of a part.")


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_npz(path)
    except LmdError as error:
        raise LmdError(
            f"The file cannot be read as .npz ({error}): arrays of Python objects are refused, "
            "because loading them could run code; save plain arrays with numpy.savez"
        ) from error


def _pixels(name: str, images: NDArray[Any]) -> NDArray[np.uint8]:
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
    """Labels ``(N,)``, integers or strings, from the array ``name``."""
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
    labels: NDArray[Any], given: NDArray[Any] | None
) -> tuple[tuple[str, ...], list[str]]:
    """Class names in their order, and the name of each label ``(N,)``."""
    if given is None:
        values = [str(label) for label in labels.tolist()]
        names = class_order(values)
        if labels.dtype.kind in "iu":  # by value, also negative ones
            names = tuple(str(value) for value in np.unique(labels).tolist())
        return names, values
    names = tuple(str(name) for name in given.reshape(-1).tolist())
    if len(set(names)) < len(names):
        raise LmdError(f"classes contains a name twice: {', '.join(names)}")
    known: set[Any] = set(names) if labels.dtype.kind == "U" else set(range(len(names)))
    for value in np.unique(labels).tolist():
        if value not in known:
            raise LmdError(
                f"label {value!r} is not among the {len(names)} classes "
                f"({', '.join(names)}); integer labels count from 0"
            )
    values = labels.tolist()
    return names, values if labels.dtype.kind == "U" else [names[value] for value in values]


def _column(arrays: Mapping[str, NDArray[Any]], name: str, n: int) -> list[str] | None:
    if name not in arrays:
        return None
    values = arrays[name].reshape(-1)
    if len(values) != n:
        raise LmdError(f"{name} has {len(values)} entries for {n} images; expected {n}")
    if values.dtype.kind == "f":  # whole numbers with gaps, as pandas writes them
        known = ~np.isnan(values)
        if not np.array_equal(values[known], np.round(values[known])):
            raise LmdError(f"{name} has fractions; expected integers or strings")
        return [str(int(value)) if ok else "" for value, ok in zip(values, known, strict=True)]
    if values.dtype.kind not in "iuU":
        raise LmdError(f"{name} is of type {values.dtype}; expected integers or strings")
    return [str(value) for value in values.tolist()]
