"""What decisions mean for each class at a stated mix of classes: recall, referrals, PPV, NPV."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.policy import Basis, Costs, Policy, make_policy
from lmd.decisions.record import ClassDecision, ClassSets, Decisions, SetScores
from lmd.runs.folder import Predictions
from lmd.runs.record import Record
from lmd.scoring.conformal import Guarantee, guarantees, prediction_sets
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import Sample
from lmd.scoring.proportions import Floats, Probabilities, effective, interval, mix_weights
from lmd.scoring.scores import mean_estimate, resampled_sums, share_of

COVERAGE = 0.9  # of the report's prediction sets, unless another one is asked for
FIXED_SPECIFICITY = 0.9
UNKNOWN = Estimate(value=None)
_DRAWS = 1000


def decisions_of(
    record: Record, predictions: Predictions, basis: Basis, decide: Decide
) -> dict[str, Any]:
    """Return the fields ``sets`` and ``decisions`` of a record, of the test part or validation.

    Sets are scored on the test part alone: on validation they would be right by construction.
    """
    policy, test = make_policy(decide, basis), predictions.parts.get("test")
    part = predictions.parts.get("validation") if test is None else test
    if part is None or not len(part.labels):
        return {"sets": None, "decisions": None}
    if decide.coverage is not None and test is None:
        raise LmdError("--coverage needs a test part, and this run has none")
    sample = Sample(part.labels, part.probabilities, basis.tiers, part.groups)
    sets = None
    if test is not None and basis.held_out is not None:
        coverage = COVERAGE if decide.coverage is None else decide.coverage
        thresholds = policy.sets or guarantees(basis.held_out, basis.tiers, coverage)
        sets = score_sets(sample, thresholds, basis.classes, coverage)
    mixes = {"uniform": "all classes equally frequent", "training": "as in the training part"}
    stated, prior = decide.prevalence, record.model.prior
    if stated is None:
        source = f"{mixes[prior]}, which the model answers for" if prior else "unknown"
    elif isinstance(stated, Mapping) or "=" in str(stated):
        source = "as given for each class"
    else:
        source = mixes.get(str(stated), f"from {stated}")
    return {"sets": sets, "decisions": score_decisions(sample, policy, basis.classes, source)}


def score_decisions(
    sample: Sample, policy: Policy, classes: Sequence[str], stated: str
) -> Decisions:
    """Score decisions on labelled images, weighted to the policy's mix within their classes.

    ``stated`` says where the mix comes from. Without a mix, what depends on it is unknown.
    """
    mix = policy.prior if policy.mix is None else policy.mix
    decided = policy.decide(sample.probabilities.astype(np.float32))
    size = len(classes)
    weights = np.where(sample.support > 0, mix, 0.0) if mix is not None else None
    weights = weights / weights.sum() if weights is not None and weights.sum() > 0 else None
    chosen = np.where(decided.refer, size, decided.chosen)
    counts = np.stack([np.bincount(chosen[rows], minlength=size + 1) for rows in sample.rows])
    shares: Floats = counts / np.maximum(sample.support, 1)[:, None]
    draws = _rate_draws(sample, chosen) if weights is not None else None
    per_class = []
    for k, name in enumerate(classes):
        rows = sample.rows[k]
        groups = sample.groups_in(rows)
        rates = dict.fromkeys(("specificity", "ppv", "npv", "fixed"), UNKNOWN)
        if weights is not None and draws is not None:
            rates |= _rates(shares, draws, weights, k)
            rates["fixed"] = _fixed(sample, decided.probabilities, weights, k)
        per_class.append(
            ClassDecision(
                name=name,
                prevalence=None if mix is None else float(mix[k]),
                recall=share_of(chosen[rows] == k, groups),
                referred=share_of(decided.refer[rows], groups),
                **rates,
            )
        )
    costs = policy.costs
    return Decisions(
        prevalence=stated,
        costs=None if costs is None else costs.table.tolist(),
        refer_costs=None if costs is None or costs.refer is None else costs.refer.tolist(),
        refer_above=policy.refer_above,
        fixed_specificity=FIXED_SPECIFICITY,
        referred=float(decided.refer.mean() if weights is None else weights @ shares[:, -1]),
        mean_cost=None if costs is None else _mean_cost(costs, shares, weights),
        per_class=per_class,
    )


def _rates(shares: Floats, draws: Floats, mix: Floats, k: int) -> dict[str, Estimate]:
    """Return the numbers of ``predictive`` with intervals, where they can be computed."""
    values, spread, rates = predictive(shares, mix, k), predictive(draws, mix, k), {}
    # Without images of the class nobody knows how often its name would be right.
    for key in values if shares[k].any() else ["specificity"]:
        if not np.isnan(values[key]):
            # Sums of shares can pass 0 and 1 by rounding.
            value = float(values[key].clip(0, 1))
            rates[key] = Estimate.of(value, *interval(spread[key].clip(0, 1), value))
    return rates


def predictive(rates: Floats, mix: Floats, k: int) -> dict[str, Floats]:
    """Return specificity, PPV and NPV of class k from ``rates (…, K, K + 1)`` at the mix ``(K,)``.

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
    """Return false positive rate and sensitivity of class k at every threshold, ``(T, 2)``, rising.

    Other images are weighted so that their classes have the mix ``(K,)``.
    """
    weights = mix_weights(sample.labels, mix)
    scores = probabilities[:, k]
    order = np.argsort(-scores, kind="stable")
    inside = (sample.labels == k)[order]
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    rates = np.cumsum(np.where(inside, 0, weights[order])), np.cumsum(inside)
    return np.stack([np.append(0.0, rate[last]) / max(rate[-1], 1e-300) for rate in rates], 1)


