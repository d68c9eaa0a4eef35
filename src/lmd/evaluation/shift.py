"""How images from another place (here) differ from a run's own (home), and what that changes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.evaluation.record import ClassShift, ConfidenceShift, MetricShift
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.proportions import Floats, interval, mix_weights
from lmd.scoring.scores import bootstrap, mean_estimate, metric_estimates, resampled_sums, too_small

COMPARED = (
    "balanced_accuracy",
    "bacc_head",
    "bacc_medium",
    "bacc_tail",
    "accuracy",
    "macro_f1",
    "auc",
    "ece",
)


def class_shifts(
    home: Sample,
    here: Sample,
    classes: Sequence[str],
    train: Sequence[int],
    recalls: Sequence[Estimate],
) -> list[ClassShift]:
    """The share of each class in training, at home and here; ``recalls (K,)`` are at home."""
    shares = [np.asarray(n) / max(np.sum(n), 1) for n in (train, home.support, here.support)]
    return [
        ClassShift(
            name=name,
            train=float(shares[0][k]),
            home=float(shares[1][k]),
            here=float(shares[2][k]),
            recall=recalls[k],
        )
        for k, name in enumerate(classes)
    ]


def shared(home: Sample, here: Sample) -> tuple[Sample, Sample]:
    """Both, without images of classes that one of them lacks; every class may be predicted."""
    both = (home.support > 0) & (here.support > 0)
    if not both.any():
        raise LmdError("the two places have no class in common: they cannot be compared")
    return _within(home, both), _within(here, both)


def _within(sample: Sample, classes: NDArray[np.bool_]) -> Sample:
    rows = classes[sample.labels]
    tiers, groups = sample.tiers.tolist(), sample.groups_in(rows)
    return Sample(sample.labels[rows], sample.probabilities[rows], tiers, groups)


def mix_distance(shifts: Sequence[ClassShift]) -> float:
    """Half the sum of the differences of the shares: 0 for the same mix, 1 for no common class.

    >>> none = Estimate(value=None)
    >>> mix = [("nv", 0.9, 0.6), ("mel", 0.1, 0.4)]
    >>> shifts = [ClassShift(name=n, train=0, home=a, here=b, recall=none) for n, a, b in mix]
    >>> round(mix_distance(shifts), 6)
    0.3
    """
    return 0.5 * sum(abs(one.here - one.home) for one in shifts)


def compare_metrics(home: Sample, here: Sample, *, resamples: int = 1000) -> dict[str, MetricShift]:
    """Metrics in both places, which should have the same classes (``shared``).

    The two places have different images, so that their resamples are independent. With small
    classes, or where the resamples have no width, the limits of the difference are combined from
    those of both places, if these have any. Metrics that cannot be computed in one of the places
    are left out.
    """
    found, both = {}, (home, here)
    draws = [bootstrap(s, COMPARED, resamples=resamples, seed=i) for i, s in enumerate(both)]
    values = [metric_estimates(s, COMPARED, resamples=resamples) for s in both]
    for key in COMPARED:
        a, b = (METRICS[key].value(sample) for sample in both)
        if np.isnan(a) or np.isnan(b):
            continue
        low, high = interval(draws[1][key] - draws[0][key], b - a)
        gap = Estimate(value=b - a, low=low, high=high)
        if low == high or any(too_small(sample, METRICS[key]) for sample in both):
            gap = independent_difference(values[1][key], values[0][key])
        found[key] = MetricShift(home=values[0][key], here=values[1][key], difference=gap)
    return found


def independent_difference(a: Estimate, b: Estimate) -> Estimate:
    """``a - b`` of different images, with limits from theirs (MOVER; Zou and Donner 2008).

    >>> found = independent_difference(
    ...     Estimate(value=0.0, low=0.0, high=0.6), Estimate(value=1.0, low=0.5, high=1.0)
    ... )
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (-1.0, -1.0, -0.219)
    """
    assert a.value is not None
    assert b.value is not None
    value = a.value - b.value
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return Estimate(value=value)
    below = np.hypot(a.value - a.low, b.high - b.value)
    above = np.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value=value, low=float(value - below), high=float(value + above))


def confidence_shift(home: Sample, here: Sample) -> ConfidenceShift:
    """Mean confidence in both places, and what the class mix of here would make of it at home."""
    weights = mix_weights(home.labels, here.support / here.support.sum())
    return ConfidenceShift(
        home=_mean_confidence(home),
        here=_mean_confidence(here),
        expected=float(weights @ home.confidence),
        distance=ks_distance(home.confidence, here.confidence),
    )


def ks_distance(a: Floats, b: Floats) -> float:
    """The largest difference of the distribution functions of two samples.

    >>> ks_distance(np.array([0.1, 0.2, 0.3]), np.array([0.25, 0.35])).__round__(3)
    0.667
    """
    places = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(each), places, side="right") / len(each) for each in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def _mean_confidence(sample: Sample) -> Estimate:
    sums, images = resampled_sums(sample, sample.confidence)
    return mean_estimate(sample.confidence, sums.sum(axis=1), images.sum(axis=1))
