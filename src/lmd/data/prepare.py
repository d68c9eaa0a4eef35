"""From a source to a table with parts and decoded pixels, ready for training."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.cache import Tick, decode
from lmd.data.imbalance import subsample
from lmd.data.loaders import ImageSet
from lmd.data.sources import open_table
from lmd.data.splits import split
from lmd.data.table import Table
from lmd.protocol import Protocol
from lmd.scoring.tiers import Tiers, assign_tiers


@dataclass(frozen=True)
class Prepared:
    """A table with parts and decoded pixels, ready for training."""

    table: Table
    pixels: NDArray[np.uint8]
    skipped: tuple[str, ...]
    tiers: Tiers

    def part(self, name: str) -> ImageSet:
        """The images of one part."""
        assert self.table.parts is not None
        index = np.flatnonzero(self.table.parts == name)
        return ImageSet(self.pixels[index], self.table.labels[index])

    def counts(self, name: str) -> NDArray[np.int64]:
        """Images of each class in one part ``(K,)``."""
        return self.table.part(name).counts()

    def fingerprint(self) -> str:
        """SHA-256 of which image has which label in which part."""
        table = self.table
        assert table.parts is not None
        names = np.array(table.classes)[table.labels]
        rows = zip(table.ids, names, table.parts, strict=True)
        lines = sorted(f"{i}\t{c}\t{p}" for i, c, p in rows)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def prepare_data(
    data: str,
    protocol: Protocol,
    *,
    columns: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    tick: Tick | None = None,
) -> Prepared:
    """Open, split, thin out, decode; every image that cannot be read is named."""
    table = open_table(data, skip_bad=skip_bad, **(columns or {}))
    if protocol.imbalance is not None and protocol.shape == "official":
        table = _thin(table, protocol)
    table = split(table, protocol.split, seed=protocol.split_seed, allow_leak=protocol.allow_leak)
    if protocol.imbalance is not None and protocol.shape == "pareto":
        table = _thin(table, protocol)
    table, pixels, bad = decode(table, protocol.image_size, skip_bad=skip_bad, tick=tick)
    counts = table.part("train").counts()
    missing = [name for name, n in zip(table.classes, counts, strict=True) if n == 0]
    if missing:
        raise LmdError(f"no training image of class {', '.join(missing)}: add some, or remove it")
    if len(table.part("test")) == 0:
        raise LmdError("the test part is empty: give it a share with --set split=[0.7,0.1,0.2]")
    tiers = assign_tiers(counts, table.classes, protocol.tiers)
    return Prepared(table, pixels, (*table.skipped, *bad), tiers)


def _thin(table: Table, protocol: Protocol) -> Table:
    assert protocol.imbalance is not None
    return subsample(
        table,
        protocol.imbalance,
        shape=protocol.shape,
        head_size=protocol.head_size,
        seed=protocol.split_seed,
    )
