"""Findings about image files, and images that the source does not use."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from lmd.base.text import counted, printable, shorten
from lmd.data.doctor.look import Look
from lmd.data.findings import Finding, finding
from lmd.data.reading import SUFFIXES
from lmd.data.sources.scan import Scan
from lmd.data.sources.walk import visible

FAULTS = {
    "missing_file": "{n} [file is a broken link|files are broken links]",
    "empty_file": "{n} [file is|files are] empty",
    "truncated": "{n} [file is|files are] truncated",
    "unreadable": "{n} [image|images] cannot be read",
    "huge": "{n} [image has|images have] more pixels than lmd decodes",
}
ODDITIES = {
    "end_missing": "{n} JPEG [file has|files have] no end marker, but can be decoded",
    "one_colour": "{n} [image is|images are] of a single colour",
    "greyscale": "{n} [image is|images are] grey among {rest} in colour",
    "cmyk": "{n} [image is|images are] in CMYK; colours are converted without a profile",
    "palette": "{n} [image has|images have] a palette",
    "alpha": "{n} [image has|images have] transparent pixels, which become black",
    "deep": "{n} [image has|images have] more than 8 bits per channel",
    "exif_rotated": "{n} [image is|images are] stored rotated or mirrored, as EXIF says",
    "wrong_suffix": "{n} [file has|files have] another format than the name says",
    "frames": "{n} [file has|files have] several frames or pages; the first is used",
    "metadata": "{n} [file has|files have] corrupt metadata",
}
# Kinds with remarks that differ between images.
REMARKED = frozenset({"deep", "exif_rotated", "wrong_suffix", "frames", "metadata"})
# A side is tiny below this many pixels, or below this share of the median.
TINY_SIDE, TINY_SHARE = 16, 0.25
MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*")


def check_files(scan: Scan, looks: Sequence[Look]) -> Iterator[Finding]:
    """Findings from the looks at all images, one for each kind."""
    for kind, text in FAULTS.items():
        cases = [i for i, look in enumerate(looks) if look.fault == kind]
        if cases:
            reasons = Counter(looks[i].reason for i in cases).most_common()
            listed = kind in {"truncated", "unreadable"}
            why = f" ({shorten([reason for reason, _ in reasons])})" if listed else ""
            yield finding(kind, f"{counted(len(cases), text)}{why}.", cases=cases)
    decoded = sum(bool(look.pixels) for look in looks)
    for kind, text in ODDITIES.items():
        found = {i: look.oddities[kind] for i, look in enumerate(looks) if kind in look.oddities}
        if found and (kind != "greyscale" or len(found) < decoded):
            what = counted(len(found), text).replace("{rest}", str(decoded - len(found)))
            yield finding(kind, f"{what}{_where(scan, kind, found)}.", cases=found)
    yield from _tiny(looks)


def _where(scan: Scan, kind: str, found: dict[int, str]) -> str:
    """The classes of these images if the oddity could reveal the class, else the remarks."""
    if kind in {"greyscale", "one_colour"}:
        classes = Counter(scan.cases[i].label or "no class" for i in found)
        return " (" + ", ".join(f"{name} {n}" for name, n in classes.most_common(8)) + ")"
    if kind not in REMARKED:
        return ""
    remarks = Counter(found.values())
    return " (" + shorten([f"{remark}: {n}" for remark, n in remarks.most_common()]) + ")"


def _tiny(looks: Sequence[Look]) -> Iterator[Finding]:
    sides = {i: min(look.size) for i, look in enumerate(looks) if look.pixels}
    usual = median(sides.values()) if sides else 0
    tiny = [i for i, side in sides.items() if side < max(TINY_SIDE, TINY_SHARE * usual)]
    if tiny:
        what = counted(len(tiny), "{n} [image is|images are] tiny")
        smallest = min(sides.values())
        text = f"{what}: the shortest side is {smallest} pixels, the median {usual:g}."
        yield finding("tiny", text, cases=tiny)


def add_ignored(scan: Scan) -> None:
    """Add files in class folders that are images by content but not by name."""
    scan.cases += [case for case in scan.others if case.path and _starts_like_image(case.path)]
    scan.report(
        "ignored_file",
        "{n} [file is an image|files are images] by content but not by name, and not used.",
    )


def add_unlisted(scan: Scan) -> None:
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
    if unlisted:
        text = "{n} [image lies|images lie] beside those of the manifest, but [is|are] not in it."
        names = [printable(os.path.relpath(file, scan.root)) for file in unlisted]
        scan.findings.append(finding("unlisted_file", counted(len(names), text), names=names))


def _starts_like_image(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(132)
    except OSError:
        return False
    riff = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return start.startswith(MAGIC) or riff or start[128:] == b"DICM"
