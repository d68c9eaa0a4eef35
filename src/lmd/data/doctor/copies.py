"""Copies: images that appear twice, exactly or nearly, and their parts and labels."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from lmd.base.text import counted
from lmd.data.doctor.classes import same_name
from lmd.data.doctor.look import Look
from lmd.data.doctor.similar import near_clusters
from lmd.data.findings import Finding, Severity, finding
from lmd.data.sources.scan import Scan

Sets = list[tuple[int, ...]]


def exact_copies(scan: Scan, looks: Sequence[Look | None]) -> Sets:
    """Sets of usable images with equal pixels, however encoded (and equal files among them)."""
    same: dict[str, list[int]] = defaultdict(list)
    for i in scan.usable():
        look = looks[i]
        if look is not None and look.pixels and not _flat(look):
            same[look.pixels].append(i)
    return [tuple(cases) for cases in same.values() if len(cases) > 1]


def near_copies(scan: Scan, looks: Sequence[Look | None], exact: Sets) -> Sets:
    """Sets of usable images that look alike but are not equal, and not of one group.

    One of each set of exact copies stands for all.
    """
    spare = {i for same in exact for i in same[1:]}
    rows, seen = [], []
    for i in scan.usable():
        look = looks[i]
        if look is not None and look.miniature is not None and i not in spare:
            rows.append(i)
            seen.append(look)
    if not rows:
        return []
    hashes = np.array([look.hash for look in seen], dtype=np.uint64)
    miniatures = np.stack([look.miniature for look in seen if look.miniature is not None])
    groups = None
    if scan.grouped:
        names = [scan.cases[i].group for i in rows]
        groups = np.unique(names, return_inverse=True)[1].astype(np.int64)
    alike = near_clusters(hashes, miniatures, groups)
    return [tuple(rows[i] for i in each) for each in alike]


def check_copies(
    scan: Scan, looks: Sequence[Look | None], exact: Sets, near: Sets
) -> Iterator[Finding]:
    """Findings about copies; each set is in the most serious of them only."""
    conflicts, torn, plain = _sort(scan, exact)
    files = sum(len({_content(looks[i]) for i in same}) == 1 for same in plain)
    how = f"({files} as identical files, {len(plain) - files} as equal pixels in different files)"
    yield from _found(
        "conflicting_duplicates",
        "{n} [image appears|images appear] with different labels",
        conflicts,
    )
    yield from _found("duplicate_in_parts", "{n} [image is|images are] in several parts", torn)
    yield from _found(
        "duplicate", f"{{n}} [image appears|images appear] more than once {how}", plain
    )
    conflicts, torn, plain = _sort(scan, near)
    alike = "{n} [set|sets] of images that look the same"
    yield from _found("near_duplicate_labels", f"{alike} have different labels", conflicts)
    yield from _found("near_duplicate_in_parts", f"{alike} are in several parts", torn)
    groups = " are in different groups" if scan.grouped else ""
    severity: Severity = "note" if scan.split else "warning"
    yield from _found("near_duplicate", f"{alike}{groups}", plain, severity)


def _found(kind: str, text: str, sets: Sets, severity: Severity | None = None) -> Iterator[Finding]:
    if sets:
        yield finding(kind, f"{counted(len(sets), text)}.", sets=sets, severity=severity)


def _sort(scan: Scan, sets: Sets) -> tuple[Sets, Sets, Sets]:
    """Sets with different labels, else in different parts, else neither."""
    conflicts, torn, plain = [], [], []
    for same in sets:
        cases = [scan.cases[i] for i in same]
        if len({same_name(case.label) for case in cases}) > 1:
            conflicts.append(same)
        elif len({case.part for case in cases}) > 1:
            torn.append(same)
        else:
            plain.append(same)
    return conflicts, torn, plain


def _content(look: Look | None) -> str:
    return "" if look is None else look.content


def _flat(look: Look) -> bool:
    """Blank images are equal without being copies."""
    return any(kind == "one_colour" for kind, _ in look.oddities)
