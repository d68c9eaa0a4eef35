"""What a run knows about decisions: from its record and predictions to policies and numbers."""

from collections.abc import Mapping
from typing import Any

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.numbers import score_decisions, score_sets
from lmd.decisions.policy import Basis, make_policy
from lmd.methods import ALSO, METHODS
from lmd.model import HeldOut, Prior
from lmd.runs.predictions import Predictions
from lmd.runs.record import Part, Record
from lmd.scoring.conformal import true_probabilities
from lmd.scoring.proportions import Kind, class_mix
from lmd.scoring.sample import Sample

COVERAGE = 0.9  # of the report's prediction sets, unless another one is asked for


def with_prior(record: Record) -> Record:
    """The record with the prior of its method, if an earlier version did not write it."""
    method = METHODS.get(record.method.key) or ALSO.get(record.method.key)
    if record.model.prior is not None or method is None:
        return record
    prior = method.mix(method.defaults() | record.method.settings)
    return record.replaced(model=record.model.model_copy(update={"prior": prior}))


def basis_of(record: Record, predictions: Predictions) -> Basis:
    """What a policy needs to know about the model of a run."""
    counts, validation = record.data.counts["train"], predictions.parts.get("validation")
    return Basis(
        classes=predictions.classes,
        counts=counts,
        prior=None if record.model.prior is None else class_mix(record.model.prior, counts),
        tiers=record.tiers.assignment,
        held_out=None
        if validation is None
        else true_probabilities(validation.labels, validation.probabilities, validation.groups),
    )


def answers_of(record: Record, predictions: Predictions) -> tuple[Prior | None, HeldOut | None]:
    """The prior and the validation probabilities that the model's file has."""
    basis, prior, held_out = basis_of(record, predictions), None, None
    if basis.prior is not None and record.model.prior is not None:
        prior = Prior(record.model.prior, tuple(basis.prior.tolist()))
    if basis.held_out is not None and any(map(len, basis.held_out)):
        held_out = HeldOut.of(basis.held_out, basis.tiers)
    return prior, held_out


def decisions_of(
    record: Record, predictions: Predictions, basis: Basis, decide: Decide
) -> dict[str, Any]:
    """The fields ``sets`` and ``decisions`` of a record, for the test part or else validation.

    Sets are scored on the test part alone: on validation they would be right by construction.
    """
    policy = make_policy(decide, basis)
    part: Part = "test" if "test" in predictions.parts else "validation"
    of = predictions.parts.get(part)
    if of is None or not len(of.labels):
        return {"sets": None, "decisions": None}
    if decide.coverage is not None and part != "test":
        raise LmdError("--coverage needs a test part, and this run has none")
    sample = Sample(of.labels, of.probabilities, basis.tiers, of.groups)
    sets = None
    if part == "test" and basis.held_out is not None and any(map(len, basis.held_out)):
        coverage = COVERAGE if decide.coverage is None else decide.coverage
        with_sets = policy.sets or make_policy(Decide(coverage=coverage), basis).sets
        sets = score_sets(sample, with_sets or [], basis.classes, coverage)
    stated = _stated(decide, record.model.prior)
    return {"sets": sets, "decisions": score_decisions(sample, policy, basis.classes, stated)}


def _stated(decide: Decide, prior: Kind | None) -> str:
    """Where the mix of the numbers comes from, in words."""
    words = {"uniform": "all classes equally frequent", "training": "as in the training part"}
    given = decide.prevalence
    if given is None:
        return f"{words[prior]}, which the model answers for" if prior else "unknown"
    if isinstance(given, Mapping) or "=" in str(given):
        return "as given for each class"
    return words.get(str(given), f"from {given}")
