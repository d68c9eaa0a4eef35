"""Findings about image files, from a look at each."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from lmd.base.text import counted, shorten
from lmd.data.doctor.findings import Finding, finding
from lmd.data.doctor.look import Look
from lmd.data.doctor.scan import Scan

FAULTS = {
    "empty_file": "{n} [file is|files are] empty",
    "truncated": "{n} [file ends before its image does|files end before their images do]",
    "unreadable": "{n} [image|images] cannot be read",
    "huge": "{n} [image|images] would unpack to more pixels than are ever decoded",
}
ODDITIES = {
    "end_missing": "{n} JPEG [file lacks its|files lack their] end mark, but can be decoded",
    "one_colour": "{n} [image is|images are] of one colour all over",
    "greyscale": "{n} [image is|images are] grey among {rest} in colour",
    "cmyk": "{n} [image is|images are] in CMYK; colours are converted without a profile",
    "palette": "{n} [image has|images have] a palette",
    "alpha": "{n} [image has|images have] transparent pixels, which read as black",
    "deep": "{n} [image has|images have] more than 8 bits a channel",
    "exif_rotated": "{n} [image is|images are] stored turned or mirrored; EXIF says how",
    "wrong_suffix": "{n} [file is|files are] of another format than the name says",
    "frames": "{n} [file holds|files hold] several frames or pages, of which the first is used",
    "metadata": "{n} [file has|files have] broken metadata",
}
# Kinds whose remarks differ from image to image.
TELLING = frozenset({"deep", "exif_rotated", "wrong_suffix", "frames", "metadata"})
# Shorter than this nothing can be seen; or than this share of the usual image of the set.
TINY_SIDE, TINY_SHARE = 16, 0.25


def check_files(scan: Scan, looks: Sequence[Look | None]) -> Iterator[Finding]:
    """What the looks at all images tell, one finding for each kind."""
    faults: dict[str, list[int]] = defaultdict(list)
    odd: dict[str, dict[int, str]] = defaultdict(dict)
    decoded = []
    for i, look in enumerate(looks):
        if look is None:
            continue
        if look.fault:
            faults[look.fault].append(i)
            continue
        decoded.append(i)
        for kind, remark in look.oddities:
            odd[kind][i] = remark
    for kind, text in FAULTS.items():
        if faults[kind]:
            yield _fault(scan, looks, kind, text, faults[kind])
    for kind, text in ODDITIES.items():
        found = odd[kind]
        if not found or (kind == "greyscale" and len(found) == len(decoded)):
            continue
        told = counted(len(found), text).replace("{rest}", str(len(decoded) - len(found)))
        yield finding(kind, f"{told}{_where(scan, kind, found)}.", cases=found)
    yield from _tiny(looks, decoded)


def _fault(
    scan: Scan, looks: Sequence[Look | None], kind: str, text: str, cases: list[int]
) -> Finding:
    reasons = Counter(look.reason for i in cases if (look := looks[i]) is not None)
    why = (
        ""
        if kind in {"empty_file", "huge"}
        else f" ({shorten([r for r, _ in reasons.most_common()])})"
    )
    return finding(kind, f"{counted(len(cases), text)}{why}.", cases=cases)


def _where(scan: Scan, kind: str, found: dict[int, str]) -> str:
    """How oddities spread: over classes if they could give the class away, else their remarks."""
    if kind in {"greyscale", "one_colour"}:
        classes = Counter(scan.cases[i].label or "no class" for i in found)
        return " (" + ", ".join(f"{name} {n}" for name, n in classes.most_common(8)) + ")"
    if kind not in TELLING:
        return ""
    remarks = Counter(found.values())
    return " (" + shorten([f"{remark}: {n}" for remark, n in remarks.most_common()]) + ")"


def _tiny(looks: Sequence[Look | None], decoded: Sequence[int]) -> Iterator[Finding]:
    sides = {i: min(look.size) for i in decoded if (look := looks[i]) is not None}
    if not sides:
        return
    usual = median(sides.values())
    tiny = [i for i, side in sides.items() if side < max(TINY_SIDE, TINY_SHARE * usual)]
    if tiny:
        smallest = min(sides.values())
        yield finding(
            "tiny",
            counted(len(tiny), "{n} [image is|images are] tiny")
            + f": the smallest side is {smallest} pixels, the usual one {usual:g}.",
            cases=tiny,
        )
