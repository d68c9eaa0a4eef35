"""Examine a whole data set; do not stop at the first problem."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from lmd.base.errors import LmdError
from lmd.base.text import counted, printable, shorten
from lmd.data.checks import RATIOS, Counts, by_severity, check_classes, check_groups, class_counts
from lmd.data.images import SUFFIXES, Pixels, has_dicom_mark, read_image
from lmd.data.scan import SEVERITIES, TEXTS, Finding, Scan
from lmd.data.source import Columns
from lmd.data.sources import scan_source
from lmd.data.splits import split
from lmd.data.walk import visible
from lmd.doctor.clean import Cleaned, Sets, check_copies, find_copies
from lmd.doctor.look import Look, Tick, look_at_all

# Kinds with remarks that differ between images.
REMARKED = frozenset({"deep", "exif_rotated", "wrong_suffix", "frames", "metadata"})
# A side is tiny below this many pixels, or below this share of the median.
TINY_SIDE, TINY_SHARE = 16, 0.25
MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*")


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

    def severities(self) -> dict[str, int]:
        """Count the findings of each severity."""
        counts = Counter(finding.severity for finding in self.findings)
        return {severity: counts[severity] for severity in SEVERITIES}

    def describe(self, i: int) -> str:
        """Return the line of a case in the manifest, its name and its part."""
        case = self.scan.cases[i]
        return f"{case.place} ({case.part})" if case.part else case.place

    def pixels(self, i: int) -> Pixels | None:
        """Return the image of a case, ``(H, W, 3)``; ``None`` if it cannot be shown."""
        if not self.looks[i].pixels:
            return None
        path = self.scan.cases[i].path
        if path is None:
            return self.scan.read(i)
        with suppress(LmdError):
            return read_image(path)
        return None

    def clean(self) -> Cleaned:
        """Return the data set without what is wrong with it."""
        return Cleaned(self.scan, self.looks, self.exact, self.near, self.ratios)


def examine(
    data: str | Path,
    *,
    columns: Columns | None = None,
    ratios: Sequence[float] = RATIOS,
    tick: Tick | None = None,
) -> Examination:
    """Examine source, classes, groups, files and copies of data that is split by ``ratios``."""
    scan = scan_source(data, columns)
    refusal = []
    try:
        split(scan.table(), ratios)
    except LmdError as error:  # training would stop before it reads an image
        refusal = [Finding.of("refused", f"Training stops with: {printable(str(error))}.")]
    scan.cases += [case for case in scan.others if case.path and _starts_like_image(case.path)]
    text = "{n} [file is an image|files are images] by content but not by name, and not used."
    scan.report("ignored_file", text)
    if scan.kind == "manifest":
        _add_unlisted(scan)
    looks = look_at_all(scan, tick)
    broken = [i for i in scan.usable() if looks[i].fault]
    for i in broken:
        scan.cases[i] = replace(scan.cases[i], fault=looks[i].fault, detail=looks[i].reason)
    if broken and not refusal:
        text = counted(len(broken), "Training stops at {n} [image|images] that cannot be read.")
        remedy = "Fix or remove them, or leave them out with --skip-bad."
        refusal = [Finding.of("refused", text, remedy=remedy)]
    exact, near = find_copies(scan, looks)
    findings = [
        *refusal,
        *scan.findings,
        *_check_files(scan, looks),
        *check_copies(scan, looks, exact, near),
        *check_classes(scan, ratios),
        *check_groups(scan, ratios),
    ]
    return Examination(scan, looks, by_severity(findings), class_counts(scan), exact, near, ratios)


def _check_files(scan: Scan, looks: Sequence[Look]) -> Iterator[Finding]:
    """Yield findings from the looks at all images, one for each kind."""
    for kind, text in TEXTS["broken"].items():
        if cases := [i for i, look in enumerate(looks) if look.fault == kind]:
            reasons = [
                reason for reason, _ in Counter(looks[i].reason for i in cases).most_common()
            ]
            why = f" ({shorten(reasons)})" if kind in {"truncated", "unreadable"} else ""
            yield Finding.of(kind, f"{counted(len(cases), text)}{why}.", cases=cases)
    decoded = sum(bool(look.pixels) for look in looks)
    for kind, text in TEXTS["odd"].items():
        odd = {i: look.oddities[kind] for i, look in enumerate(looks) if kind in look.oddities}
        if odd and (kind != "greyscale" or len(odd) < decoded):
            what = counted(len(odd), text).replace("{rest}", str(decoded - len(odd)))
            yield Finding.of(kind, f"{what}{_where(scan, kind, odd)}.", cases=odd)
    sides = {i: min(look.size) for i, look in enumerate(looks) if look.pixels}
    usual = median(sides.values()) if sides else 0
    if tiny := [i for i, side in sides.items() if side < max(TINY_SIDE, TINY_SHARE * usual)]:
        text = counted(len(tiny), "{n} [image is|images are] tiny: the shortest side is ")
        text += f"{min(sides.values())} pixels, the median {usual:g}."
        yield Finding.of("tiny", text, cases=tiny)


def _where(scan: Scan, kind: str, odd: Mapping[int, str]) -> str:
    """Return the classes of these images if the oddity could reveal the class, else the remarks."""
    if kind in {"greyscale", "one_colour"}:
        classes = Counter(scan.cases[i].label or "no class" for i in odd)
        return " (" + ", ".join(f"{name} {n}" for name, n in classes.most_common(8)) + ")"
    if kind not in REMARKED:
        return ""
    remarks = Counter(odd.values())
    return " (" + shorten([f"{remark}: {n}" for remark, n in remarks.most_common()]) + ")"


def _add_unlisted(scan: Scan) -> None:
    """Report images in the folders of a manifest's images that the manifest does not list."""
    listed = {case.path for case in scan.cases if case.path is not None}
    ambiguous = tuple(case.name for case in scan.cases if case.fault == "ambiguous_file")
    unlisted = [
        file
        for folder in sorted({path.parent for path in listed})
        for file in visible(folder)
        if file.suffix.lower() in SUFFIXES
        and file not in listed
        and not str(file.with_suffix("")).endswith(ambiguous)
    ]
    text = "{n} [image lies|images lie] beside those of the manifest, but [is|are] not in it."
    names = [printable(os.path.relpath(file, scan.root)) for file in unlisted]
    scan.report("unlisted_file", text, names=names)


def _starts_like_image(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(132)
    except OSError:
        return False
    webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return start.startswith(MAGIC) or webp or has_dicom_mark(start)
