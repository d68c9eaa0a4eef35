"""List all images of a source and what is wrong with it, however broken it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import clipped, counted, shorten
from lmd.data.findings import LISTS, Finding, finding
from lmd.data.table import ArrayImages, FileImages, Table

PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def part_name(word: str) -> str | None:
    """The part that a word in a source means, or ``None``.

    >>> part_name("Val")
    'validation'
    """
    return PART_NAMES.get(word.strip().lower())


def class_order(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in the order of their index: numeric if all are numbers, else alphabetic.

    >>> class_order(["10", "2", "2"])
    ('2', '10')
    """
    distinct = set(names)
    numbers = all(name.isascii() and name.isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numbers else 0, name)))


def encode(names: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """The index of each name in ``classes``: ``(N,)``."""
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[name] for name in names], dtype=np.int64)


def require_classes(present: Iterable[str], source: object) -> None:
    """An ``LmdError`` if there is only one class."""
    names = sorted(set(present))
    if len(names) == 1:
        raise LmdError(
            f"{source} has only one class ({names[0]!r}): provide images of at least two classes"
        )


# Why an image cannot be used, by the kind of finding that says so.
FAULTS = {
    "missing_file": "not on disk",
    "outside_root": "outside the root",
    "ambiguous_file": "ambiguous name",
    "unlabelled": "no label",
    "unknown_split": "unknown part",
    "repeated_row": "repeats another line",
    "conflicting_rows": "contradicted by another line",
    "stray_image": "outside any class folder",
    "empty_class_folder": "empty class folder",
    "unlisted_folder": "folder cannot be listed",
    "special_file": "not a regular file",
    "ignored_file": "not recognised as an image by its name",
    "encoding": "name is not UTF-8",
    "empty_file": "empty file",
    "truncated": "truncated",
    "unreadable": "unreadable",
    "huge": "too large to decode",
}
# Errors that --skip-bad ignores.
SKIPPABLE = frozenset(
    {
        "missing_file",
        "unlabelled",
        "stray_image",
        "empty_class_folder",
        "unlisted_folder",
        "special_file",
    }
)
# Findings whose names are left out, beside the cases.
NAMED = frozenset({"empty_class_folder", "unlisted_folder", "special_file"})


@dataclass(frozen=True)
class Case:
    """One image of a source; ``fault`` is the kind of finding that makes it unusable.

    ``group`` and ``part`` are empty if the source has none; ``line`` counts from 1, in a manifest;
    ``path`` is ``None`` if there is no file; ``detail`` explains the fault.
    """

    name: str
    label: str
    group: str = ""
    part: str = ""
    path: Path | None = None
    line: int = 0
    fault: str = ""
    detail: str = ""

    @property
    def place(self) -> str:
        """The line of the manifest and the name."""
        line = f"line {self.line}: " if self.line else ""
        return f"{line}{clipped(self.name) or '(no name)'}"

    @property
    def reason(self) -> str:
        """Why the image cannot be used."""
        return f"{FAULTS[self.fault]}{f' ({clipped(self.detail)})' if self.detail else ''}"


@dataclass
class Scan:
    """``cases``: one for each image or line; ``findings``: what is wrong with the source.

    Names are relative to ``root``; ``classes`` is set if the source defines their order; ``images``
    or ``given`` have pixels that are not in files; ``spare`` are unused columns of a manifest;
    ``others`` are files without the name of an image.
    """

    source: str
    kind: str
    root: Path | None = None
    grouped: bool = False
    split: bool = False
    cases: list[Case] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    classes: tuple[str, ...] | None = None
    images: ArrayImages | None = None
    given: Table | None = None
    spare: dict[str, list[str]] = field(default_factory=dict)
    others: list[Case] = field(default_factory=list)

    def usable(self) -> list[int]:
        """Indices of the cases without a fault."""
        return [i for i, case in enumerate(self.cases) if not case.fault]

    def report(self, kind: str, text: str, remedy: str | None = None) -> None:
        """Add a finding for all cases with this fault, if any; for ``text`` see ``counted``."""
        cases = [i for i, case in enumerate(self.cases) if case.fault == kind]
        if cases:
            self.findings.append(
                finding(kind, counted(len(cases), text), cases=cases, remedy=remedy)
            )

    def read(self, i: int) -> NDArray[np.uint8] | None:
        """RGB pixels ``(H, W, 3)`` of a case that is not a file."""
        if self.given is not None:
            return self.given.read(i)
        return None if self.images is None else self.images.read(i)

    def table(self, *, skip_bad: bool = False) -> Table:
        """The table of all images, or an ``LmdError`` for the first finding that is an error.

        ``skip_bad`` leaves out missing and unlabelled images, images outside any class folder,
        empty class folders, folders that cannot be listed, and pipes, sockets and devices;
        ``Table.skipped`` lists them.
        """
        for found in self.findings:
            if found.severity == "error" and not (skip_bad and found.kind in SKIPPABLE):
                raise LmdError(self._refusal(found))
        if self.given is not None:
            return self.given
        cases = [self.cases[i] for i in self.usable()]
        if not cases:
            raise LmdError(f"{self.source}: none of its images can be used")
        labels = [case.label for case in cases]
        require_classes(labels, self.source)
        classes = self.classes or class_order(labels)
        ids = [case.name for case in cases]
        files = [case.path for case in cases if case.path is not None]
        return Table(
            ids=np.array(ids, dtype=np.str_),
            labels=encode(labels, classes),
            classes=classes,
            images=self.images or FileImages(tuple(files), self.root or Path()),
            rows=np.arange(len(cases), dtype=np.int64),
            groups=_strings(case.group for case in cases) if self.grouped else None,
            parts=_strings(case.part for case in cases) if self.split else None,
            source=self.source,
            kind=self.kind,
            skipped=self._skipped(),
        )

    def _refusal(self, found: Finding) -> str:
        """One sentence: what is wrong, examples, and what to do."""
        cases = (self.cases[i] for i in found.cases)
        examples = [f"{c.place}: {c.detail}" if c.detail else c.place for c in cases]
        if found.kind in LISTS:
            examples += found.names
        listed = f" ({shorten(examples)})" if examples else ""
        remedy = f": {_clause(found.remedy)}" if found.remedy else ""
        return f"{self.source}: {_clause(found.text)}{listed}{remedy}"

    def _skipped(self) -> tuple[str, ...]:
        cases = [f"{case.place}: {case.reason}" for case in self.cases if case.fault]
        named = [f for f in self.findings if f.kind in NAMED]
        return (*cases, *(f"{name}: {FAULTS[f.kind]}" for f in named for name in f.names))


def scan_table(table: Table) -> Scan:
    """The scan of a given table."""
    groups = [""] * len(table) if table.groups is None else table.groups.tolist()
    parts = [""] * len(table) if table.parts is None else table.parts.tolist()
    rows = zip(table.ids.tolist(), table.label_names().tolist(), groups, parts, strict=True)
    return Scan(
        source=table.source or table.kind,
        kind=table.kind,
        grouped=table.groups is not None,
        split=table.parts is not None,
        cases=[Case(*row) for row in rows],
        given=table,
    )


def _strings(values: Iterable[str]) -> NDArray[np.str_]:
    return np.array(list(values), dtype=np.str_)


def _clause(sentence: str) -> str:
    """A sentence without its capital letter and full stop."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")
