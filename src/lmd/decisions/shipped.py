"""Decisions of a shipped model: what its file has for them, its policy, and their columns."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from lmd.decisions.decide import Decide
from lmd.decisions.policy import Basis, Decided, Policy, make_policy
from lmd.model import HeldOut, ModelSpec, Prior
from lmd.scoring.conformal import Guarantee

if TYPE_CHECKING:
    from lmd.runs.predictions import Predictions
    from lmd.runs.record import Record

SEPARATOR = "|"  # between the classes of a set


def answers_of(record: "Record", predictions: "Predictions") -> tuple[Prior | None, HeldOut | None]:
    """The prior and the validation probabilities that the model's file has."""
    basis, prior, held_out = Basis.of_run(record, predictions), None, None
    if basis.prior is not None and record.model.prior is not None:
        prior = Prior(record.model.prior, tuple(basis.prior.tolist()))
    if basis.held_out is not None and basis.holds_out:
        held_out = HeldOut.of(basis.held_out, basis.tiers)
    return prior, held_out


def policy_of(spec: ModelSpec, decide: Decide) -> Policy:
    """Return the policy for ``decide``, checked against the description of the model."""
    held_out, prior = spec.held_out, spec.prior
    basis = Basis(
        classes=spec.classes,
        counts=spec.class_counts,
        prior=None if prior is None else np.array(prior.shares),
        tiers=("",) * len(spec.classes) if held_out is None else held_out.tiers,
        held_out=None if held_out is None else held_out.classes(),
    )
    policy = make_policy(decide, basis)
    # Without another mix the probabilities stay as they are, to the last bit.
    return policy if policy.mix is not None else replace(policy, prior=None)


def extra_columns(decided: Decided, policy: Policy, classes: Sequence[str]) -> dict[str, list[Any]]:
    """The columns ``set``, ``set_size`` and ``refer`` that a policy adds, by name."""
    columns: dict[str, list[Any]] = {}
    if decided.sets is not None:
        members = [list(compress(classes, row)) for row in decided.sets]
        columns["set"] = [SEPARATOR.join(map(_escaped, names)) for names in members]
        columns["set_size"] = [len(names) for names in members]
    if policy.refers:
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
