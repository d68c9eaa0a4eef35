"""Classes and parts: counts, classes that are too small, and one class under two names."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from lmd.data.imbalance import imbalance_factor
from lmd.data.scan import Finding, Scan, class_order, finding
from lmd.data.splits import part_sizes
from lmd.data.table import PARTS
from lmd.scoring.proportions import wilson

Counts = dict[str, dict[str, int]]
# The ratio of the largest to the smallest class from which on a tail is reported as long.
LONG_TAIL = 10.0
# A test class is small if one image changes balanced accuracy (the mean recall) by more than this.
POINT = 0.01
LISTED = 6


def class_counts(scan: Scan) -> Counts:
    """Usable images of each class in each part; data without parts has the one part ``""``."""
    parts = PARTS if scan.split else ("",)
    found = Counter((scan.cases[i].label, scan.cases[i].part) for i in scan.usable())
    names = class_order(scan.cases[i].label for i in scan.usable())
    return {name: {part: found[name, part] for part in parts} for name in names}


def check_classes(scan: Scan, ratios: Sequence[float]) -> Iterator[Finding]:
    """Findings that need only labels and parts."""
    counts = class_counts(scan)
    if not counts:
        return
    yield _summary(scan, counts)
    if len(counts) == 1:
        name = next(iter(counts))
        yield finding("one_class", f"All images have the class {name!r}.", names=[name])
    yield from _long_tail(counts)
    yield from _names(counts)
    yield from (_absent(counts) if scan.split else _too_few(scan, counts, ratios))
    yield from _tiny_test(scan, counts, ratios)


def totals(counts: Counts) -> dict[str, int]:
    """Images of each class over all parts."""
    return {name: sum(parts.values()) for name, parts in counts.items()}


def same_name(name: str) -> str:
    """A class name without case and extra blanks, to compare names that mean the same class.

    >>> same_name(" Basal  Cell ") == same_name("basal cell")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _summary(scan: Scan, counts: Counts) -> Finding:
    sizes = totals(counts)
    text = f"{sum(sizes.values())} usable images of {len(sizes)} classes: "
    text += ", ".join(f"{name} {n}" for name, n in sorted(sizes.items(), key=lambda x: -x[1]))
    if scan.split:
        parts = {part: sum(each[part] for each in counts.values()) for part in PARTS}
        text += "; " + ", ".join(f"{part} {n}" for part, n in parts.items())
    return finding("counts", f"{text}.", names=sizes)


def _long_tail(counts: Counts) -> Iterator[Finding]:
    sizes = totals(counts)
    factor = imbalance_factor(list(sizes.values()))
    if factor >= LONG_TAIL:
        most, least = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        yield finding(
            "imbalance",
            f"The imbalance factor is {factor:.4g}: {most!r} has {sizes[most]} images, "
            f"{least!r} has {sizes[least]}. Always predicting {most!r} is right for "
            f"{100 * sizes[most] / sum(sizes.values()):.0f} % of the images.",
            names=[most, least],
        )


def _names(counts: Counts) -> Iterator[Finding]:
    sizes = totals(counts)
    alike: dict[str, list[str]] = defaultdict(list)
    for name in counts:
        alike[same_name(name)].append(name)
    for names in alike.values():
        if len(names) > 1:
            listed = " and ".join(f"{name!r} ({sizes[name]})" for name in names)
            yield finding("class_name", f"{listed} differ only in case or blanks.", names=names)
        elif names[0] != names[0].strip():
            yield finding(
                "class_name",
                f"The class name {names[0]!r} begins or ends with a blank.",
                names=names,
                remedy="Rename it; --fix removes the blank.",
            )
    for (one, first), (other, second) in combinations(alike.items(), 2):
        if _one_slip(one, other):
            yield finding(
                "class_spelling",
                f"{first[0]!r} ({sizes[first[0]]}) and {second[0]!r} ({sizes[second[0]]}) differ "
                "in one letter or in separators.",
                names=[*first, *second],
            )


def _one_slip(a: str, b: str) -> bool:
    """Whether two names differ in separators only, or in one letter or swap of two letters.

    Short names, and names with different numbers, may differ on purpose.

    >>> _one_slip("melanoma", "melanmoa"), _one_slip("grade 1", "grade 2")
    (True, False)
    """
    plain_a, plain_b = ("".join(c for c in x if c.isalnum()) for x in (a, b))
    if plain_a == plain_b:
        return True
    digits_a, digits_b = ("".join(c for c in x if c.isdigit()) for x in (a, b))
    if min(len(plain_a), len(plain_b)) < 5 or digits_a != digits_b:
        return False
    a, b = sorted((plain_a, plain_b), key=len)
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest_a, rest_b = a[start:], b[start:]
    if len(b) == len(a) + 1:
        return rest_a == rest_b[1:]
    swapped = rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]
    return len(a) == len(b) and (rest_a[1:] == rest_b[1:] or swapped)


def _absent(counts: Counts) -> Iterator[Finding]:
    for part in PARTS:
        names = [name for name, each in counts.items() if each[part] == 0]
        whole = len(names) == len(counts)
        if names:
            yield finding(
                "absent_in_part",
                f"The {part} part has no image of {', '.join(map(repr, names))}.",
                names=names,
                severity="error" if part == "train" or (part == "test" and whole) else "warning",
            )


def _too_few(scan: Scan, counts: Counts, ratios: Sequence[float]) -> Iterator[Finding]:
    needed = sum(ratio > 0 for ratio in ratios)
    what = "groups" if scan.grouped else "images"
    cases = [(i, scan.cases[i]) for i in scan.usable()]
    units = {(case.label, case.group if scan.grouped else i) for i, case in cases}
    held = Counter(label for label, _ in units)
    small = {name: held[name] for name in counts if held[name] < needed}
    if small:
        listed = ", ".join(f"{name!r} ({n})" for name, n in small.items())
        yield finding(
            "too_few",
            f"{listed}: a split into {needed} parts needs at least {needed} {what} per class.",
            cases=[i for i, case in cases if case.label in small],
            names=small,
        )


def _tiny_test(scan: Scan, counts: Counts, ratios: Sequence[float]) -> Iterator[Finding]:
    if scan.split:
        sizes = {name: each["test"] for name, each in counts.items() if each["test"] > 0}
    else:
        sizes = {
            name: part_sizes(n, ratios)[2]
            for name, n in totals(counts).items()
            if n >= sum(ratio > 0 for ratio in ratios) and ratios[2] > 0
        }
    small = {name: n for name, n in sizes.items() if 1 / (len(sizes) * n) > POINT}
    if not small:
        return
    listed = []
    for name, n in sorted(small.items(), key=lambda x: x[1]):
        low, high = wilson(round(0.8 * n), n)
        listed.append(
            f"{name!r} with {n} ({100 / (len(sizes) * n):.1f} points; with {round(0.8 * n)} of {n} "
            f"correct, the interval of its recall is {100 * low:.0f} to {100 * high:.0f} %)"
        )
    rest = f"; and {len(listed) - LISTED} more classes" if len(listed) > LISTED else ""
    yield finding(
        "tiny_test",
        f"One test image {'moves' if scan.split else 'would move'} balanced accuracy by more than "
        f"a point in {'; '.join(listed[:LISTED])}{rest}.",
        names=small,
    )
