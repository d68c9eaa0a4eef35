"""Head, medium and tail: which class belongs to which, by a rule that is declared beforehand."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError

GROUPS = ("head", "medium", "tail")

_FORMS = (
    '"thirds" (by rank of training count), "head>1000,tail<180" (thresholds on training counts) '
    'or "head=A,B;medium=C;tail=D" (every class exactly once)'
)
_THRESHOLD = re.compile(r"\s*(head|tail)\s*(>=|<=|>|<)\s*(\d+)\s*")
_LIST = re.compile(r"\s*(head|medium|tail)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Groups:
    """``rule`` as a sentence for the reader, ``assignment (K,)`` of head, medium and tail."""

    rule: str
    assignment: tuple[str, ...]

    def members(self, group: str) -> list[int]:
        """The classes of one group, as indices."""
        return [k for k, name in enumerate(self.assignment) if name == group]


def assign_groups(
    counts: Sequence[int] | NDArray[np.integer[Any]], classes: Sequence[str], rule: str
) -> Groups:
    """Head, medium and tail from training ``counts (K,)`` by ``rule``, a string of the protocol.

    >>> assign_groups([900, 20, 100], ["NV", "DF", "AK"], "thirds").assignment
    ('head', 'tail', 'medium')
    >>> assign_groups([900, 20, 100], ["NV", "DF", "AK"], "head>500,tail<100").assignment
    ('head', 'tail', 'medium')
    >>> assign_groups([900, 20, 100], ["NV", "DF", "AK"], "head=NV;tail=DF,AK").assignment
    ('head', 'tail', 'tail')
    """
    numbers = [int(n) for n in counts]
    if len(numbers) != len(classes):
        raise LmdError(
            f"groups: one training count per class is needed, but there are {len(numbers)} counts "
            f"for {len(classes)} classes"
        )
    if len(numbers) < 2:
        raise LmdError(f"groups: at least two classes are needed, there are {len(numbers)}")
    if rule.strip() == "thirds":
        return _thirds(numbers)
    if _LIST.match(rule):
        return _lists(list(classes), rule)
    if _THRESHOLD.match(rule):
        return _thresholds(numbers, rule)
    raise LmdError(f"groups = {rule!r} is not a rule; write {_FORMS}")


def _thirds(counts: list[int]) -> Groups:
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    names = GROUPS if len(counts) > 2 else ("head", "tail")
    assignment = [""] * len(counts)
    for name, members in zip(names, np.array_split(order, len(names)), strict=True):
        for k in members:
            assignment[k] = name
    return Groups(
        f"{'thirds' if len(names) == 3 else 'halves'} of the classes by rank of training count "
        "(ties in class order; where they do not divide evenly, the more frequent group is larger)",
        tuple(assignment),
    )


def _thresholds(counts: list[int], rule: str) -> Groups:
    # The smallest count that is head and the largest that is tail.
    head: int | None = None
    tail: int | None = None
    for piece in rule.split(","):
        match = _THRESHOLD.fullmatch(piece)
        if match is None:
            raise LmdError(
                f"groups = {rule!r}: {piece.strip()!r} is not a threshold; "
                "write head>NUMBER,tail<NUMBER"
            )
        name, sign, number = match[1], match[2], int(match[3])
        if (name == "head") != sign.startswith(">"):
            raise LmdError(
                f"groups = {rule!r}: head classes are the frequent ones (head>NUMBER) and tail "
                f"classes the rare ones (tail<NUMBER), not {piece.strip()!r}"
            )
        if (head if name == "head" else tail) is not None:
            raise LmdError(f"groups = {rule!r}: {name} has two thresholds; give one")
        if name == "head":
            head = number + (sign == ">")
        else:
            tail = number - (sign == "<")
    if head is None or tail is None:
        missing = "head" if head is None else "tail"
        raise LmdError(f"groups = {rule!r}: no threshold for {missing}; write {_FORMS}")
    if tail >= head:
        raise LmdError(
            f"groups = {rule!r}: a class with {head} training images would be head and tail; "
            "the tail's threshold must lie below the head's"
        )
    assignment = tuple("head" if n >= head else "tail" if n <= tail else "medium" for n in counts)
    return Groups(
        f"by training images: head at least {head}, tail at most {tail}, medium between",
        assignment,
    )


def _lists(classes: list[str], rule: str) -> Groups:
    assignment: dict[str, str] = {}
    seen: set[str] = set()
    for piece in rule.split(";"):
        match = _LIST.fullmatch(piece)
        if match is None:
            raise LmdError(
                f"groups = {rule!r}: {piece.strip()!r} is not GROUP=CLASS,CLASS with GROUP one of "
                + ", ".join(GROUPS)
            )
        group = match[1]
        if group in seen:
            raise LmdError(f"groups = {rule!r}: {group} is given twice; join its classes")
        seen.add(group)
        for name in (n.strip() for n in match[2].split(",") if n.strip()):
            if name not in classes:
                raise LmdError(
                    f"groups = {rule!r}: no class {name!r}; the classes are: {', '.join(classes)}"
                )
            if name in assignment:
                raise LmdError(
                    f"groups = {rule!r}: class {name!r} is listed twice ({assignment[name]} and "
                    f"{group}); list it once"
                )
            assignment[name] = group
    missing = [name for name in classes if name not in assignment]
    if missing:
        raise LmdError(
            f"groups = {rule!r}: no group for {', '.join(missing)}; list every class once"
        )
    named = (
        f"{group} {', '.join(n for n in classes if assignment[n] == group) or '(none)'}"
        for group in GROUPS
    )
    return Groups("by list: " + "; ".join(named), tuple(assignment[name] for name in classes))
