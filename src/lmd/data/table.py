"""The table: all images with their classes, groups and parts, but without their pixels."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.data.images import Pixels, array_pixels, read_image

if TYPE_CHECKING:
    from lmd.data.synthetic import SyntheticImages

PARTS = ("train", "validation", "test")
COLUMNS = ("ids", "labels", "rows", "groups", "parts")  # of a table


@dataclass(frozen=True)
class FileImages:
    """Images that are files below ``root``, and are decoded at every call."""

    paths: tuple[Path, ...]
    root: Path = Path()

    def read(self, row: int) -> Pixels:
        """Return RGB ``(H, W, 3)`` of ``paths[row]``."""
        return read_image(self.paths[row])


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory: ``blocks`` of ``(N, H, W)`` or ``(N, H, W, 3)``, one after another."""

    blocks: tuple[Pixels, ...]

    def read(self, row: int) -> Pixels:
        """Return RGB ``(H, W, 3)``; grey values are repeated."""
        for block in self.blocks:
            if row < len(block):
                return array_pixels(block[row])
            row -= len(block)
        raise IndexError(row)


@dataclass(frozen=True)
class Table:
    """N labelled images.

    ``ids (N,)`` are stable names (path relative to the root, or a number), ``labels (N,)`` index
    ``classes``, ``rows (N,)`` are arguments of ``images.read``, ``groups (N,)`` name the patient or
    lesion, ``parts (N,)`` are train, validation or test; ``None`` if the source has none.
    ``skipped`` lists what was left out and why.
    """

    ids: NDArray[np.str_]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    images: "FileImages | ArrayImages | SyntheticImages"
    rows: NDArray[np.int64]
    groups: NDArray[np.str_] | None = None
    parts: NDArray[np.str_] | None = None
    source: str = ""
    kind: str = ""
    synthetic: bool = False
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, i: int) -> Pixels:
        """Return RGB pixels ``(H, W, 3)`` of the i-th image."""
        return self.images.read(int(self.rows[i]))

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> "Table":
        """Return the chosen images, in the chosen order; the classes stay."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return replace(self, **{k: v[index] for k, v in columns.items() if v is not None})

    def part(self, name: str) -> "Table":
        """Return the images of one part of a split table."""
        if self.parts is None:
            raise ValueError("the table has no parts: split it first")
        return self.take(self.parts == name)

    def group_numbers(self) -> NDArray[np.int64] | None:
        """Return groups as numbers ``(N,)``, which do not show the identity of patients."""
        if self.groups is None:
            return None
        return np.unique(self.groups, return_inverse=True)[1].astype(np.int64)

    def label_names(self) -> NDArray[np.str_]:
        """Return the class name of each image ``(N,)``."""
        return np.array(self.classes, dtype=np.str_)[self.labels]

    def counts(self) -> NDArray[np.int64]:
        """Count the images of each class ``(K,)``."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def part_counts(self) -> list[tuple[str, int, int, int, int]]:
        """Count each class in train, validation, test and in total, the largest class first."""
        counts = [self.part(part).counts().tolist() for part in PARTS]
        rows = list(zip(self.classes, *counts, map(sum, zip(*counts, strict=True)), strict=True))
        rows.sort(key=lambda row: -row[1])
        return [*rows, ("all", *map(sum, counts), len(self))]


@dataclass(frozen=True)
class Part:
    """Some of the decoded images ``pixels (M, S, S, 3)``, which are read when a batch is made.

    ``index (N,)`` are their places in ``pixels``, which may be a memory map and is never copied;
    ``labels (N,)`` their classes; ``checksums (N,)`` the CRC-32 of their pixels, if known.
    """

    pixels: Pixels
    index: NDArray[np.int64]
    labels: NDArray[np.int64]
    checksums: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Pixels:
        """Return copies of some images ``(B, S, S, 3)``."""
        return np.asarray(self.pixels[self.index[rows]])

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a memory map to another process by the name of its file."""
        pixels: Any = self.pixels
        if isinstance(pixels, np.memmap):
            pixels = (str(pixels.filename), pixels.shape[1], len(pixels))
        return _received, (pixels, self.index, self.labels, self.checksums)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Part":
        """Return some of the images, in the chosen order."""
        sums = None if self.checksums is None else self.checksums[rows]
        return Part(self.pixels, self.index[rows], self.labels[rows], sums)


def _received(pixels: Any, *rest: Any) -> Part:
    if isinstance(pixels, tuple):
        path, size, count = pixels
        from lmd.data.cache import PixelFile

        with PixelFile(Path(path), size) as file:
            pixels = file.map(count)
    return Part(pixels, *rest)
