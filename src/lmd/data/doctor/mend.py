"""A cleaned manifest: what is taken out, joined or moved, by rules that are written down."""

import csv
import io
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.data.doctor.classes import same_name
from lmd.data.doctor.findings import Case
from lmd.data.doctor.look import Look
from lmd.data.doctor.scan import Scan
from lmd.data.doctor.similar import clusters
from lmd.data.table import PARTS

# Of copies in several parts the one in the rarest part stays, so that what is measured stays too.
STAYS = {"test": 0, "validation": 1, "train": 2, "": 3}

WHY = {
    "missing_file": "not on disk",
    "outside_root": "its path leaves the root",
    "ambiguous_file": "its name may mean several files",
    "unlabelled": "without a label",
    "unknown_split": "in no known part",
    "repeated_row": "repeats another line",
    "conflicting_rows": "contradicted by another line",
    "stray_image": "in no class folder",
    "ignored_file": "its name does not say that it is an image",
    "empty_file": "empty",
    "truncated": "cut short",
    "unreadable": "unreadable",
    "huge": "too large to decode",
}


@dataclass(frozen=True)
class Change:
    """One image that was taken out, or changed, and why."""

    name: str
    what: str
    why: str


@dataclass(frozen=True)
class Mended:
    """The cases that stay, with ``removed`` and ``changed``; paths are written below ``root``."""

    cases: tuple[Case, ...]
    removed: tuple[Change, ...]
    changed: tuple[Change, ...]
    root: Path
    grouped: bool
    split: bool

    def write(self, path: Path) -> None:
        """A manifest with the columns image, label, and group and split where there are such."""
        columns = ["image", "label", *["group"] * self.grouped, *["split"] * self.split]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for case in self.cases:
            assert case.path is not None
            row = [_written(case.path, self.root), case.label]
            # An image without a group is one by itself; an empty cell says the same.
            group = "" if case.group == f"image {case.name}" else case.group
            writer.writerow(row + [group] * self.grouped + [case.part] * self.split)
        atomic_write(path, text.getvalue().encode())

    def command(self, path: Path) -> str:
        """How to train with the manifest."""
        return f"lmd train {_quoted(path)} --root {_quoted(self.root)}"


def mend(
    scan: Scan,
    looks: Sequence[Look | None],
    exact: Sequence[Sequence[int]],
    near: Sequence[Sequence[int]],
    ratios: Sequence[float],
) -> Mended:
    """The images of a scan that can be trained with, in this order of rules.

    Out: what has a fault, and images of one colour. Names of one class that differ in case or
    blanks become the commonest. Of exact copies one stays (test before validation before
    training), none if their labels differ. Near-copies get one group. A group in two parts goes to
    the part that has most of it (test, if equal). Out: classes that are too small to split.
    """
    if scan.root is None:
        raise LmdError(
            f"--fix writes a manifest of image files, but {scan.source} ({scan.kind}) has none: "
            "leave out the images that --json lists, and save the arrays anew"
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
        raise LmdError(f"--fix would leave nothing of {scan.source}: no image can be used")
    grouped = any(case.group for case in kept)
    root = _root(scan.root, [case.path for case in kept if case.path is not None])
    return Mended(tuple(kept), tuple(work.removed), tuple(work.changed), root, grouped, scan.split)


class _Work:
    """The cases that are left, by number, while rules are applied one after another."""

    def __init__(self, scan: Scan, looks: Sequence[Look | None]) -> None:
        self.scan, self.looks = scan, looks
        self.cases = dict(enumerate(scan.cases))
        self.removed: list[Change] = []
        self.changed: list[Change] = []
        self.stands_for: dict[int, int] = {}

    def drop(self, i: int, why: str) -> None:
        case = self.cases.pop(i)
        line = f"line {case.line}: " if case.line else ""
        self.removed.append(Change(f"{line}{case.name}", "taken out", why))

    def drop_faulty(self) -> None:
        for i, case in list(self.cases.items()):
            look = self.looks[i]
            if case.fault:
                reason = f": {look.reason}" if look is not None and look.reason else ""
                self.drop(i, f"{WHY[case.fault]}{reason}")
            elif look is not None and "one_colour" in dict(look.oddities):
                self.drop(i, "of one colour all over")
            elif case.path is not None and not _can_be_written(case.path):
                self.drop(i, "its path holds a backslash or is not UTF-8: a manifest cannot say it")

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

    def drop_copies(self, exact: Sequence[Sequence[int]]) -> None:
        for same in exact:
            left = [i for i in same if i in self.cases]
            if len({self.cases[i].label for i in left}) > 1:
                for i in left:
                    self.drop(i, "the same image is there under another label")
                continue
            left.sort(key=lambda i: (STAYS[self.cases[i].part], i))
            for i in left[1:]:
                self.drop(i, f"the same image as {self.cases[left[0]].name}")
                self.stands_for[i] = left[0]

    def join_near(self, near: Sequence[Sequence[int]]) -> None:
        """Groups that share near-copies are one group, as far as a split is concerned."""
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
                        why = f"it looks the same as {first.name}, or its group does"
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
                best = max(
                    reversed(PARTS), key=lambda part: found[part]
                )  # of equals the last: test
                if case.part != best:
                    self.cases[i] = replace(case, part=best)
                    why = f"most of group {case.group!r} is there"
                    self.changed.append(
                        Change(case.name, f"moved to {best}", f"{why}; was in {case.part}")
                    )

    def drop_small(self, ratios: Sequence[float]) -> None:
        """Classes that training would refuse; groups of several classes make this repeat."""
        needed = sum(ratio > 0 for ratio in ratios)
        held: dict[str, set[str]] = defaultdict(set)
        trained = Counter(case.label for case in self.cases.values() if case.part == "train")
        for i, case in self.cases.items():
            held[case.label].add(case.group or f"image {i}")
        for i, case in list(self.cases.items()):
            if self.scan.split and not trained[case.label]:
                self.drop(i, f"class {case.label!r} is left without a training image")
            elif not self.scan.split and len(held[case.label]) < needed:
                what = f"class {case.label!r} is left with {len(held[case.label])} images or groups"
                self.drop(i, f"{what}, too few for {needed} parts")


def _root(root: Path, paths: Sequence[Path]) -> Path:
    """The data's root, or the folder above it that holds all images."""
    if all(path.is_relative_to(root) for path in paths):
        return root
    return Path(os.path.commonpath([root.absolute(), *(path.absolute().parent for path in paths)]))


def _can_be_written(path: Path) -> bool:
    text = str(path)
    return "\\" not in text and text.isprintable()  # bytes that are no UTF-8 are not printable


def _written(path: Path, root: Path) -> str:
    inside = path if path.is_relative_to(root) else path.absolute()
    name = inside.relative_to(root).as_posix()
    # The reader of manifests takes blanks off the ends of cells.
    return f"./{name}" if name != name.lstrip() else name


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
