"""Checks that need no pixels: classes, parts, groups, and what a split by image would leak."""

import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from operator import attrgetter, itemgetter
from pathlib import PurePosixPath

from lmd.base.text import counted, shorten
from lmd.data.scan import SEVERITIES, Finding, Scan, class_order, scan_table
from lmd.data.splits import imbalance_factor, part_sizes
from lmd.data.table import PARTS, Table
from lmd.scoring.proportions import wilson

RATIOS = (0.7, 0.1, 0.2)
# The ratio of the largest to the smallest class from which on a tail is reported as long.
LONG_TAIL = 10.0
# A test class is small if one image changes balanced accuracy (the mean recall) by more than this.
POINT = 0.01
LISTED = 6
GROUP_WORDS = re.compile("patient|lesion|subject|study|case|person|mrn|eye|participant")
PERSON = re.compile("patient|subject|person|mrn|participant")
# Words that describe a patient or lesion instead of naming it.
ATTRIBUTES = frozenset({
    "age", "sex", "gender", "race", "birth", "dob", "date", "year", "time", "type", "kind", "class",
    "location", "site", "side", "position", "weight", "height", "size", "history", "status",
})  # fmt: skip
# "P012_03", "P012-left", "P012 b": the text before the last separator may be the patient.
SERIES = re.compile(r"^(?P<group>.+?)[ _.-]+(?:\d{1,3}|[a-z]|left|right|od|os)$", re.IGNORECASE)
Counts = dict[str, dict[str, int]]


def quick_check(table: Table) -> list[str]:
    """Return the findings that need no pixels, as sentences to print before training."""
    scan = scan_table(table)
    findings = [*check_classes(scan, RATIOS), *(check_groups(scan, RATIOS) if scan.grouped else ())]
    return [finding.text for finding in by_severity(findings)]


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings: errors, warnings, notes."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def class_counts(scan: Scan) -> Counts:
    """Count usable images of each class in each part; the only part of undivided data is ``""``."""
    parts = PARTS if scan.split else ("",)
    counts = Counter((scan.cases[i].label, scan.cases[i].part) for i in scan.usable())
    return {
        name: {part: counts[name, part] for part in parts}
        for name in class_order(label for label, _ in counts)
    }


def check_classes(scan: Scan, ratios: Sequence[float]) -> Iterator[Finding]:
    """Yield findings that need only labels and parts."""
    counts = class_counts(scan)
    if not counts:
        return
    sizes = {name: sum(parts.values()) for name, parts in counts.items()}
    yield from _class_sizes(scan, counts, sizes)
    yield from _class_names(sizes)
    for part in PARTS if scan.split else ():
        if names := [name for name, held in counts.items() if held[part] == 0]:
            fatal = part == "train" or (part == "test" and len(names) == len(counts))
            yield Finding.of(
                "absent_in_part",
                f"The {part} part has no image of {', '.join(map(repr, names))}.",
                names=names,
                severity="error" if fatal else "warning",
            )
    if not scan.split:
        yield from _too_few(scan, sizes, ratios)
    yield from _tiny_test(scan, counts, sizes, ratios)


def _class_sizes(scan: Scan, counts: Counts, sizes: Mapping[str, int]) -> Iterator[Finding]:
    total = sum(sizes.values())
    text = f"{total} usable images of {len(sizes)} classes: "
    text += ", ".join(f"{name} {n}" for name, n in sorted(sizes.items(), key=lambda x: -x[1]))
    if scan.split:
        parts = {part: sum(held[part] for held in counts.values()) for part in PARTS}
        text += "; " + ", ".join(f"{part} {n}" for part, n in parts.items())
    yield Finding.of("counts", f"{text}.", names=sizes)
    most, least = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    if len(sizes) == 1:
        yield Finding.of("one_class", f"All images have the class {most!r}.", names=[most])
    factor = imbalance_factor(list(sizes.values()))
    if factor >= LONG_TAIL:
        yield Finding.of(
            "imbalance",
            f"The imbalance factor is {factor:.4g}: {most!r} has {sizes[most]} images, "
            f"{least!r} has {sizes[least]}. Always predicting {most!r} is right for "
            f"{100 * sizes[most] / total:.0f} % of the images.",
            names=[most, least],
        )


def _class_names(sizes: Mapping[str, int]) -> Iterator[Finding]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sizes:
        alike[same_name(name)].append(name)
    for names in alike.values():
        if len(names) > 1:
            listed = " and ".join(f"{name!r} ({sizes[name]})" for name in names)
            yield Finding.of("class_name", f"{listed} differ only in case or blanks.", names=names)
        elif names[0] != names[0].strip():
            yield Finding.of(
                "class_name",
                f"The class name {names[0]!r} begins or ends with a blank.",
                names=names,
                remedy="Rename it; --fix removes the blank.",
            )
    for (a, first), (b, second) in combinations(alike.items(), 2):
        if _one_slip(a, b):
            yield Finding.of(
                "class_spelling",
                f"{first[0]!r} ({sizes[first[0]]}) and {second[0]!r} ({sizes[second[0]]}) differ "
                "in one letter or in separators.",
                names=[*first, *second],
            )


