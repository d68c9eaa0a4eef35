"""The tier of each class (head, medium or tail), by a rule that the protocol declares."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import unknown

TIERS = ("head", "medium", "tail")

_FORMS = (
    '"thirds" (by rank of training count), "head>1000,tail<180" (thresholds on training counts) '
    'or "head=A,B;medium=C;tail=D" (every class exactly once)'
)
_THRESHOLD = re.compile(r"\s*(head|tail)\s*(>=|<=|>|<)\s*(\d+)\s*")
_LIST = re.compile(r"\s*(head|medium|tail)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Tiers:
    """The ``rule`` in words, and the tier of each class, ``assignment (K,)``."""

    rule: str
    assignment: tuple[str, ...]


def assign_tiers(
    counts: Sequence[int] | NDArray[np.integer[Any]], classes: Sequence[str], rule: str
) -> Tiers:
    """Return the tiers of the classes from training ``counts (K,)`` by ``rule``.

    >>> assign_tiers([900, 20, 100], ["NV", "DF", "AK"], "thirds").assignment
    ('head', 'tail', 'medium')
    >>> assign_tiers([900, 20, 100], ["NV", "DF", "AK"], "head>500,tail<100").assignment
    ('head', 'tail', 'medium')
    >>> assign_tiers([900, 20, 100], ["NV", "DF", "AK"], "head=NV;tail=DF,AK").assignment
    ('head', 'tail', 'tail')
    """
    numbers = [int(n) for n in counts]
    if len(numbers) < 2:
        raise LmdError(f"tiers: at least two classes are needed, there are {len(numbers)}")
    if rule.strip() == "thirds":
        return _thirds(numbers)
    try:
        if _LIST.match(rule):
            return _lists(list(classes), rule)
        if _THRESHOLD.match(rule):
            return _thresholds(numbers, rule)
    except LmdError as error:
        raise LmdError(f"tiers = {rule!r}: {error}") from None
    raise LmdError(f"tiers = {rule!r} is not a rule; write {_FORMS}")


def check_rule(rule: str) -> None:
    """Raise a ``ValueError`` unless a rule has one of the forms; its classes are not known yet."""
    try:
        if _LIST.match(rule):
            names = [name for piece in rule.split(";") for name in _listed(piece)]
            assign_tiers(range(len(names), 0, -1), names, rule)
        else:
            assign_tiers([3, 2, 1], ["a", "b", "c"], rule)
    except LmdError as error:
        raise ValueError(str(error)) from None


def _listed(piece: str) -> list[str]:
    return [name.strip() for name in piece.partition("=")[2].split(",") if name.strip()]


def _thirds(counts: list[int]) -> Tiers:
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    names = TIERS if len(counts) > 2 else ("head", "tail")
    assignment = [""] * len(counts)
    for name, members in zip(names, np.array_split(order, len(names)), strict=True):
        for k in members:
            assignment[k] = name
    return Tiers(
        f"{'thirds' if len(names) == 3 else 'halves'} of the classes by rank of training count "
        "(ties in class order; where they do not divide evenly, the more frequent tier is larger)",
        tuple(assignment),
    )


def _thresholds(counts: list[int], rule: str) -> Tiers:
    bounds: dict[str, int] = {}  # the smallest count of the head, the largest of the tail
    for piece in rule.split(","):
        match = _THRESHOLD.fullmatch(piece)
        if match is None:
            raise LmdError(f"{piece.strip()!r} is not a threshold; write head>NUMBER,tail<NUMBER")
        name, sign, number = match[1], match[2], int(match[3])
        if (name == "head") != sign.startswith(">"):
            raise LmdError(
                "head classes are the frequent ones (head>NUMBER) and tail classes the rare ones "
                f"(tail<NUMBER), not {piece.strip()!r}"
            )
        if name in bounds:
            raise LmdError(f"{name} has two thresholds; give one")
        bounds[name] = number + {">": 1, "<": -1}.get(sign, 0)
    if missing := {"head", "tail"} - bounds.keys():
        raise LmdError(f"no threshold for {missing.pop()}; write {_FORMS}")
    head, tail = bounds["head"], bounds["tail"]
    if tail >= head:
        raise LmdError(
            f"a class with {head} training images would be head and tail; "
            "the threshold of the tail must be below that of the head"
        )
    assignment = tuple("head" if n >= head else "tail" if n <= tail else "medium" for n in counts)
    return Tiers(
        f"by training images: head at least {head}, tail at most {tail}, medium between",
        assignment,
    )


def _lists(classes: list[str], rule: str) -> Tiers:
    assignment: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    for piece in rule.split(";"):
        match = _LIST.fullmatch(piece)
        if match is None:
            raise LmdError(
                f"{piece.strip()!r} is not TIER=CLASS,CLASS with TIER one of " + ", ".join(TIERS)
            )
        tier = match[1]
        if tier in members:
            raise LmdError(f"{tier} is given twice; join its classes")
        members[tier] = _listed(piece)
        for name in members[tier]:
            if name not in classes:
                raise LmdError(unknown("class", name, classes))
            if name in assignment:
                tiers = f"{assignment[name]} and {tier}"
                raise LmdError(f"class {name!r} is listed twice ({tiers}); list it once")
            assignment[name] = tier
    missing = [name for name in classes if name not in assignment]
    if missing:
        raise LmdError(f"no tier for {', '.join(missing)}; list every class once")
    named = (
        f"{tier} {', '.join(n for n in classes if assignment[n] == tier) or '(none)'}"
        for tier in TIERS
    )
    return Tiers("by list: " + "; ".join(named), tuple(assignment[name] for name in classes))
