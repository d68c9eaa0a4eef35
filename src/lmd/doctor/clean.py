"""Find copies of images, and write a cleaned manifest without what the doctor found."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.text import counted, csv_text
from lmd.data.checks import same_name
from lmd.data.images import Pixels
from lmd.data.manifest import COLUMNS, common_root, written_path
from lmd.data.scan import Finding, Scan, Severity
from lmd.data.table import PARTS
from lmd.doctor.look import Look

Sets = list[tuple[int, ...]]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
# Chosen on HAM10000, with 10 015 similar photographs. Of 50 million pairs of different lesions, one
# passes both limits (a photograph filed under two lesions). Of 100 copies that were saved as JPEG
# of quality 40, halved, brightened or squeezed to a square, 99 pass.
MAX_DISTANCE = 6
MIN_CORRELATION = 0.99
BANDS, BAND_BITS = 4, 16
CHUNK, BATCH = 2_000_000, 2048
ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)
# Of copies in several parts, the one in the first of these is kept: the test part stays as it is.
STAYS = {"test": 0, "validation": 1, "train": 2, "": 3}


def find_copies(scan: Scan, looks: Sequence[Look]) -> tuple[Sets, Sets]:
    """Return sets of usable images with equal pixels, and of images that look alike.

    Blank images do not count. Images that look alike are in different groups, and the first image
    of a set with equal pixels stands for the others.
    """
    same: dict[str, list[int]] = defaultdict(list)
    for i in scan.usable():
        if looks[i].pixels and "one_colour" not in looks[i].oddities:
            same[looks[i].pixels].append(i)
    exact = [tuple(cases) for cases in same.values() if len(cases) > 1]
    spare = {i for cases in exact for i in cases[1:]}
    rows = [i for i in scan.usable() if looks[i].miniature is not None and i not in spare]
    if not rows:
        return exact, []
    hashes = np.array([looks[i].hash for i in rows], dtype=np.uint64)
    miniatures = np.array([looks[i].miniature for i in rows], dtype=np.uint8)
    names = [scan.cases[i].group for i in rows]
    groups = np.unique(names, return_inverse=True)[1] if scan.grouped else None
    near = near_clusters(hashes, miniatures, groups)
    return exact, [tuple(rows[i] for i in cases) for cases in near]


def near_clusters(
    hashes: NDArray[np.uint64], miniatures: Pixels, groups: NDArray[np.int64] | None = None
) -> Sets:
    """Return sets of images with nearly equal hashes ``(N,)`` and miniatures ``(N, 32, 32)``.

    Images of one of the ``groups (N,)`` are not compared. A set may be a chain: its first and last
    image need not be nearly equal.
    """
    flat = miniatures.reshape(len(miniatures), -1)
    owner = np.arange(len(hashes))
    for first, second in _candidates(hashes):
        differing = (hashes[first] ^ hashes[second]).view(np.uint8).reshape(-1, 8)
        close = ONES[differing].sum(axis=1) <= MAX_DISTANCE
        if groups is not None:
            close &= groups[first] != groups[second]
        pairs = np.stack([first[close], second[close]])
        for start in range(0, pairs.shape[1], BATCH):
            i, j = pairs[:, start : start + BATCH]
            # Pairs in one set are not compared again, so a video of equal frames costs little.
            apart = owner[i] != owner[j]
            i, j = i[apart], j[apart]
            high = np.einsum("pd,pd->p", _standard(flat[i]), _standard(flat[j])) >= MIN_CORRELATION
            for a, b in zip(i[high].tolist(), j[high].tolist(), strict=True):
                _unite(owner, a, b)
    return _sets(owner)


def clusters(pairs: Sequence[tuple[int, int]]) -> Sets:
    """Return the connected sets of numbers, each ascending, ordered by their first members."""
    owner = np.arange(1 + max(chain.from_iterable(pairs), default=0))
    for i, j in pairs:
        _unite(owner, i, j)
    return _sets(owner)


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[Pairs]:
    """Yield pairs that differ in at most one bit of some band, so all within distance 7."""
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1)
    # Bits that hardly vary are spread evenly: a band made of them would match everything.
    by_spread = np.argsort(bits.var(axis=0), kind="stable")
    for band in range(BANDS):
        packed = np.packbits(bits[:, by_spread[band::BANDS]], axis=1).astype(np.int64)
        codes = 256 * packed[:, 0] + packed[:, 1]
        order = np.argsort(codes, kind="stable")
        ranked = codes[order]
        for flip in (0, *(1 << bit for bit in range(BAND_BITS))):
            low = np.searchsorted(ranked, codes ^ flip, "left")
            high = np.searchsorted(ranked, codes ^ flip, "right")
            yield from _ranges(order, low, high)


def _ranges(
    order: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
) -> Iterator[Pairs]:
    """Yield pairs of i and each larger ``order[low[i]:high[i]]``, in chunks that fit in memory."""
    sizes = high - low
    totals = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        base = totals[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(totals, base + CHUNK, "right")))
        rows, sizes_here = slice(start, stop), sizes[start:stop]
        first = np.repeat(np.arange(start, stop), sizes_here)
        begins = np.repeat(low[rows] - (totals[rows] - sizes_here - base), sizes_here)
        second = order[begins + np.arange(len(first))]
        upward = first < second
        yield first[upward], second[upward]
        start = stop


def _standard(rows: Pixels) -> NDArray[np.float64]:
    """Return rows with mean 0 and length 1; ``MIN_SPREAD`` excludes constant rows."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return unit


