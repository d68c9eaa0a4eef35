"""MedMNIST's single-label 2-D datasets, with class names and optional long-tail subsampling."""

import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.sources import MEDMNIST, scan_arrays
from lmd.data.splits import require_training, subsample
from lmd.data.table import PARTS, ArrayImages, Table
from lmd.recipes import RECIPES, Download, Made

SETS = RECIPES["medmnist"].details


def build(
    download: Download,
    *,
    dataset: str | None = None,
    factor: float | None = None,
    head_size: int | None = None,
    seed: int = 0,
) -> Made:
    """Return the set with class names and its own parts; ``factor`` thins the training part.

    The download is the ``.npz`` file or its folder. The largest class keeps ``head_size`` training
    images (all, if ``None``).
    """
    if head_size is not None and factor is None:
        raise LmdError(f"head_size is {head_size}, but nothing is thinned without a factor")
    path = _find(download, dataset)
    name = dataset or _stem(path)
    if name not in SETS:
        raise _unknown(name, f"root {path}")
    about = SETS[name]
    table = _named(scan_arrays(path).table(), about["classes"], path)
    counts = [len(table.part(part)) for part in PARTS]
    images = f"{' / '.join(map(str, counts))} images in train, validation and test"
    note = f"{name} has its published {images}"
    if counts not in about["counts"]:
        published = " or ".join(" / ".join(map(str, numbers)) for numbers in about["counts"])
        note = f"{name} has {images}, published {published}"
    require_training(table)
    download.notes += [note, *filter(None, [about.get("remark")])]
    if factor is not None:
        table = subsample(table, factor, head_size=head_size, seed=seed)
        download.notes.append("only training is thinned; validation and test are those of MedMNIST")
    return table, lambda _: _writer(table)


def _find(download: Download, dataset: str | None) -> Path:
    root = download.root
    if dataset is not None and dataset not in SETS:
        raise _unknown(dataset, f"dataset {dataset!r}")
    if root.is_file():
        return root
    if not root.is_dir():
        source = download.recipe.source
        raise LmdError(f"root {root} does not exist: give a MedMNIST .npz or its folder ({source})")
    files = sorted(root.glob("*.npz"))
    matches = [path for path in files if dataset is None or _stem(path) == dataset]
    if len(matches) != 1:
        what = f"{dataset}.npz" if dataset else ".npz file"
        listed = ", ".join(path.name for path in files) or "none"
        raise LmdError(
            f"root {root}: expected one {what}, it has {listed}: give the file itself as root"
        )
    return matches[0]


def _stem(path: Path) -> str:
    return re.sub("_(64|128|224)$", "", path.stem)


def _unknown(name: str, what: str) -> LmdError:
    if name == "chestmnist":
        return LmdError(
            f"{what}: images of ChestMNIST have up to 14 labels, but exactly one is supported: "
            "choose another set"
        )
    if name.endswith("3d"):
        return LmdError(f"{what}: {name} contains volumes; only MedMNIST's 2-D sets are supported")
    return LmdError(
        f"{what} is not a known set: expected {', '.join(SETS)} (also with _64, _128 or "
        "_224); name the set with --dataset if the file was renamed"
    )


def _named(table: Table, classes: Sequence[str], path: Path) -> Table:
    """Return the table with class names in the order of MedMNIST's numbers."""
    if table.parts is None or set(table.parts.tolist()) != set(PARTS):
        raise LmdError(
            f"{path} lacks some of MedMNIST's train, val and test images: download it again"
        )
    if not all(word.isdecimal() and int(word) < len(classes) for word in table.classes):
        raise LmdError(
            f"{path} has the labels {', '.join(table.classes)}; expected 0 to "
            f"{len(classes) - 1}: name the right set with --dataset"
        )
    numbers = np.array([int(word) for word in table.classes], dtype=np.int64)
    return replace(table, labels=numbers[table.labels], classes=tuple(classes))


def _writer(table: Table) -> Callable[[BinaryIO], None]:
    """Return a writer of MedMNIST's six arrays and ``classes``; compressed bytes could vary."""
    images = table.images
    assert isinstance(images, ArrayImages)
    starts = np.cumsum([0, *(len(block) for block in images.blocks)])
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(table.classes, dtype=np.str_)}
    for i, (word, part) in enumerate(MEDMNIST.items()):
        rows = table.part(part)
        arrays[f"{word}_images"] = images.blocks[i][rows.rows - starts[i]]
        arrays[f"{word}_labels"] = rows.labels[:, None].astype(np.uint8)

    def write(file: BinaryIO) -> None:
        # As numpy.savez, but with the same mark of the operating system everywhere.
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                info.create_system = 3
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)

    return write
