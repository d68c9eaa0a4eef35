"""From a source to a table with parts and decoded pixels, ready for training."""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.cache import Say, Tick, decode
from lmd.data.findings import Finding
from lmd.data.imbalance import subsample
from lmd.data.leaks import unused_groups
from lmd.data.loaders import ImageSet
from lmd.data.source import Columns
from lmd.data.sources import scan_source
from lmd.data.splits import fold_split, require_training, split, without_parts
from lmd.data.table import Table
from lmd.runs.protocol import Protocol
from lmd.scoring.tiers import Tiers, assign_tiers


@dataclass(frozen=True)
class Prepared:
    """A split table with its decoded pixels, and what was left out and why.

    ``warnings`` are about columns and names that look like groups and are not used.
    """

    table: Table
    pixels: NDArray[np.uint8]
    skipped: tuple[str, ...]
    tiers: Tiers
    warnings: tuple[Finding, ...] = ()

    def part(self, name: str) -> ImageSet:
        """The images of one part."""
        assert self.table.parts is not None
        index = np.flatnonzero(self.table.parts == name)
        return ImageSet(self.pixels[index], self.table.labels[index])

    def counts(self, name: str) -> NDArray[np.int64]:
        """Images of each class in one part ``(K,)``."""
        return self.table.part(name).counts()

    def fingerprint(self) -> str:
        """SHA-256 over name, label and part of every image."""
        assert self.table.parts is not None
        return fingerprint(self.table.ids, self.table.label_names(), self.table.parts)

    def pixel_digest(self) -> str | None:
        """SHA-256 over the checksums of the decoded images; ``None`` if none are decoded."""
        if len(self.pixels) != len(self.table):
            return None
        order = np.argsort(self.table.ids, kind="stable")
        sums = (zlib.crc32(np.ascontiguousarray(self.pixels[i]).data) for i in order)
        return hashlib.sha256("\n".join(map(str, sums)).encode()).hexdigest()


def fingerprint(ids: NDArray[np.str_], labels: NDArray[np.str_], parts: NDArray[np.str_]) -> str:
    """SHA-256 over name, label and part of every image, in any order."""
    lines = sorted(f"{i}\t{c}\t{p}" for i, c, p in zip(ids, labels, parts, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Planned:
    """A split table before an image is read, and ``warnings`` about unused groups."""

    table: Table
    protocol: Protocol
    skip_bad: bool
    warnings: tuple[Finding, ...] = ()

    def fingerprint(self) -> str:
        """That of ``Prepared``, if every image can be read."""
        assert self.table.parts is not None
        return fingerprint(self.table.ids, self.table.label_names(), self.table.parts)

    def decoded(self, tick: Tick | None = None, say: Say | None = None) -> Prepared:
        """The data with all images decoded; errors list those that cannot be read."""
        size = self.protocol.image_size
        table, pixels, bad = decode(self.table, size, skip_bad=self.skip_bad, tick=tick, say=say)
        tiers = _tiers(table, self.protocol)
        return Prepared(table, pixels, (*table.skipped, *bad), tiers, self.warnings)


def plan_data(
    data: str,
    protocol: Protocol,
    *,
    columns: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> Planned:
    """Open, split and thin out a data set, with every check that needs no pixels."""
    scan = scan_source(data, Columns.of(columns))
    table = scan.table(skip_bad=skip_bad)
    if protocol.fold is not None:
        table = without_parts(table, (columns or {}).get("split_column"))
    if protocol.shape == "official":
        table = _thin(table, protocol)
    if protocol.fold is not None:
        table = fold_split(table, protocol.fold, protocol.split, seed=protocol.split_seed)
    else:
        leak = protocol.allow_leak
        table = split(table, protocol.split, seed=protocol.split_seed, allow_leak=leak)
    if protocol.shape == "pareto":
        table = _thin(table, protocol)
    _tiers(table, protocol)
    return Planned(table, protocol, skip_bad, tuple(unused_groups(scan)))


def prepare_data(
    data: str,
    protocol: Protocol,
    *,
    columns: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    tick: Tick | None = None,
    say: Say | None = None,
) -> Prepared:
    """Open, split, thin out and decode a data set; errors list the images that cannot be read."""
    return plan_data(data, protocol, columns=columns, skip_bad=skip_bad).decoded(tick, say)


def _tiers(table: Table, protocol: Protocol) -> Tiers:
    """The tiers of the classes, all of which need training images; the test part needs some."""
    require_training(table)
    without_test = protocol.fold is not None and protocol.fold[0] == 0
    if len(table.part("test")) == 0 and not without_test:
        raise LmdError("the test part is empty: give it a share, such as --set split=7:1:2")
    return assign_tiers(table.part("train").counts(), table.classes, protocol.tiers)


def _thin(table: Table, protocol: Protocol) -> Table:
    if protocol.imbalance is None:
        return table
    return subsample(
        table,
        protocol.imbalance,
        shape=protocol.shape,
        head_size=protocol.head_size,
        seed=protocol.split_seed,
    )