def _unite(owner: NDArray[np.int64], i: int, j: int) -> None:
    """Join two sets; ``owner (N,)`` is the first member of the set of each image."""
    a, b = sorted((owner[i], owner[j]))
    if a != b:
        owner[owner == b] = a


def _sets(owner: NDArray[np.int64]) -> Sets:
    """Return all sets with several members, in ascending order."""
    members: dict[int, list[int]] = {}
    for i, first in enumerate(owner.tolist()):
        members.setdefault(first, []).append(i)
    return [tuple(rows) for rows in members.values() if len(rows) > 1]


def check_copies(scan: Scan, looks: Sequence[Look], exact: Sets, near: Sets) -> Iterator[Finding]:
    """Yield findings about copies; each set is reported once, in the most serious finding."""
    conflicts, torn, plain = _sort(scan, exact)
    files = sum(len({looks[i].content for i in same}) == 1 for same in plain)
    how = f"({files} as identical files, {len(plain) - files} as equal pixels in different files)"
    again = "{n} [image appears|images appear]"
    alike = "{n} [set|sets] of images that look the same"
    similar, spread, others = _sort(scan, near)
    apart = " are in different groups" if scan.grouped else ""
    for kind, text, sets in (
        ("conflicting_duplicates", f"{again} with different labels", conflicts),
        ("duplicate_in_parts", "{n} [image is|images are] in several parts", torn),
        ("duplicate", f"{again} more than once {how}", plain),
        ("near_duplicate_labels", f"{alike} have different labels", similar),
        ("near_duplicate_in_parts", f"{alike} are in several parts", spread),
        ("near_duplicate", f"{alike}{apart}", others),
    ):
        severity: Severity | None = "note" if kind == "near_duplicate" and scan.split else None
        if sets:
            yield Finding.of(kind, f"{counted(len(sets), text)}.", sets=sets, severity=severity)


def _sort(scan: Scan, sets: Sets) -> tuple[Sets, Sets, Sets]:
    """Return sets with different labels, other sets in different parts, and the rest."""
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


class Change(NamedTuple):
    """One image that was removed or changed, and why."""

    name: str
    what: str
    why: str


