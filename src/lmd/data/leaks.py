"""Groups: images of one patient or lesion, and what a split by image would leak."""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from pathlib import PurePosixPath

from lmd.base.text import counted, shorten
from lmd.data.scan import Finding, Scan, finding
from lmd.data.splits import part_sizes
from lmd.data.table import PARTS

GROUP_WORDS = re.compile("patient|lesion|subject|study|case|person|mrn|eye|participant")
PERSON = re.compile("patient|subject|person|mrn|participant")
# Words that say something about a patient or lesion instead of naming it.
ATTRIBUTES = frozenset({
    "age", "sex", "gender", "race", "birth", "dob", "date", "year", "time", "type", "kind", "class",
    "location", "site", "side", "position", "weight", "height", "size", "history", "status",
})  # fmt: skip
# "P012_03", "P012-left", "P012 b": the text before the last separator may be the patient.
SERIES = re.compile(r"^(?P<group>.+?)[ _.-]+(?:\d{1,3}|[a-z]|left|right|od|os)$", re.IGNORECASE)


@dataclass(frozen=True)
class Leak:
    """The mean effect of random splits by image on groups.

    ``groups`` is the number of groups in several parts; ``images`` is the number of the ``tested``
    test images that share their group with a training image.
    """

    groups: float
    images: float
    tested: int


def check_groups(scan: Scan, ratios: Sequence[float]) -> Iterator[Finding]:
    """Findings about groups, or signs of groups if none are given."""
    if not scan.grouped:
        yield from unused_groups(scan)
        return
    members: dict[str, list[int]] = defaultdict(list)
    for i in scan.usable():
        members[scan.cases[i].group].append(i)
    several = {group: cases for group, cases in members.items() if len(cases) > 1}
    if members:
        yield _sizes(scan, members, several, ratios)
    torn, mixed = (
        {name: each for name, each in several.items() if len({of(scan.cases[i]) for i in each}) > 1}
        for of in (attrgetter("part"), attrgetter("label"))
    )
    if torn:
        yield finding(
            "group_in_parts",
            f"{len(torn)} of {len(several)} groups with several images are in more than one part "
            f"({shorten(list(torn))}), so the test part shows what was trained on.",
            sets=torn.values(),
            names=torn,
        )
    if mixed:
        text = counted(len(mixed), "{n} [group has|groups have] images of more than one class.")
        yield finding("group_labels", text, sets=mixed.values())


def expected_leak(held: Sequence[Mapping[str, int]], ratios: Sequence[float]) -> Leak:
    """Exact expectations over random splits by image with fixed sizes of each class and part.

    ``held`` has the number of images of each class, for each group. A part that takes n of N images
    gets all m of a group with probability ∏ (n - k) / (N - k), k < m, independently for each class.
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
    return Leak(groups, images, sum(each[2] for each in sizes.values()))


def _all_within(part: int, whole: int, drawn: int) -> float:
    return prod(max(part - k, 0) / (whole - k) for k in range(drawn))


def _sizes(
    scan: Scan,
    members: Mapping[str, list[int]],
    several: Mapping[str, list[int]],
    ratios: Sequence[float],
) -> Finding:
    images = sum(map(len, members.values()))
    text = f"{len(members)} groups for {images} images; "
    text += counted(len(several), "{n} [has|have] more than one image.")
    if several:
        held = [Counter(scan.cases[i].label for i in cases) for cases in members.values()]
        leak = expected_leak(held, ratios)
        digits = 0 if leak.groups >= 20 else 1
        shares = ":".join(f"{10 * ratio:g}" for ratio in ratios)
        text += (
            f" A random {shares} split by image would leak: on average {leak.groups:.{digits}f} "
            f"groups would be in several parts, and {leak.images:.{digits}f} of {leak.tested} "
            "test images would share their group with a training image."
        )
    largest = sorted(several.values(), key=len, reverse=True)
    return finding("groups", text, sets=largest[:6])


def unused_groups(scan: Scan) -> Iterator[Finding]:
    """Signs of patients or lesions in a source whose groups are not used."""
    if scan.grouped:
        return
    usable = scan.usable()
    found = {}
    for column, cells in scan.spare.items():
        if GROUP_WORDS.search(column.lower()) and not _attribute(column):
            values = [cells[i] for i in usable if cells[i]]
            if 1 < len(set(values)) < len(values):
                found[column] = len(set(values)), len(values)
    if not found:
        yield from _by_names(scan, usable)
        return
    column = min(found, key=lambda name: (not PERSON.search(name.lower()), -found[name][0]))
    different, images = found[column]
    others = [repr(name) for name in found if name != column]
    also = f" So might be {' and '.join(others)}." if others else ""
    yield finding(
        "group_hint",
        f"Column {column!r} has {different} values for {images} images but is not used as the "
        f"group: a split by image would leak.{also}",
        names=[column],
        severity="warning",
        remedy=f"Use it with --group-column {shlex.quote(column)}.",
    )


def _attribute(column: str) -> bool:
    """Whether a name such as ``PatientSex`` or ``age_of_patient`` is that of an attribute.

    >>> _attribute("PatientSex"), _attribute("patient_image_id"), _attribute("lesionsite")
    (True, False, True)
    """
    words = re.findall("[A-Z]?[a-z]+|[A-Z]+", column)
    return any(GROUP_WORDS.sub("", word.lower()) in ATTRIBUTES for word in words)


def _by_names(scan: Scan, usable: Sequence[int]) -> Iterator[Finding]:
    """Groups suggested by folders below class folders, or by names such as ``P012_01.png``."""
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
    for found, how in ((folders, "folders below the class folders"), (series, "file names")):
        several = {name: cases for name, cases in found.items() if len(cases) > 1}
        covered = sum(map(len, several.values()))
        # Names such as "nevus_001" number the images of a class: few and large "groups".
        largest = max(map(len, found.values()), default=0)
        if 2 * covered >= len(usable) and len(found) > 3 * classes and largest <= len(usable) / 5:
            yield finding(
                "group_hint",
                f"There is no group column, but {how} suggest {len(several)} groups of several "
                f"images ({shorten(list(several))}).",
                sets=list(several.values())[:6],
            )
            return
