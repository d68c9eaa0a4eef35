"""List all images of a source and what is wrong with it, however broken it is."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import clipped, counted, shorten
from lmd.data.table import ArrayImages, FileImages, Table

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
TEXTS = tomllib.loads((resources.files(__package__) / "findings.toml").read_text("utf-8"))
# The severity, title and remedy that findings of a kind usually have.
KINDS: dict[str, tuple[Severity, str, str]] = {
    kind: (severity, *texts) for severity in SEVERITIES for kind, texts in TEXTS[severity].items()
}
FAULTS: dict[str, str] = TEXTS["fault"]  # why an image cannot be used, by the kind of finding
# Findings whose names, beside the cases, are left out.
NAMED = frozenset({"empty_class_folder", "unlisted_folder", "special_file"})
# Errors that --skip-bad ignores.
SKIPPABLE = NAMED | {"missing_file", "unlabelled", "stray_image"}
# Kinds with files or lines as names; the text of other kinds contains the names already.
LISTS = NAMED | {"unlisted_file", "ragged_row"}
PART_NAMES = (
    dict.fromkeys(("train", "training"), "train")
    | dict.fromkeys(("val", "valid", "validation"), "validation")
    | dict.fromkeys(("test", "testing"), "test")
)


@dataclass(frozen=True)
class Finding:
    """One finding: ``cases`` are indices of the affected images, ``sets`` those that belong
    together (copies of one image, images of one group), ``names`` files, classes or columns.
    """

    kind: str
    severity: Severity
    text: str
    remedy: str
    cases: tuple[int, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        kind: str,
        text: str,
        *,
        cases: Iterable[int] = (),
        sets: Iterable[Sequence[int]] = (),
        names: Iterable[str] = (),
        severity: Severity | None = None,
        remedy: str | None = None,
    ) -> Self:
        """Return a finding, by default with the usual severity and remedy of its kind."""
        usual, _, advice = KINDS[kind]
        together = tuple(map(tuple, sets))
        concerned = tuple(cases) or tuple(i for same in together for i in same)
        advice = advice if remedy is None else remedy
        return cls(kind, severity or usual, text, advice, concerned, together, tuple(names))


def part_name(word: str) -> str | None:
    """Return the part that a word in a source means, or ``None``."""
    return PART_NAMES.get(word.strip().lower())


def class_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names into the order of their index: numeric if all are numbers, else by text."""
    distinct = set(names)
    numbers = all(name.isascii() and name.isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numbers else 0, name)))


def require_classes(labels: Iterable[str], source: object) -> None:
    """Refuse a source with a single class."""
    names = set(labels)
    if len(names) == 1:
        raise LmdError(
            f"{source} has only one class ({names.pop()!r}): provide images of at least two classes"
        )


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
    or the ``original`` table have pixels that are not in files; ``spare`` are unused columns of a
    manifest; ``others`` are files without the name of an image.
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
    original: Table | None = None
    spare: dict[str, list[str]] = field(default_factory=dict)
    others: list[Case] = field(default_factory=list)

    def usable(self) -> list[int]:
        """Return the indices of the cases without a fault."""
        return [i for i, case in enumerate(self.cases) if not case.fault]

    def report(
        self,
        kind: str,
        text: str,
        remedy: str | None = None,
        *,
        names: Sequence[str] = (),
        sets: Sequence[Sequence[int]] = (),
    ) -> None:
        """Add a finding about names, sets or all cases with this fault, if any; see ``counted``."""
        cases = [i for i, case in enumerate(self.cases) if case.fault == kind and not sets]
        if count := len(names or sets or cases):
            text = counted(count, text)
            finding = Finding.of(kind, text, cases=cases, sets=sets, names=names, remedy=remedy)
            self.findings.append(finding)

    def read(self, i: int) -> NDArray[np.uint8] | None:
        """Return RGB pixels ``(H, W, 3)`` of a case that is not a file."""
        images = self.original or self.images
        return None if images is None else images.read(i)

    def table(self, *, skip_bad: bool = False) -> Table:
        """Return the table of all images, or raise the first finding that is an error.

        ``skip_bad`` leaves out missing and unlabelled images, images outside any class folder,
        empty class folders, folders that cannot be listed, and pipes, sockets and devices;
        ``Table.skipped`` lists them.
        """
        for finding in self.findings:
            if finding.severity == "error" and not (skip_bad and finding.kind in SKIPPABLE):
                raise LmdError(self._refusal(finding))
        if self.original is not None:
            return self.original
        cases = [self.cases[i] for i in self.usable()]
        if not cases:
            raise LmdError(f"{self.source}: none of its images can be used")
        labels = [case.label for case in cases]
        require_classes(labels, self.source)
        classes = self.classes or class_order(labels)
        index = {name: i for i, name in enumerate(classes)}
        files = tuple(case.path for case in cases if case.path is not None)
        skipped = [f"{case.place}: {case.reason}" for case in self.cases if case.fault]
        named = (finding for finding in self.findings if finding.kind in NAMED)
        skipped += [f"{name}: {FAULTS[item.kind]}" for item in named for name in item.names]
        return Table(
            ids=np.array([case.name for case in cases], dtype=np.str_),
            labels=np.array([index[label] for label in labels], dtype=np.int64),
            classes=classes,
            images=self.images or FileImages(files, self.root or Path()),
            rows=np.arange(len(cases), dtype=np.int64),
            groups=np.array([c.group for c in cases], dtype=np.str_) if self.grouped else None,
            parts=np.array([c.part for c in cases], dtype=np.str_) if self.split else None,
            source=self.source,
            kind=self.kind,
            skipped=tuple(skipped),
        )

    def _refusal(self, finding: Finding) -> str:
        """Return one sentence: what is wrong, examples, and what to do."""
        cases = (self.cases[i] for i in finding.cases)
        examples = [f"{c.place}: {c.detail}" if c.detail else c.place for c in cases]
        if finding.kind in LISTS:
            examples += finding.names
        listed = f" ({shorten(examples)})" if examples else ""
        remedy = f": {_clause(finding.remedy)}" if finding.remedy else ""
        return f"{self.source}: {_clause(finding.text)}{listed}{remedy}"


def _clause(sentence: str) -> str:
    """Return a sentence without its capital letter and full stop."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def scan_table(table: Table) -> Scan:
    """Return the scan of a table."""
    empty = [""] * len(table)
    groups = empty if table.groups is None else table.groups.tolist()
    parts = empty if table.parts is None else table.parts.tolist()
    rows = zip(table.ids.tolist(), table.label_names().tolist(), groups, parts, strict=True)
    return Scan(
        source=table.source or table.kind,
        kind=table.kind,
        grouped=table.groups is not None,
        split=table.parts is not None,
        cases=[Case(*row) for row in rows],
        original=table,
    )
