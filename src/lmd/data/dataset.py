"""From a source to a data set with parts and decoded images, ready for training."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.cache import decode
from lmd.data.checks import unused_groups
from lmd.data.scan import Finding
from lmd.data.source import Source
from lmd.data.sources import scan_source
from lmd.data.splits import Shape, fold_split, require_training, split, subsample, without_parts
from lmd.data.table import Part, Table
from lmd.runs.protocol import Protocol
from lmd.scoring.tiers import Tiers, assign_tiers

if TYPE_CHECKING:
    from lmd.runs.record import Record


@dataclass(frozen=True)
class Dataset:
    """A split table, what was left out of it and why, and its decoded images.

    ``warnings`` are about columns and names that look like groups and are not used. ``images`` has
    the images of all rows of the table, once they are decoded.
    """

    table: Table
    tiers: Tiers
    skipped: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()
    protocol: Protocol | None = None
    skip_bad: bool = False
    images: Part | None = None

    def decode(self, display: Display) -> "Dataset":
        """Return the data set with all images decoded; refuse unreadable ones or leave them out."""
        assert self.protocol is not None
        size = self.protocol.image_size
        table, images, problems = decode(self.table, size, display, skip_bad=self.skip_bad)
        tiers, skipped = _tiers(table, self.protocol), (*self.skipped, *problems)
        return replace(self, table=table, tiers=tiers, skipped=skipped, images=images)

    def part(self, name: str | None = None) -> Part:
        """Return the decoded images of one part, or of all."""
        assert self.images is not None
        if name is None:
            return self.images
        return self.images.take(np.flatnonzero(self.table.parts == name))

    def counts(self, name: str) -> NDArray[np.int64]:
        """Count the images of each class in one part ``(K,)``."""
        return self.table.part(name).counts()

    def fingerprint(self) -> str:
        """Hash name, label and part of every image with SHA-256."""
        assert self.table.parts is not None
        return fingerprint(self.table.ids, self.table.label_names(), self.table.parts)

    def pixel_digest(self) -> str | None:
        """Hash the checksums of the decoded images with SHA-256; ``None`` if none are decoded."""
        if self.images is None or self.images.checksums is None:
            return None
        sums = self.images.checksums[np.argsort(self.table.ids, kind="stable")]
        return hashlib.sha256("\n".join(map(str, sums.tolist())).encode()).hexdigest()


def fingerprint(ids: NDArray[np.str_], labels: NDArray[np.str_], parts: NDArray[np.str_]) -> str:
    """Hash name, label and part of every image with SHA-256, in any order."""
    lines = sorted(f"{i}\t{c}\t{p}" for i, c, p in zip(ids, labels, parts, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def plan_data(source: Source, protocol: Protocol) -> Dataset:
    """Open, split and thin out a data set, with every check that needs no pixels."""
    scan = scan_source(source.data, source.columns)
    table = scan.table(skip_bad=source.skip_bad)
    if protocol.fold is not None:
        table = without_parts(table, source.columns.split_column)
    table = _thin(table, protocol, "official")
    if protocol.fold is not None:
        table = fold_split(table, protocol.fold, protocol.split, seed=protocol.split_seed)
    else:
        table = split(table, protocol.split, protocol.split_seed, allow_leak=protocol.allow_leak)
    table = _thin(table, protocol, "pareto")
    warnings = tuple(unused_groups(scan))
    return Dataset(
        table, _tiers(table, protocol), table.skipped, warnings, protocol, source.skip_bad
    )


def _tiers(table: Table, protocol: Protocol) -> Tiers:
    """Return the tiers of the classes, which all need training images; the test part needs some."""
    require_training(table)
    without_test = protocol.fold is not None and protocol.fold[0] == 0
    if len(table.part("test")) == 0 and not without_test:
        raise LmdError("the test part is empty: give it a share, such as --set split=7:1:2")
    return assign_tiers(table.part("train").counts(), table.classes, protocol.tiers)


def _thin(table: Table, protocol: Protocol, shape: Shape) -> Table:
    """Thin a table if the protocol asks for this shape; one is made before a split, one after."""
    if protocol.imbalance is None or protocol.shape != shape:
        return table
    seed, head = protocol.split_seed, protocol.head_size
    return subsample(table, protocol.imbalance, shape=shape, head_size=head, seed=seed)


def images_of_run(record: "Record", data: str | None, display: Display) -> Dataset:
    """Read all images of a run again as its record says; they must be the same.

    ``data`` is where they are now, if they have moved.
    """
    from lmd.runs.folder import several_models

    request = record.request
    if record.folds is not None:
        raise LmdError(several_models(record))
    if not request.protocol:
        raise LmdError(
            f"the record of {record.name} does not say how its images are read: it was made from "
            "features, or by an earlier `lmd calibrate`"
        )
    place = Path(request.data).expanduser()
    if data is None and request.data != "synthetic" and not place.exists():
        raise LmdError(
            f"the images of {record.name} are not at {request.data}, where they were in training: "
            "say where they are now with --data, or run the command from the folder in which "
            "training was started"
        )
    source = Source.of(request, data)
    planned = plan_data(source, Protocol.model_validate(request.protocol))
    other = LmdError(
        f"--data: {source.data} is not what {record.name} was trained on (names, "
        "classes or parts differ): give the same data"
    )
    # Images that cannot be read may be left out, and only decoding finds them.
    if not request.skip_bad and planned.fingerprint() != record.data.fingerprint:
        raise other
    decoded = planned.decode(display)
    if decoded.fingerprint() != record.data.fingerprint:
        raise other
    return decoded
