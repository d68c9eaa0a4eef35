"""From probabilities to decisions: the mix of classes, costs, prediction sets and referrals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.parsing import Costs, parse_costs, parse_prevalence
from lmd.scoring.conformal import Guarantee, Held, guarantees, prediction_sets
from lmd.scoring.proportions import Floats, Probabilities, reweighted


@dataclass(frozen=True)
class Basis:
    """What a policy needs to know about a model.

    ``counts (K,)`` are of the training part, ``prior (K,)`` is the mix that the probabilities
    answer for, ``tiers (K,)`` are those of the classes, and ``held_out`` has the validation images
    of each class.
    """

    classes: Sequence[str]
    counts: Sequence[int]
    prior: Floats | None
    tiers: Sequence[str]
    held_out: Sequence[Held] | None


@dataclass(frozen=True)
class Policy:
    """How probabilities become decisions.

    ``prior (K,)`` is the mix that the probabilities answer for and ``mix (K,)`` the one that they
    are wanted for. Without costs the most probable class is decided. ``sets`` are the guarantees of
    prediction sets; an image whose set is empty, or larger than ``refer_above``, is referred.
    """

    prior: Floats | None = None
    mix: Floats | None = None
    costs: Costs | None = None
    sets: Sequence[Guarantee] | None = None
    refer_above: int | None = None

    def decide(self, probabilities: Probabilities) -> "Decided":
        """The decisions for probabilities ``(N, K)`` of the model.

        Sets are made from the model's own probabilities, before the mix is exchanged: their
        thresholds come from such probabilities, and coverage for images of one class does not
        depend on how frequent the class is.
        """
        for_mix: NDArray[np.floating[Any]] = probabilities
        if self.prior is not None and self.mix is not None:
            for_mix = reweighted(probabilities, self.prior, self.mix)
        chosen, refer = for_mix.argmax(axis=1), np.zeros(len(for_mix), bool)
        if self.costs is not None:
            chosen, refer = self.costs.decide(for_mix)
        sets = None
        if self.sets is not None:
            sets = prediction_sets(probabilities, [one.threshold for one in self.sets])
            sizes = sets.sum(axis=1)
            most = sets.shape[1] if self.refer_above is None else self.refer_above
            refer = refer | (sizes == 0) | (sizes > most)
        return Decided(for_mix, chosen, sets, refer)

    @property
    def refers(self) -> bool:
        """Whether an image can be referred."""
        return self.sets is not None or (self.costs is not None and self.costs.refer is not None)


@dataclass(frozen=True)
class Decided:
    """Probabilities ``(N, K)`` for the mix, chosen classes ``(N,)``, sets ``(N, K)``, referrals."""

    probabilities: NDArray[np.floating[Any]]
    chosen: NDArray[np.intp]
    sets: NDArray[np.bool_] | None
    refer: NDArray[np.bool_]


def make_policy(decide: Decide, basis: Basis) -> Policy:
    """Check what a user asks for against the basis that the model has."""
    mix = sets = None
    if decide.prevalence is not None:
        if basis.prior is None:
            raise LmdError(
                "--prevalence needs to know the mix of classes that the model answers for, and its "
                "file does not say it: run `lmd evaluate RUN` once to add it"
            )
        mix = parse_prevalence(decide.prevalence, basis.classes, basis.counts)
    costs = None if decide.costs is None else parse_costs(decide.costs, basis.classes)
    if decide.coverage is not None:
        if basis.held_out is None or not any(map(len, basis.held_out)):
            raise LmdError(
                "--coverage needs the probabilities of validation images, and this model has none: "
                "`lmd evaluate RUN` adds them to an older model; a run without a validation part "
                "has none, nor have all folds of a cross-validation together (train with --final "
                "refit and give its folder `final` to predict; the report of each fold has the "
                "coverage on test images)"
            )
        sets = guarantees(basis.held_out, basis.tiers, decide.coverage)
    if decide.refer_above is not None and (sets is None or decide.refer_above < 1):
        why = "needs --coverage as well" if sets is None else "must be at least 1"
        raise LmdError(f"--refer-above {why}; it is {decide.refer_above}")
    return Policy(basis.prior, mix, costs, sets, decide.refer_above)
