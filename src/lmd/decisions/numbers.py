"""What decisions mean for each class at a stated mix of classes: recall, referrals, PPV, NPV."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.policy import Basis, Costs, Policy, make_policy
from lmd.runs.predictions import Predictions
from lmd.runs.record import Part, Record
from lmd.scoring.conformal import Guarantee, prediction_sets
from lmd.scoring.estimates import ClassDecision, ClassSets, Decisions, Estimate, SetScores
from lmd.scoring.metrics import Sample
from lmd.scoring.proportions import Floats, Kind, Probabilities, effective, interval, mix_weights
from lmd.scoring.scores import mean_estimate, resampled_sums, share_of

COVERAGE = 0.9  # of the report's prediction sets, unless another one is asked for
FIXED_SPECIFICITY = 0.9
_DRAWS = 1000


def score_decisions(
    sample: Sample, policy: Policy, classes: Sequence[str], stated: str
) -> Decisions:
    """Decisions on labelled images at the mix that the policy is for.

    Images are weighted to the mix within the classes that the part has; ``stated`` says where the
    mix comes from. Without a mix, what depends on it is unknown.
    """
    mix = policy.prior if policy.mix is None else policy.mix
    decided = policy.decide(sample.probabilities.astype(np.float32))
    present = sample.support > 0
    known = np.where(present, mix, 0.0) if mix is not None else None
    known = known / known.sum() if known is not None and known.sum() > 0 else None
    chosen = np.where(decided.refer, len(classes), decided.chosen)
    shares = _rates(sample, chosen)
    draws = _rate_draws(sample, chosen) if known is not None else None
    per_class = []
    for k, name in enumerate(classes):
        own, unknown = sample.rows[k], Estimate(value=None)
        groups = sample.groups_in(own)
        rates = {"specificity": unknown, "ppv": unknown, "npv": unknown}
        if known is not None and draws is not None:
            values, spread = predictive(shares, known, k), predictive(draws, known, k)
            # Without images of the class nobody knows how often its name would be right.
            known_keys = values if present[k] else ["specificity"]
            rates |= {key: _estimate(values[key], spread[key]) for key in known_keys}
        fixed = unknown if known is None else _fixed(sample, decided.probabilities, known, k)
        per_class.append(
            ClassDecision(
                name=name,
                prevalence=None if mix is None else float(mix[k]),
                recall=share_of(chosen[own] == k, groups),
                referred=share_of(decided.refer[own], groups),
                **rates,
                fixed=fixed,
            )
        )
    return Decisions(
        prevalence=stated,
        costs=None if policy.costs is None else policy.costs.table.tolist(),
        refer_costs=None
        if policy.costs is None or policy.costs.refer is None
        else policy.costs.refer.tolist(),
        refer_above=policy.refer_above,
        fixed_specificity=FIXED_SPECIFICITY,
        referred=float(decided.refer.mean() if known is None else known @ shares[:, -1]),
        mean_cost=_mean_cost(policy.costs, shares, known),
        per_class=per_class,
    )


def predictive(rates: Floats, mix: Floats, k: int) -> dict[str, Floats]:
    """Specificity, PPV and NPV of class k from ``rates (…, K, K + 1)`` at the mix ``(K,)``.

    ``rates[j, k]`` is the share of images of class j that are decided as k; the last column is
    referral. nan where a denominator is 0.
    """
    others = np.where(np.arange(len(mix)) == k, 0.0, mix)
    called, hit = rates[..., k] @ mix, rates[..., k, k] * mix[k]
    quiet = 1 - called
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "specificity": (1 - rates[..., k]) @ others / others.sum(),
            "ppv": np.where(called > 0, hit / called, np.nan),
            "npv": np.where(quiet > 0, (1 - rates[..., k]) @ others / quiet, np.nan),
        }


def roc_points(sample: Sample, probabilities: Probabilities, mix: Floats, k: int) -> Floats:
    """False positive rate and sensitivity of class k at every threshold, ``(T, 2)``, rising.

    Other images are weighted so that their classes have the mix ``(K,)``.
    """
    weights = mix_weights(sample.labels, mix)
    own = sample.labels == k
    scores = probabilities[:, k]
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    rates = [np.cumsum(np.where(own[order], 0, weights[order])), np.cumsum(own[order])]
    points = np.stack([np.append(0.0, rate[last]) / max(rate[-1], 1e-300) for rate in rates], 1)
    return np.asarray(points)


def precision_recall(roc: Floats, share: float) -> Floats:
    """Recall and precision ``(T, 2)`` of a class from its ``roc (T + 1, 2)``.

    ``share`` is that of the class in the mix, at which its images and the others are counted.
    """
    false, found = roc[1:].T
    hits, wrong = share * found, (1 - share) * false
    return np.stack([found, hits / np.maximum(hits + wrong, 1e-300)], 1)


def _fixed(sample: Sample, probabilities: Probabilities, mix: Floats, k: int) -> Estimate:
    """Sensitivity of class k where specificity is still ``FIXED_SPECIFICITY``."""
    if not sample.support[k] or not np.delete(mix, k).any():
        return Estimate(value=None)
    points = roc_points(sample, probabilities, mix, k)
    allowed = points[points[:, 0] <= 1 - FIXED_SPECIFICITY + 1e-9]
    hits = round(float(allowed[-1, 1]) * int(sample.support[k]))
    own = sample.rows[k]
    best = np.argsort(-probabilities[own, k], kind="stable")[:hits]
    outcomes = np.zeros(int(sample.support[k]), bool)
    outcomes[best] = True
    return share_of(outcomes, sample.groups_in(own))


def _rates(sample: Sample, chosen: NDArray[np.integer[Any]]) -> Floats:
    """Share of the images of each class with each decision, ``(K, K + 1)``; 0 without images."""
    size = len(sample.support)
    counts = np.stack([np.bincount(chosen[own], minlength=size + 1) for own in sample.rows])
    return np.asarray(counts / np.maximum(sample.support, 1)[:, None])


def _rate_draws(sample: Sample, chosen: NDArray[np.integer[Any]]) -> Floats:
    """Draws ``(R, K, K + 1)`` of these shares from their Beta posteriors.

    Whether an image is decided as its own class has Jeffreys' prior, half an image for each answer.
    Every other decision has 1 / (K + 1) of an image (Perks 1947): with half an image for each of
    them, a few images of a rare class would count mostly as false alarms that nobody saw.
    """
    generator, size = np.random.default_rng(0), len(sample.support)
    draws = np.zeros((_DRAWS, size, size + 1))
    for j, own in enumerate(sample.rows):
        groups = sample.groups_in(own)
        for k in range(size + 1):
            hits, trials = effective(chosen[own] == k, groups)
            share = 1 / 2 if j == k else 1 / (size + 1)
            draws[:, j, k] = generator.beta(hits + share, trials - hits + 1 - share, _DRAWS)
    return draws


def _estimate(value: Floats, draws: Floats) -> Estimate:
    if np.isnan(value):
        return Estimate(value=None)
    # Sums of shares can pass 0 and 1 by rounding.
    low, high = interval(draws.clip(0, 1), float(value.clip(0, 1)))
    return Estimate(value=float(value.clip(0, 1)), low=low, high=high)


def _mean_cost(costs: Costs | None, rates: Floats, mix: Floats | None) -> float | None:
    if costs is None or mix is None:
        return None
    if costs.refer is None and mix @ rates[:, -1] > 0:
        return None  # as if they were free, the hardest images would make decisions look cheap
    refer = np.zeros(len(mix)) if costs.refer is None else costs.refer
    table = np.concatenate([costs.table, refer[:, None]], axis=1)
    return float(mix @ (rates * table).sum(axis=1))


def score_sets(
    sample: Sample, found: Sequence[Guarantee], classes: Sequence[str], requested: float
) -> SetScores:
    """Coverage with Wilson's intervals and mean size with bootstrap intervals.

    Coverage counts what is guaranteed: every patient or lesion once if the thresholds do.
    """
    sets = prediction_sets(
        sample.probabilities.astype(np.float32), [one.threshold for one in found]
    )
    covered = sets[np.arange(len(sets)), sample.labels]
    sizes = sets.sum(axis=1).astype(np.float64)
    drawn, total = resampled_sums(sample, sizes)
    once = any(one.groups is not None for one in found)
    per_class = [
        ClassSets(
            name=name,
            guarantee=found[k].level,
            images=found[k].images,
            group_count=found[k].groups,
            threshold=found[k].threshold,
            expected=Estimate(value=found[k].mean, low=found[k].low, high=found[k].high),
            coverage=_coverage(covered[own], sample.groups_in(own), once),
            size=mean_estimate(sizes[own], drawn[:, k], total[:, k]),
        )
        for k, (name, own) in enumerate(zip(classes, sample.rows, strict=True))
    ]
    return SetScores(
        requested=requested,
        coverage=_coverage(covered, sample.groups, once),
        size=mean_estimate(sizes, drawn.sum(axis=1), total.sum(axis=1)),
        empty=float((sizes == 0).mean()),
        per_class=per_class,
    )


def _coverage(
    covered: NDArray[np.bool_], groups: NDArray[np.integer] | None, once: bool
) -> Estimate:
    """A share of images, or with ``once`` the mean over groups of their shares."""
    if groups is None or not once:
        return share_of(covered, groups)
    _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return share_of(np.bincount(index, covered) / sizes, None)


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
    if part == "test" and basis.holds_out:
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
