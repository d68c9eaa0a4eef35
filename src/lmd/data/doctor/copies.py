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


def exact_copies(scan: Scan, looks: Sequence[Look]) -> Sets:
    """Sets of usable images with equal pixels in any encoding; blank images do not count."""
    same: dict[str, list[int]] = defaultdict(list)
    for i in scan.usable():
        if looks[i].pixels and "one_colour" not in looks[i].oddities:
            same[looks[i].pixels].append(i)
    return [tuple(cases) for cases in same.values() if len(cases) > 1]


def near_copies(scan: Scan, looks: Sequence[Look], exact: Sets) -> Sets:
    """Sets of usable images that look alike but are not equal, and belong to different groups.

    Each set of exact copies is represented by its first image.
    """
    spare = {i for same in exact for i in same[1:]}
    rows = [i for i in scan.usable() if looks[i].miniature is not None and i not in spare]
    if not rows:
        return []
    hashes = np.array([looks[i].hash for i in rows], dtype=np.uint64)
    miniatures = np.array([looks[i].miniature for i in rows], dtype=np.uint8)
    groups = None
    if scan.grouped:
        names = [scan.cases[i].group for i in rows]
        groups = np.unique(names, return_inverse=True)[1].astype(np.int64)
    alike = near_clusters(hashes, miniatures, groups)
    return [tuple(rows[i] for i in each) for each in alike]


def check_copies(scan: Scan, looks: Sequence[Look], exact: Sets, near: Sets) -> Iterator[Finding]:
    """Findings about copies; each set is reported once, in the most serious finding."""
    conflicts, torn, plain = _sort(scan, exact)
    files = sum(len({looks[i].content for i in same}) == 1 for same in plain)
    how = f"({files} as identical files, {len(plain) - files} as equal pixels in different files)"
    again = "{n} [image appears|images appear]"
    yield from _found("conflicting_duplicates", f"{again} with different labels", conflicts)
    yield from _found("duplicate_in_parts", "{n} [image is|images are] in several parts", torn)
    yield from _found("duplicate", f"{again} more than once {how}", plain)
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
    """Sets with different labels, other sets in different parts, and the rest."""
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