def same_name(name: str) -> str:
    """Return a class name without case and extra blanks, to compare names of the same class."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _one_slip(a: str, b: str) -> bool:
    """Return whether names differ in separators only, or in one letter or swap of two letters.

    >>> _one_slip("melanoma", "melanmoa"), _one_slip("grade 1", "grade 2")
    (True, False)
    """
    a, b = sorted(("".join(filter(str.isalnum, name)) for name in (a, b)), key=len)
    if a == b:
        return True
    # Short names, and names with different numbers, may differ on purpose.
    if len(a) < 5 or [*filter(str.isdigit, a)] != [*filter(str.isdigit, b)]:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest_a, rest_b = a[start:], b[start:]
    if len(b) == len(a) + 1:
        return rest_a == rest_b[1:]
    swapped = rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]
    return len(a) == len(b) and (rest_a[1:] == rest_b[1:] or swapped)


def _too_few(scan: Scan, sizes: Mapping[str, int], ratios: Sequence[float]) -> Iterator[Finding]:
    needed = sum(ratio > 0 for ratio in ratios)
    cases = [(i, scan.cases[i]) for i in scan.usable()]
    units = {(case.label, case.group if scan.grouped else i) for i, case in cases}
    held = Counter(label for label, _ in units)
    if small := {name: held[name] for name in sizes if held[name] < needed}:
        listed = ", ".join(f"{name!r} ({n})" for name, n in small.items())
        what = "groups" if scan.grouped else "images"
        yield Finding.of(
            "too_few",
            f"{listed}: a split into {needed} parts needs at least {needed} {what} per class.",
            cases=[i for i, case in cases if case.label in small],
            names=small,
        )


def _tiny_test(
    scan: Scan, counts: Counts, sizes: Mapping[str, int], ratios: Sequence[float]
) -> Iterator[Finding]:
    if scan.split:
        tested = {name: held["test"] for name, held in counts.items() if held["test"] > 0}
    else:
        needed = sum(ratio > 0 for ratio in ratios) if ratios[2] > 0 else float("inf")
        tested = {name: part_sizes(n, ratios)[2] for name, n in sizes.items() if n >= needed}
    small = {name: n for name, n in tested.items() if 1 / (len(tested) * n) > POINT}
    if not small:
        return
    listed = []
    for name, n in sorted(small.items(), key=itemgetter(1)):
        right = round(0.8 * n)
        low, high = wilson(right, n)
        listed.append(
            f"{name!r} with {n} ({100 / (len(tested) * n):.1f} points; with {right} of {n} "
            f"correct, the interval of its recall is {100 * low:.0f} to {100 * high:.0f} %)"
        )
    rest = f"; and {len(listed) - LISTED} more classes" if len(listed) > LISTED else ""
    yield Finding.of(
        "tiny_test",
        f"One test image {'moves' if scan.split else 'would move'} balanced accuracy by more than "
        f"a point in {'; '.join(listed[:LISTED])}{rest}.",
        names=small,
    )


def check_groups(scan: Scan, ratios: Sequence[float]) -> Iterator[Finding]:
    """Yield findings about groups, or signs of groups if there are none."""
    if not scan.grouped:
        yield from unused_groups(scan)
        return
    members: dict[str, list[int]] = defaultdict(list)
    for i in scan.usable():
        members[scan.cases[i].group].append(i)
    several = {group: cases for group, cases in members.items() if len(cases) > 1}
    if members:
        largest = sorted(several.values(), key=len, reverse=True)
        yield Finding.of("groups", _group_sizes(scan, members, ratios), sets=largest[:6])
    torn, mixed = (
        {name: same for name, same in several.items() if len({of(scan.cases[i]) for i in same}) > 1}
        for of in (attrgetter("part"), attrgetter("label"))
    )
    if torn:
        yield Finding.of(
            "group_in_parts",
            f"{len(torn)} of {len(several)} groups with several images are in more than one part "
            f"({shorten(list(torn))}), so the test part shows what was trained on.",
            sets=torn.values(),
            names=torn,
        )
    if mixed:
        text = counted(len(mixed), "{n} [group has|groups have] images of more than one class.")
        yield Finding.of("group_labels", text, sets=mixed.values())


def _group_sizes(scan: Scan, members: Mapping[str, list[int]], ratios: Sequence[float]) -> str:
    text = f"{len(members)} groups for {sum(map(len, members.values()))} images; "
    several = sum(len(cases) > 1 for cases in members.values())
    text += counted(several, "{n} [has|have] more than one image.")
    if several:
        held = [Counter(scan.cases[i].label for i in cases) for cases in members.values()]
        groups, images, tested = expected_leak(held, ratios)
        digits = 0 if groups >= 20 else 1
        shares = ":".join(f"{10 * ratio:g}" for ratio in ratios)
        text += f" A random {shares} split by image would leak: on average {groups:.{digits}f} "
        text += f"groups would be in several parts, and {images:.{digits}f} of {tested} "
        text += "test images would share their group with a training image."
    return text


def expected_leak(
    held: Sequence[Mapping[str, int]], ratios: Sequence[float]
) -> tuple[float, float, int]:
    """Return the exact mean effect of random splits by image with fixed sizes of classes and parts.

    That is the number of groups in several parts, and the number of test images that share their
    group with a training image, of how many. ``held`` has the number of images of each class, for
    each group. A part that takes n of N images gets all m of a group with probability
    ∏ (n - k) / (N - k), k < m, independently for each class.
    """
    totals = sum(map(Counter, held), Counter[str]())
    sizes = {name: part_sizes(n, ratios) for name, n in totals.items()}
    groups = images = 0.0
    for group in held:
        together = sum(
            prod(_all_within(sizes[c][p], totals[c], m) for c, m in group.items())
            for p in range(len(PARTS))
        )
        groups += 1 - together
        for c, m in group.items():
            # An image of class c is in test, and no other image of the group is in training.
            tested = sizes[c][2] / totals[c]
            elsewhere = _all_within(totals[c] - sizes[c][0] - 1, totals[c] - 1, m - 1)
            others = (
                _all_within(totals[d] - sizes[d][0], totals[d], k)
                for d, k in group.items()
                if d != c
            )
            images += m * tested * (1 - elsewhere * prod(others))
    return groups, images, sum(parts[2] for parts in sizes.values())


def _all_within(part: int, whole: int, drawn: int) -> float:
    return prod(max(part - k, 0) / (whole - k) for k in range(drawn))


def unused_groups(scan: Scan) -> Iterator[Finding]:
    """Yield signs of patients or lesions in a source whose groups are not used."""
    if scan.grouped:
        return
    sizes = {}
    for column, cells in scan.spare.items():
        if GROUP_WORDS.search(column.lower()) and not _is_attribute(column):
            values = [cells[i] for i in scan.usable() if cells[i]]
            if 1 < len(set(values)) < len(values):
                sizes[column] = len(set(values)), len(values)
    if not sizes:
        yield from _by_names(scan)
        return
    column = min(sizes, key=lambda name: (not PERSON.search(name.lower()), -sizes[name][0]))
    different, images = sizes[column]
    others = [repr(name) for name in sizes if name != column]
    also = f" So might be {' and '.join(others)}." if others else ""
    yield Finding.of(
        "group_hint",
        f"Column {column!r} has {different} values for {images} images but is not used as the "
        f"group: a split by image would leak.{also}",
        names=[column],
        severity="warning",
        remedy=f"Use it with --group-column {shlex.quote(column)}.",
    )


def _is_attribute(column: str) -> bool:
    """Return whether a name such as ``PatientSex`` or ``age_of_patient`` is of an attribute.

    >>> _is_attribute("PatientSex"), _is_attribute("patient_image_id"), _is_attribute("lesionsite")
    (True, False, True)
    """
    words = re.findall("[A-Z]?[a-z]+|[A-Z]+", column)
    return any(GROUP_WORDS.sub("", word.lower()) in ATTRIBUTES for word in words)


def _by_names(scan: Scan) -> Iterator[Finding]:
    """Suggest groups by folders below class folders, or by names such as ``P012_01.png``."""
    usable = scan.usable()
    folders: dict[str, list[int]] = defaultdict(list)
    series: dict[str, list[int]] = defaultdict(list)
    above = 2 + scan.split if "folders" in scan.kind else None
    for i in usable:
        name = PurePosixPath(scan.cases[i].name)
        if above is not None and len(name.parts) > above:
            folders[str(name.parent)].append(i)
        match = SERIES.match(name.stem)
        if match:
            series[match["group"]].append(i)
    classes = len({scan.cases[i].label for i in usable})
    for groups, how in ((folders, "folders below the class folders"), (series, "file names")):
        several = {name: cases for name, cases in groups.items() if len(cases) > 1}
        covered = sum(map(len, several.values()))
        # Names such as "nevus_001" number the images of a class: few and large "groups".
        largest = max(map(len, groups.values()), default=0)
        if 2 * covered >= len(usable) and len(groups) > 3 * classes and largest <= len(usable) / 5:
            yield Finding.of(
                "group_hint",
                f"There is no group column, but {how} suggest {len(several)} groups of several "
                f"images ({shorten(list(several))}).",
                sets=list(several.values())[:6],
            )
            return
