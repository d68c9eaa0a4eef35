"""Decisions of a shipped model: its description becomes a rule, and decisions become columns."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from lmd.decisions.decide import Decide
from lmd.decisions.rules import Decided, Known, Rule, make_rule
from lmd.model import ModelSpec
from lmd.scoring.conformal import Guarantee

SEPARATOR = "|"  # between the classes of a set


def rule_of(spec: ModelSpec, decide: Decide) -> Rule:
    """Check what a user asks for against the model's description."""
    held_out, prior = spec.held_out, spec.prior
    known = Known(
        classes=spec.classes,
        counts=spec.class_counts,
        prior=None if prior is None else np.array(prior.shares),
        tiers=("",) * len(spec.classes) if held_out is None else held_out.tiers,
        held_out=None if held_out is None else held_out.classes(),
    )
    rule = make_rule(decide, known)
    # Without another mix the probabilities stay as they are, to the last bit.
    return rule if rule.mix is not None else replace(rule, prior=None)


def extra_columns(decided: Decided, rule: Rule, classes: Sequence[str]) -> dict[str, list[Any]]:
    """The columns ``set``, ``set_size`` and ``refer`` that a rule adds, by name."""
    columns: dict[str, list[Any]] = {}
    if decided.sets is not None:
        members = [list(compress(classes, row)) for row in decided.sets]
        columns["set"] = [SEPARATOR.join(map(_escaped, names)) for names in members]
        columns["set_size"] = [len(names) for names in members]
    if rule.refers:
        columns["refer"] = ["yes" if refer else "no" for refer in decided.refer]
    return columns


def _escaped(name: str) -> str:
    """A class name in a set, with a backslash before what would end it."""
    return name.replace("\\", "\\\\").replace(SEPARATOR, f"\\{SEPARATOR}")


def describe_guarantees(
    found: Sequence[Guarantee], classes: Sequence[str], coverage: float
) -> list[str]:
    """One line per class: which images its coverage is guaranteed for, and how exact it is."""
    whose = {
        "class": "images of the class",
        "tier": "images of its tier together",
        "all": "all images together",
        "always": "in every set",
    }
    lines = [f"Prediction sets with a coverage of {100 * coverage:g} %, guaranteed for"]
    width = max(len(name) for name in classes)
    for name, one in zip(classes, found, strict=True):
        line = f"  {name:<{width}}  {whose[one.level]}"
        if one.level == "always":
            lines.append(f"{line} (too few validation images)")
            continue
        span = f"{100 * one.low:.0f} to {100 * one.high:.0f} %"
        of = "" if one.groups is None else f" of {one.groups} patients or lesions"
        lines.append(f"{line} (by {one.images} validation images{of}: {span})")
    return lines
