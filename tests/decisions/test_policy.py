"""What a user asks for becomes a policy: sets, referrals, and what cannot be had."""

from pathlib import Path

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.policy import Basis, make_policy
from lmd.scoring.conformal import Held

P = np.array([[0.5, 0.3, 0.2], [0.34, 0.33, 0.33], [0.98, 0.01, 0.01]], np.float32)


def basis(**changes: object) -> Basis:
    held_out = [Held(np.linspace(0.25, 1, 30).astype(np.float32)) for _ in range(3)]
    values = {"prior": np.full(3, 1 / 3), "held_out": held_out} | changes
    return Basis(["a", "b", "c"], [80, 15, 5], tiers=["head", "medium", "tail"], **values)


def test_nothing_asked_changes_nothing() -> None:
    found = make_policy(Decide(), basis()).decide(P)
    assert (found.probabilities == P).all()
    assert found.chosen.tolist() == [0, 0, 0]
    assert found.sets is None
    assert not found.refer.any()


def test_empty_and_large_sets_are_referred() -> None:
    policy = make_policy(Decide(coverage=0.9, refer_above=2), basis())
    assert policy.refers
    found = policy.decide(P)
    limit = policy.sets[0].threshold  # type: ignore[index]
    assert limit == pytest.approx(0.25 + 0.75 * 2 / 29)
    assert found.sets is not None
    assert found.sets.tolist() == [[True, False, False], [True] * 3, [True, False, False]]
    assert found.refer.tolist() == [False, True, False]
    assert not make_policy(Decide(coverage=0.9), basis()).decide(P).refer.any()
    empty = make_policy(Decide(coverage=0.9), basis()).decide(np.full((1, 3), 0.2, np.float32))
    assert empty.refer.tolist() == [True]


def test_sets_do_not_depend_on_the_mix() -> None:
    decide = Decide(prevalence="a=0.01,b=0.01,c=0.98", coverage=0.9)
    found = make_policy(decide, basis()).decide(P)
    assert found.chosen.tolist() == [2, 2, 0]
    assert found.sets is not None
    assert (found.sets == make_policy(Decide(coverage=0.9), basis()).decide(P).sets).all()


def test_what_the_model_does_not_know() -> None:
    with pytest.raises(LmdError, match="prevalence needs to know the mix"):
        make_policy(Decide(prevalence="uniform"), basis(prior=None))
    with pytest.raises(LmdError, match="coverage needs the probabilities of validation"):
        make_policy(Decide(coverage=0.9), basis(held_out=None))
    with pytest.raises(LmdError, match="--refer-above needs --coverage as well; it is 2"):
        make_policy(Decide(refer_above=2), basis())
    with pytest.raises(LmdError, match="--refer-above must be at least 1; it is 0"):
        make_policy(Decide(coverage=0.9, refer_above=0), basis())


def test_a_request_as_options() -> None:
    assert Decide().words() == []
    decide = Decide("mix.csv", Path("costs.csv"), 0.9, 1)
    options = "--prevalence mix.csv --costs costs.csv --coverage 0.9 --refer-above 1"
    assert decide.words() == options.split()
    assert Decide(costs={"a": 1, "b": 2}).words() == ["--costs", "COSTS.csv"]