class Cleaned:
    """A data set without what is wrong with it, by the rules of ``docs/doctor.md`` in their order.

    ``cases`` remain, by index; ``root`` is the folder that written paths are relative to.
    """

    def __init__(
        self, scan: Scan, looks: Sequence[Look], exact: Sets, near: Sets, ratios: Sequence[float]
    ) -> None:
        if scan.root is None:
            raise LmdError(
                f"--fix writes a manifest of image files, but {scan.source} ({scan.kind}) has "
                "none: remove the images listed by --json from the arrays"
            )
        unread = sum("needs pydicom" in look.reason for look in looks)
        if unread:
            raise LmdError(
                f"--fix would remove {unread} DICOM images, because they cannot be read without "
                "pydicom: install it with pip install 'lmd[dicom]', and repeat the command"
            )
        self.scan = scan
        self.cases = dict(enumerate(scan.cases))
        self.removed: list[Change] = []
        self.changed: list[Change] = []
        self._drop_faulty(looks)
        self._join_names()
        self._join_near(near, self._drop_copies(exact))
        self._move_groups()
        self._drop_small(ratios)
        if not self.cases:
            raise LmdError(f"--fix would remove every image of {scan.source}: none can be used")
        paths = [case.path for case in self.cases.values() if case.path is not None]
        self.root = common_root(scan.root, paths)

    def write(self, path: Path) -> None:
        """Write a manifest: image, label, group and split if there are any, and unused columns."""
        sizes = Counter(case.group for case in self.cases.values())
        grouped, split = any(sizes), self.scan.split
        spare = {k: v for k, v in self.scan.spare.items() if k.casefold() not in COLUMNS}
        header = ["image", "label"] + ["group"] * grouped + ["split"] * split
        rows = []
        for i, case in self.cases.items():
            assert case.path is not None
            # An empty cell makes the image its own group.
            alone = case.group == f"image {case.name}" and sizes[case.group] == 1
            row = [written_path(case.path, self.root), case.label]
            row += ["" if alone else case.group] * grouped + [case.part] * split
            rows.append(row + [cells[i] for cells in spare.values()])
        text = csv_text([*header, *spare], rows, exact=True)
        atomic_write(path, text.encode(), parents=True)

    def command(self, path: Path) -> str:
        """Return the command that trains on the manifest."""
        return shlex.join(["lmd", "train", str(path), "--root", str(self.root)])

    def _drop(self, i: int, why: str) -> None:
        self.removed.append(Change(self.cases.pop(i).place, "removed", why))

    def _change(self, i: int, what: str, why: str, **values: str) -> None:
        self.changed.append(Change(self.cases[i].name, what, why))
        self.cases[i] = replace(self.cases[i], **values)  # type: ignore[arg-type]

    def _drop_faulty(self, looks: Sequence[Look]) -> None:
        for i, case in list(self.cases.items()):
            if case.fault:
                self._drop(i, case.reason)
            elif "one_colour" in looks[i].oddities:
                self._drop(i, "blank image")
            elif any(c == "\\" or category(c) == "Cc" for c in case.name):
                self._drop(
                    i, "a manifest cannot contain a path with backslash or control character"
                )

    def _join_names(self) -> None:
        sizes = Counter(case.label for case in self.cases.values())
        best: dict[str, str] = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            best.setdefault(same_name(name), name.strip())
        for i, case in self.cases.items():
            label = best[same_name(case.label)]
            if label != case.label:
                self._change(i, f"class {label!r}", f"was {case.label!r}", label=label)

    def _drop_copies(self, exact: Sets) -> dict[int, int]:
        """Keep one of each set of copies; return what stands for those that were removed."""
        stands_for = {}
        for same in exact:
            left = [i for i in same if i in self.cases]
            if len({self.cases[i].label for i in left}) > 1:
                for i in left:
                    self._drop(i, "the same image has another label elsewhere")
                continue
            left.sort(key=lambda i: (STAYS[self.cases[i].part], i))
            for i in left[1:]:
                self._drop(i, f"the same image as {self.cases[left[0]].name}")
                stands_for[i] = left[0]
        return stands_for

    def _join_near(self, near: Sets, stands_for: Mapping[int, int]) -> None:
        """Merge groups that share near-copies, so that a split keeps them together."""
        by_group: dict[str, list[int]] = defaultdict(list)
        for i, case in self.cases.items():
            by_group[case.group or f"image {case.name}"].append(i)
        pairs: list[tuple[int, int]] = []
        for same in near:
            present = (stands_for.get(i, i) for i in same)
            pairs += pairwise(i for i in present if i in self.cases)
        involved = {i for pair in pairs for i in pair}
        for cases in by_group.values():
            if involved & set(cases):
                pairs += pairwise(cases)
        for joined in clusters(pairs):
            first = self.cases[joined[0]]
            group = first.group or f"like {first.name}"
            for i in joined:
                if self.cases[i] is first:
                    self.cases[i] = replace(first, group=group)
                elif self.cases[i].group != group:
                    why = f"looks like {first.name}, or shares a group with such an image"
                    self._change(i, f"group {group!r}", why, group=group)

    def _move_groups(self) -> None:
        if not self.scan.split:
            return
        places: dict[str, Counter[str]] = defaultdict(Counter)
        for case in self.cases.values():
            if case.group:
                places[case.group][case.part] += 1
        for i, case in self.cases.items():
            if case.group:
                best = max(reversed(PARTS), key=places[case.group].__getitem__)  # test if equal
                if case.part != best:
                    why = f"most of group {case.group!r} is there; was in {case.part}"
                    self._change(i, f"moved to {best}", why, part=best)

    def _drop_small(self, ratios: Sequence[float]) -> None:
        """Remove classes that training would refuse."""
        needed = sum(ratio > 0 for ratio in ratios)
        units = {(case.label, case.group or i) for i, case in self.cases.items()}
        held = Counter(label for label, _ in units)
        trained = {case.label for case in self.cases.values() if case.part == "train"}
        for i, case in list(self.cases.items()):
            if self.scan.split and case.label not in trained:
                self._drop(i, f"class {case.label!r} has no training image left")
            elif not self.scan.split and held[case.label] < needed:
                left = f"only {held[case.label]} images or groups left"
                self._drop(i, f"class {case.label!r} has {left}, too few for {needed} parts")
