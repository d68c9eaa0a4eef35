"""Find copies, and write a cleaned manifest without what the doctor found."""

import csv
import io
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.text import counted
from lmd.data.manifest import common_root, written_path
from lmd.data.scan import Case, Finding, Scan, Severity, finding
from lmd.data.table import PARTS
from lmd.doctor.classes import same_name
from lmd.doctor.look import Look
from lmd.doctor.similar import clusters, near_clusters

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


USED = ("image", "label", "group", "split")  # columns of the written file
# Of copies in several parts, the one in the first of these is kept: the test part stays as it is.
STAYS = {"test": 0, "validation": 1, "train": 2, "": 3}


@dataclass(frozen=True)
class Change:
    """One image that was removed or changed, and why."""

    name: str
    what: str
    why: str


@dataclass(frozen=True)
class Cleaned:
    """The cases that are kept, and what was changed; written paths are relative to ``root``.

    ``spare`` are the cells of the columns that lmd does not use, one for each case.
    """

    cases: list[Case]
    removed: list[Change]
    changed: list[Change]
    root: Path
    grouped: bool
    split: bool
    spare: dict[str, list[str]]

    def write(self, path: Path) -> None:
        """Write a manifest: image, label, group and split if there are any, and what was spare."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        own = ["image", "label"] + ["group"] * self.grouped + ["split"] * self.split
        writer.writerow([*own, *self.spare])
        sizes = Counter(case.group for case in self.cases)
        for i, case in enumerate(self.cases):
            assert case.path is not None
            row = [written_path(case.path, self.root), case.label]
            # An empty cell makes the image its own group.
            alone = case.group == f"image {case.name}" and sizes[case.group] == 1
            group = "" if alone else case.group
            row += [group] * self.grouped + [case.part] * self.split
            writer.writerow(row + [cells[i] for cells in self.spare.values()])
        atomic_write(path, text.getvalue().encode(), parents=True)

    def command(self, path: Path) -> str:
        """The command that trains on the manifest."""
        return shlex.join(["lmd", "train", str(path), "--root", str(self.root)])


def clean(
    scan: Scan,
    looks: Sequence[Look],
    exact: Sets,
    near: Sets,
    ratios: Sequence[float],
) -> Cleaned:
    """Clean a data set by the rules of ``docs/doctor.md``, in their order."""
    if scan.root is None:
        raise LmdError(
            f"--fix writes a manifest of image files, but {scan.source} ({scan.kind}) has none: "
            "remove the images listed by --json from the arrays"
        )
    unread = sum("needs pydicom" in look.reason for look in looks)
    if unread:
        raise LmdError(
            f"--fix would remove {unread} DICOM images, because they cannot be read without "
            "pydicom: install it with pip install 'lmd[dicom]', and repeat the command"
        )
    work = _Work(scan, looks)
    work.drop_faulty()
    work.join_names()
    work.drop_copies(exact)
    work.join_near(near)
    work.move_groups()
    work.drop_small(ratios)
    kept = [work.cases[i] for i in sorted(work.cases)]
    if not kept:
        raise LmdError(f"--fix would remove every image of {scan.source}: none can be used")
    grouped = any(case.group for case in kept)
    root = common_root(scan.root, [case.path for case in kept if case.path is not None])
    spare = {
        name: [cells[i] for i in sorted(work.cases)]
        for name, cells in scan.spare.items()
        if name.casefold() not in USED
    }
    return Cleaned(kept, work.removed, work.changed, root, grouped, scan.split, spare)


class _Work:
    """The cases that remain, by index, while the rules are applied one after another."""

    def __init__(self, scan: Scan, looks: Sequence[Look]) -> None:
        self.scan, self.looks = scan, looks
        self.cases = dict(enumerate(scan.cases))
        self.removed: list[Change] = []
        self.changed: list[Change] = []
        self.stands_for: dict[int, int] = {}

    def drop(self, i: int, why: str) -> None:
        case = self.cases.pop(i)
        self.removed.append(Change(case.place, "removed", why))

    def drop_faulty(self) -> None:
        for i, case in list(self.cases.items()):
            if case.fault:
                self.drop(i, case.reason)
            elif "one_colour" in self.looks[i].oddities:
                self.drop(i, "blank image")
            elif any(c == "\\" or category(c) == "Cc" for c in case.name):
                self.drop(i, "a manifest cannot contain a path with backslash or control character")

    def join_names(self) -> None:
        sizes = Counter(case.label for case in self.cases.values())
        best: dict[str, str] = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            best.setdefault(same_name(name), name.strip())
        for i, case in self.cases.items():
            label = best[same_name(case.label)]
            if label != case.label:
                self.cases[i] = replace(case, label=label)
                self.changed.append(Change(case.name, f"class {label!r}", f"was {case.label!r}"))

    def drop_copies(self, exact: Sets) -> None:
        for same in exact:
            left = [i for i in same if i in self.cases]
            if len({self.cases[i].label for i in left}) > 1:
                for i in left:
                    self.drop(i, "the same image has another label elsewhere")
                continue
            left.sort(key=lambda i: (STAYS[self.cases[i].part], i))
            for i in left[1:]:
                self.drop(i, f"the same image as {self.cases[left[0]].name}")
                self.stands_for[i] = left[0]

    def join_near(self, near: Sets) -> None:
        """Merge groups that share near-copies, so that a split keeps them together."""
        by_group: dict[str, list[int]] = defaultdict(list)
        for i, case in self.cases.items():
            by_group[case.group or f"image {case.name}"].append(i)
        pairs: list[tuple[int, int]] = []
        for same in near:
            present = (self.stands_for.get(i, i) for i in same)
            pairs += pairwise(i for i in present if i in self.cases)
        involved = {i for pair in pairs for i in pair}
        for cases in by_group.values():
            if involved & set(cases):
                pairs += pairwise(cases)
        for joined in clusters(pairs):
            first = self.cases[joined[0]]
            group = first.group or f"like {first.name}"
            for i in joined:
                case = self.cases[i]
                if case.group != group:
                    self.cases[i] = replace(case, group=group)
                    if case is not first:
                        why = f"looks like {first.name}, or shares a group with such an image"
                        self.changed.append(Change(case.name, f"group {group!r}", why))

    def move_groups(self) -> None:
        if not self.scan.split:
            return
        places: dict[str, Counter[str]] = defaultdict(Counter)
        for case in self.cases.values():
            if case.group:
                places[case.group][case.part] += 1
        for i, case in self.cases.items():
            if case.group:
                found = places[case.group]
                best = max(reversed(PARTS), key=lambda part: found[part])  # test if equal
                if case.part != best:
                    self.cases[i] = replace(case, part=best)
                    why = f"most of group {case.group!r} is there; was in {case.part}"
                    self.changed.append(Change(case.name, f"moved to {best}", why))

    def drop_small(self, ratios: Sequence[float]) -> None:
        """Remove classes that training would refuse."""
        needed = sum(ratio > 0 for ratio in ratios)
        units = {(case.label, case.group or i) for i, case in self.cases.items()}
        held = Counter(label for label, _ in units)
        trained = {case.label for case in self.cases.values() if case.part == "train"}
        for i, case in list(self.cases.items()):
            if self.scan.split and case.label not in trained:
                self.drop(i, f"class {case.label!r} has no training image left")
            elif not self.scan.split and held[case.label] < needed:
                left = f"only {held[case.label]} images or groups left"
                self.drop(i, f"class {case.label!r} has {left}, too few for {needed} parts")
