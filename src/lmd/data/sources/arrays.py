"""Images in one ``.npz`` file, as MedMNIST has them or under plain names."""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.sources.labelling import class_order, encode, part_name, require_classes
from lmd.data.table import Table

MEDMNIST = {"train": "train", "val": "validation", "test": "test"}
EXPECTED = (
    "images and labels (and optionally classes, groups, splits), "
    "or MedMNIST's train_images, train_labels, val_images, val_labels, test_images, test_labels"
)


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory: ``blocks`` of ``(N, H, W)`` or ``(N, H, W, 3)``, one after another."""

    blocks: tuple[NDArray[np.uint8], ...]

    def read(self, row: int) -> NDArray[np.uint8]:
        """RGB ``(H, W, 3)``; grey values are repeated."""
        for block in self.blocks:
            if row < len(block):
                image = block[row]
                return np.stack([image] * 3, axis=-1) if image.ndim == 2 else image.copy()
            row -= len(block)
        raise IndexError(row)


def open_arrays(path: Path) -> Table:
    """``images (N, H, W[, 1 or 3])`` with ``labels (N,)`` or ``(N, 1)``, or MedMNIST's six arrays.

    Labels are integers or names. Integers index ``classes`` where that array is there, else their
    values are the class names. Pixels are uint8, uint16 (scaled by 65535) or floats in [0, 1].
    """
    arrays = _load(path)
    if "images" in arrays:
        names = {"": ""}
    else:
        names = {f"{word}_": part for word, part in MEDMNIST.items() if f"{word}_images" in arrays}
    if not names:
        raise LmdError(f"{path} has the arrays {', '.join(arrays) or 'none'}; expected {EXPECTED}")
    blocks, labels, ids, parts = [], [], [], []
    for prefix, part in names.items():
        block = _pixels(path, f"{prefix}images", arrays[f"{prefix}images"])
        blocks.append(block)
        labels.append(_labels(path, f"{prefix}labels", arrays, len(block)))
        ids += [f"{part}/{i}" if part else str(i) for i in range(len(block))]
        parts += [part] * len(block)
    if not ids:
        raise LmdError(f"{path} holds no images: its arrays are empty")
    classes, indices = _classes(path, np.concatenate(labels), arrays.get("classes"))
    require_classes([classes[i] for i in np.unique(indices)], path)
    given = _column(path, arrays, "splits", len(ids))
    if given is not None:
        parts = [_part(path, i, word) for i, word in enumerate(given)]
    groups = _column(path, arrays, "groups", len(ids))
    return Table(
        ids=np.array(ids, dtype=np.str_),
        labels=indices,
        classes=classes,
        images=ArrayImages(tuple(blocks)),
        rows=np.arange(len(ids), dtype=np.int64),
        groups=None if groups is None else np.array(groups, dtype=np.str_),
        parts=np.array(parts, dtype=np.str_) if all(parts) else None,
        source=str(path),
        kind="arrays",
        signature=_signature(blocks),
    )


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here, since numpy leaves a broken archive open.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise LmdError(f"{path} is no .npz archive but a single array: use numpy.savez")
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise LmdError(
            f"{path} cannot be read as .npz ({error}): arrays of Python objects are refused, "
            "since loading them could run code; save plain arrays with numpy.savez"
        ) from error


def _pixels(path: Path, name: str, images: NDArray[Any]) -> NDArray[np.uint8]:
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim != 3 and not (images.ndim == 4 and images.shape[3] == 3):
        raise LmdError(
            f"{path}: {name} has the shape {images.shape}; "
            "expected (N, H, W), (N, H, W, 1) or (N, H, W, 3), channels last"
        )
    if images.dtype == np.uint8:
        return images
    if images.dtype == np.uint16:
        return np.floor(images / 257 + 0.5).astype(np.uint8)
    # Written so that a value which is not a number fails too.
    if images.dtype.kind == "f" and np.all((images >= 0) & (images <= 1)):
        return np.floor(images * 255 + 0.5).astype(np.uint8)
    raise LmdError(
        f"{path}: {name} is of type {images.dtype}; "
        "expected uint8, uint16, or floating point with all values in [0, 1]"
    )


def _labels(path: Path, name: str, arrays: Mapping[str, NDArray[Any]], n: int) -> NDArray[Any]:
    if name not in arrays:
        raise LmdError(f"{path} has the arrays {', '.join(arrays)}, but not {name}")
    labels = arrays[name]
    if labels.shape not in {(n,), (n, 1)}:
        raise LmdError(
            f"{path}: {name} has the shape {labels.shape}; expected one label for each of the "
            f"{n} images, ({n},) or ({n}, 1) (several labels per image are not supported)"
        )
    if labels.dtype.kind not in "iuU":
        raise LmdError(f"{path}: {name} is of type {labels.dtype}; expected integers or strings")
    return labels.reshape(-1)


def _classes(
    path: Path, labels: NDArray[Any], given: NDArray[Any] | None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Class names, and the index ``(N,)`` of each label in them."""
    if given is None:
        values = [str(label) for label in labels.tolist()]
        names = class_order(values)
        if labels.dtype.kind in "iu":  # negative ones too go by their value
            names = tuple(str(value) for value in np.unique(labels).tolist())
        return names, encode(values, names)
    names = tuple(str(name) for name in given.reshape(-1).tolist())
    if len(set(names)) < len(names):
        raise LmdError(f"{path}: classes names a class twice: {', '.join(names)}")
    known: set[Any] = set(names) if labels.dtype.kind == "U" else set(range(len(names)))
    for value in np.unique(labels).tolist():
        if value not in known:
            raise LmdError(
                f"{path}: label {value!r} is not among the {len(names)} classes "
                f"({', '.join(names)}); integer labels count from 0"
            )
    if labels.dtype.kind == "U":
        return names, encode(labels.tolist(), names)
    return names, labels.astype(np.int64)


def _column(path: Path, arrays: Mapping[str, NDArray[Any]], name: str, n: int) -> list[str] | None:
    if name not in arrays:
        return None
    values = arrays[name].reshape(-1)
    if len(values) != n:
        raise LmdError(f"{path}: {name} has {len(values)} entries for {n} images; expected {n}")
    return [str(value) for value in values.tolist()]


def _part(path: Path, i: int, word: str) -> str:
    part = part_name(word)
    if part is None:
        raise LmdError(f"{path}: splits[{i}] is {word!r}; expected train, validation or test")
    return part


def _signature(blocks: list[NDArray[np.uint8]]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(f"{block.shape}\n".encode())
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