def precision_recall(roc: Floats, share: float) -> Floats:
    """Return recall and precision ``(T, 2)`` of a class from its ``roc (T + 1, 2)``.

    ``share`` is the share of the class in the mix, at which its images and the others are counted.
    """
    false, recall = roc[1:].T
    hits, wrong = share * recall, (1 - share) * false
    return np.stack([recall, hits / np.maximum(hits + wrong, 1e-300)], 1)


def _fixed(sample: Sample, probabilities: Probabilities, mix: Floats, k: int) -> Estimate:
    """Return the sensitivity of class k where specificity is still ``FIXED_SPECIFICITY``."""
    support, rows = int(sample.support[k]), sample.rows[k]
    if not support or not np.delete(mix, k).any():
        return UNKNOWN
    points = roc_points(sample, probabilities, mix, k)
    allowed = points[points[:, 0] <= 1 - FIXED_SPECIFICITY + 1e-9]
    best = np.argsort(-probabilities[rows, k], kind="stable")[: round(allowed[-1, 1] * support)]
    return share_of(np.isin(np.arange(support), best), sample.groups_in(rows))


def _rate_draws(sample: Sample, chosen: NDArray[np.integer[Any]]) -> Floats:
    """Draw shares of decisions ``(R, K, K + 1)`` from their Beta posteriors.

    Whether an image is decided as its class has Jeffreys' prior, half an image for each answer.
    Every other decision has 1 / (K + 1) of an image (Perks 1947): with half an image for each of
    them, a few images of a rare class would count mostly as false alarms that nobody saw.
    """
    generator, size = np.random.default_rng(0), len(sample.support)
    draws = np.zeros((_DRAWS, size, size + 1))
    for j, rows in enumerate(sample.rows):
        groups = sample.groups_in(rows)
        for k in range(size + 1):
            hits, trials = effective(chosen[rows] == k, groups)
            share = 1 / 2 if j == k else 1 / (size + 1)
            draws[:, j, k] = generator.beta(hits + share, trials - hits + 1 - share, _DRAWS)
    return draws


def _mean_cost(costs: Costs, rates: Floats, mix: Floats | None) -> float | None:
    # If referrals were free, leaving the hardest images to people would make decisions look cheap.
    if mix is None or (costs.refer is None and mix @ rates[:, -1] > 0):
        return None
    refer = np.zeros(len(mix)) if costs.refer is None else costs.refer
    table = np.concatenate([costs.table, refer[:, None]], axis=1)
    return float(mix @ (rates * table).sum(axis=1))


def score_sets(
    sample: Sample, sets: Sequence[Guarantee], classes: Sequence[str], requested: float
) -> SetScores:
    """Score coverage with Wilson's intervals and mean size with bootstrap intervals.

    Coverage counts what is guaranteed: every patient or lesion once if the thresholds do.
    """
    inside = prediction_sets(sample.probabilities.astype(np.float32), [s.threshold for s in sets])
    covered = inside[np.arange(len(inside)), sample.labels]
    sizes = inside.sum(axis=1).astype(np.float64)
    drawn, total = resampled_sums(sample, sizes)
    once = any(promise.groups is not None for promise in sets)
    coverage = []
    for rows in (*sample.rows, slice(None)):
        hits: NDArray[Any] = covered[rows]
        groups = sample.groups_in(rows)
        if groups is not None and once:
            index = np.unique(groups, return_inverse=True)[1]
            hits, groups = np.bincount(index, hits) / np.bincount(index), None
        coverage.append(share_of(hits, groups))
    per_class = [
        ClassSets(
            name=name,
            guarantee=promise.level,
            images=promise.images,
            group_count=promise.groups,
            threshold=promise.threshold,
            expected=Estimate(value=promise.mean, low=promise.low, high=promise.high),
            coverage=coverage[k],
            size=mean_estimate(sizes[rows], drawn[:, k], total[:, k]),
        )
        for k, (name, rows, promise) in enumerate(zip(classes, sample.rows, sets, strict=True))
    ]
    return SetScores(
        requested=requested,
        coverage=coverage[-1],
        size=mean_estimate(sizes, drawn.sum(axis=1), total.sum(axis=1)),
        empty=float((sizes == 0).mean()),
        per_class=per_class,
    )
