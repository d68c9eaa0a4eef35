"""The whole examination of a data set, which never stops at the first problem."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.doctor.classes import Counts, check_classes, class_counts
from lmd.data.doctor.copies import check_copies, exact_copies, near_copies
from lmd.data.doctor.files import check_files
from lmd.data.doctor.findings import SEVERITIES, Finding, finding
from lmd.data.doctor.groups import check_groups
from lmd.data.doctor.look import Look, Tick, look_at_all
from lmd.data.doctor.mend import Mended, mend
from lmd.data.doctor.scan import Columns, Scan, scan_table, spelt
from lmd.data.doctor.scan_folders import scan_folders
from lmd.data.doctor.scan_manifest import scan_manifest
from lmd.data.reading import read_image
from lmd.data.sources import ACCEPTED, open_table
from lmd.data.splits import split
from lmd.data.table import Table

RATIOS = (0.7, 0.1, 0.2)
# These files are not there, must not be opened, or are opened for another line already.
UNSEEN = frozenset({"missing_file", "outside_root", "repeated_row"})


@dataclass(frozen=True)
class Examination:
    """What was examined and found; ``looks`` are in the order of ``scan.cases``."""

    scan: Scan
    looks: tuple[Look | None, ...]
    findings: tuple[Finding, ...]
    counts: Counts
    exact: tuple[tuple[int, ...], ...]
    near: tuple[tuple[int, ...], ...]
    ratios: tuple[float, ...]

    @property
    def images(self) -> int:
        """How many images (or lines of a manifest) were examined."""
        return len(self.scan.cases)

    def severities(self) -> dict[str, int]:
        """How many findings there are of each severity."""
        found = Counter(each.severity for each in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def told(self, i: int) -> str:
        """How a case is called: its line of the manifest, its name, and its part."""
        case = self.scan.cases[i]
        line = f"line {case.line}: " if case.line else ""
        return f"{line}{case.name or '(no name)'}" + (f" ({case.part})" if case.part else "")

    def pixels(self, i: int) -> NDArray[np.uint8] | None:
        """The image of a case, ``(H, W, 3)``; ``None`` if it cannot be shown."""
        look = self.looks[i]
        if look is None or look.fault:
            return None
        path = self.scan.cases[i].path
        if path is None:
            return None if self.scan.reads is None else self.scan.reads[i]()
        try:
            return read_image(path, at_least=192)
        except LmdError:
            return None

    def mend(self) -> Mended:
        """What a cleaned manifest holds, see ``lmd.data.doctor.mend``."""
        return mend(self.scan, self.looks, self.exact, self.near, self.ratios)


def examine(
    data: str | Path,
    *,
    columns: Columns | None = None,
    ratios: Sequence[float] = RATIOS,
    tick: Tick | None = None,
) -> Examination:
    """Examine a data set: source, classes, groups, every file, and copies.

    ``ratios`` are those of the split that is planned; a source that comes with parts keeps them.
    """
    asked = columns or Columns()
    scan = _scan(data, asked)
    files = [None if case.fault in UNSEEN else case.path for case in scan.cases]
    looks = look_at_all(files, scan.reads or [None] * len(files), tick)
    for i, look in enumerate(looks):
        if look is not None and look.fault and not scan.cases[i].fault:
            scan.cases[i] = replace(scan.cases[i], fault=look.fault)
    exact = exact_copies(scan, looks)
    near = near_copies(scan, looks, exact)
    findings = [
        *_refusal(data, asked, ratios, looks),
        *scan.findings,
        *check_files(scan, looks),
        *check_copies(scan, looks, exact, near),
        *check_classes(scan, ratios),
        *check_groups(scan, ratios),
    ]
    return Examination(
        scan,
        tuple(looks),
        tuple(findings),
        class_counts(scan),
        tuple(exact),
        tuple(near),
        tuple(ratios),
    )


def quick_check(table: Table, ratios: Sequence[float] = RATIOS) -> list[str]:
    """What a table alone tells, without reading a pixel: sentences to show before a training."""
    scan = scan_table(table)
    found = [*check_classes(scan, ratios), *check_groups(scan, ratios)]
    found.sort(key=lambda each: SEVERITIES.index(each.severity))
    return [each.text for each in found]


def _scan(data: str | Path, columns: Columns) -> Scan:
    place = Path(data).expanduser()
    if str(data) != "synthetic" and not place.exists():
        raise LmdError(f"data source {data} does not exist; accepted are {ACCEPTED}")
    if place.is_dir():
        return scan_folders(place)
    if place.suffix.lower() in {".csv", ".tsv"}:
        return scan_manifest(place, columns)
    try:
        return scan_table(open_table(data))
    except LmdError as error:
        return Scan(str(data), "arrays", findings=[finding("source", f"{error}.")])


def _refusal(
    data: str | Path, columns: Columns, ratios: Sequence[float], looks: Sequence[Look | None]
) -> list[Finding]:
    """Whether training would stop, and with which words."""
    options: dict[str, Any] = columns.options()
    try:
        split(open_table(data, **options), ratios)
    except Exception as error:  # whatever it is, the examination goes on
        return [finding("refused", f"As it is, training stops with: {spelt(str(error))}.")]
    broken = sum(look is not None and bool(look.fault) for look in looks)
    if broken:
        return [
            finding(
                "refused",
                f"As it is, training stops at {broken} images that cannot be read.",
                remedy="Mend or remove them, or go on without them with --skip-bad.",
            )
        ]
    return []
