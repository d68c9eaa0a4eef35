"""Every image that a source names or holds, however broken the source is."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from lmd.base.text import counted
from lmd.data.doctor.findings import Case, Finding, finding
from lmd.data.table import Table

MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class Columns:
    """How a manifest is to be read, as in ``lmd.data.sources.open_table``."""

    image: str | None = None
    label: str | None = None
    group: str | None = None
    split: str | None = None
    root: Path | None = None
    allow_outside: bool = False

    def options(self) -> dict[str, str | Path | bool | None]:
        """The keywords of ``open_table``."""
        return {
            "image_column": self.image,
            "label_column": self.label,
            "group_column": self.group,
            "split_column": self.split,
            "root": self.root,
            "allow_outside": self.allow_outside,
        }


@dataclass
class Scan:
    """What was found: ``cases`` one for each image (or line), ``findings`` what was wrong there.

    ``reads`` decode those images that are no files; ``spare`` are columns that were not used, with
    their cells in the order of ``cases``.
    """

    source: str
    kind: str
    root: Path | None = None
    grouped: bool = False
    split: bool = False
    cases: list[Case] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    reads: list[Callable[[], NDArray[np.uint8]]] | None = None
    spare: dict[str, list[str]] = field(default_factory=dict)

    def usable(self) -> list[int]:
        """Numbers of the cases that nothing bars from use."""
        return [i for i, case in enumerate(self.cases) if not case.fault]


def scan_table(table: Table) -> Scan:
    """A table that the ordinary reader has opened."""

    def reader(i: int) -> Callable[[], NDArray[np.uint8]]:
        return lambda: table.read(i)

    names = [table.classes[label] for label in table.labels.tolist()]
    groups = [""] * len(table) if table.groups is None else table.groups.tolist()
    parts = [""] * len(table) if table.parts is None else table.parts.tolist()
    return Scan(
        source=table.source or table.kind,
        kind=table.kind,
        grouped=table.groups is not None,
        split=table.parts is not None,
        cases=[
            Case(*values) for values in zip(table.ids.tolist(), names, groups, parts, strict=True)
        ],
        reads=[reader(i) for i in range(len(table))],
    )


def looks_like_image(path: Path) -> bool:
    """Whether a file begins like an image, whatever its name says."""
    try:
        with path.open("rb") as file:
            start = file.read(132)
    except OSError:
        return False
    riff = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return start.startswith(MAGIC) or riff or start[128:] == b"DICM"


def spelt(path: Path | str) -> str:
    """A path with plain slashes; bytes that are no UTF-8 are shown as �."""
    return os.fsencode(PurePath(path).as_posix()).decode("utf-8", "replace")


def barred(scan: Scan, kind: str, text: str) -> None:
    """Add the finding for all cases that have this fault; ``text`` is for ``counted``.

    Nothing is added where no case has it.
    """
    cases = [i for i, case in enumerate(scan.cases) if case.fault == kind]
    if cases:
        scan.findings.append(finding(kind, counted(len(cases), text), cases=cases))
