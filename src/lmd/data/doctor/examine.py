"""The whole examination of a data set; it does not stop at the first problem."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import counted, printable
from lmd.data.doctor.classes import Counts, check_classes, class_counts
from lmd.data.doctor.clean import Cleaned, clean
from lmd.data.doctor.copies import Sets, check_copies, exact_copies, near_copies
from lmd.data.doctor.files import add_ignored, add_unlisted, check_files
from lmd.data.doctor.groups import check_groups
from lmd.data.doctor.look import Look, Tick, look_at_all
from lmd.data.findings import SEVERITIES, Finding, finding
from lmd.data.reading import read_image
from lmd.data.sources import scan_source
from lmd.data.sources.scan import Columns, Scan, scan_table
from lmd.data.splits import split
from lmd.data.table import Table

RATIOS = (0.7, 0.1, 0.2)


@dataclass(frozen=True)
class Examination:
    """What was examined and found: ``looks`` as ``scan.cases``, ``findings`` by severity."""

    scan: Scan
    looks: list[Look]
    findings: list[Finding]
    counts: Counts
    exact: Sets
    near: Sets
    ratios: Sequence[float]

    @property
    def images(self) -> int:
        """The number of images (or lines of a manifest) that were examined."""
        return len(self.scan.cases)

    def severities(self) -> dict[str, int]:
        """The number of findings of each severity."""
        found = Counter(each.severity for each in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def describe(self, i: int) -> str:
        """The line of a case in the manifest, its name and its part."""
        case = self.scan.cases[i]
        return f"{case.place} ({case.part})" if case.part else case.place

    def pixels(self, i: int) -> NDArray[np.uint8] | None:
        """The image of a case, ``(H, W, 3)``; ``None`` if it cannot be shown."""
        if not self.looks[i].pixels:
            return None
        path = self.scan.cases[i].path
        if path is None:
            return self.scan.read(i)
        try:
            return read_image(path, at_least=192)
        except LmdError:
            return None

    def clean(self) -> Cleaned:
        """The data set without what is wrong with it, see ``lmd.data.doctor.clean``."""
        return clean(self.scan, self.looks, self.exact, self.near, self.ratios)


def examine(
    data: str | Path,
    *,
    columns: Columns | None = None,
    ratios: Sequence[float] = RATIOS,
    tick: Tick | None = None,
) -> Examination:
    """Examine a data set: source, classes, groups, every file, and copies.

    ``ratios`` are those of the planned split; a source with parts keeps them.
    """
    scan = scan_source(data, columns)
    refusal = _refusal(scan, ratios)
    add_ignored(scan)
    if scan.kind == "manifest":
        add_unlisted(scan)
    looks = look_at_all(scan, tick)
    broken = [i for i in scan.usable() if looks[i].fault]
    for i in broken:
        scan.cases[i] = replace(scan.cases[i], fault=looks[i].fault, detail=looks[i].reason)
    if broken and not refusal:
        text = counted(len(broken), "Training stops at {n} [image|images] that cannot be read.")
        remedy = "Fix or remove them, or leave them out with --skip-bad."
        refusal = [finding("refused", text, remedy=remedy)]
    exact = exact_copies(scan, looks)
    near = near_copies(scan, looks, exact)
    findings = [
        *refusal,
        *scan.findings,
        *check_files(scan, looks),
        *check_copies(scan, looks, exact, near),
        *check_classes(scan, ratios),
        *check_groups(scan, ratios),
    ]
    return Examination(scan, looks, _by_severity(findings), class_counts(scan), exact, near, ratios)


def quick_check(table: Table, ratios: Sequence[float] = RATIOS) -> list[str]:
    """The findings that need no pixels, as sentences to print before training.

    Groups that are not used are ``Prepared.warnings``.
    """
    scan = scan_table(table)
    found = [*check_classes(scan, ratios), *(check_groups(scan, ratios) if scan.grouped else ())]
    return [each.text for each in _by_severity(found)]


def _by_severity(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: SEVERITIES.index(each.severity))


def _refusal(scan: Scan, ratios: Sequence[float]) -> list[Finding]:
    """A finding if training would stop before it reads an image, with its message."""
    try:
        split(scan.table(), ratios)
    except LmdError as error:
        return [finding("refused", f"Training stops with: {printable(str(error))}.")]
    return []
