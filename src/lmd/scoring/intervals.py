"""95 % intervals, paired differences of two runs, and Holm's correction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.confusion import Floats
from lmd.scoring.metrics import METRICS
from lmd.scoring.resampling import bootstrap
from lmd.scoring.sample import Sample

LEVEL = 0.95
FEW_GROUPS = 10  # fewer are too few to estimate a design effect


def interval(draws: Floats, value: float | None = None) -> tuple[float, float]:
    """Percentile interval of bootstrap ``draws (R,)``; nan, nan if all draws are nan.

    It is widened to contain ``value``: the resamples of a biased metric (ECE) can all lie on one
    side of the value.

    >>> [round(limit, 6) for limit in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    draws = draws[~np.isnan(draws)]
    if len(draws) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if value is not None and not np.isnan(value):
        low, high = min(low, value), max(high, value)
    return float(low), float(high)


def effective(outcomes: NDArray[Any], groups: NDArray[Any] | None) -> tuple[float, float]:
    """Hits and trials of independent images with the same information as ``outcomes (N,)``.

    An outcome is 0 or 1, or a share if it is a mean over runs.

    Images of one patient or lesion, numbered by ``groups (N,)``, resemble each other, so hits and
    trials are divided by the design effect (Rao and Scott 1992). It lies between 1 and its value
    if all images of a group have the same outcome; that value is used if there are too few groups,
    or too little variation, for an estimate.

    >>> effective(np.array([True, True, False, False]), np.array([7, 7, 8, 9]))
    (1.3333333333333333, 2.6666666666666665)
    """
    n, hits = len(outcomes), float(outcomes.sum())
    if groups is None or n == 0:
        return hits, n
    group = np.unique(groups, return_inverse=True)[1]
    sizes, each = np.bincount(group), np.bincount(group, weights=outcomes)
    count, share = len(sizes), hits / n
    most = float((sizes**2).sum() / n)
    if count == n:
        return hits, n
    if count < FEW_GROUPS or hits in (0, n):
        effect = most
    else:
        squares = float(((each - share * sizes) ** 2).sum())
        effect = count / (count - 1) * squares / (n * share * (1 - share))
        effect = min(max(effect, 1.0), most)
    return hits / effect, n / effect


def wilson(hits: float, trials: float, z: float | None = None) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927); 0 to 1 without trials.

    Unlike a bootstrap interval, it has a width even if all trials have the same outcome. ``z`` is
    the number of standard errors, by default those of ``LEVEL``.

    >>> [round(limit, 3) for limit in wilson(1, 1)]
    [0.207, 1.0]
    """
    if trials == 0:
        return 0.0, 1.0
    z2 = (NormalDist().inv_cdf((1 + LEVEL) / 2) if z is None else z) ** 2
    share = hits / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = np.sqrt(z2 * (share * (1 - share) / trials + z2 / (4 * trials**2))) / (1 + z2 / trials)
    # At the ends the limit is exactly 0 or 1; rounding must not exclude the share.
    low = 0.0 if hits == 0 else float(centre - half)
    high = 1.0 if hits == trials else float(centre + half)
    return low, high


def f1_interval(
    hits: int,
    support: int,
    predicted: int,
    images: int,
    *,
    shrink: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float]:
    """Interval for the F1 of one class, valid for tiny classes too.

    Recall and false positive rate are drawn from their Beta posteriors under Jeffreys' prior
    (Goutte and Gaussier 2005). ``shrink`` holds the effective share of the images of the class and
    of the other images (``effective``).
    """
    if support == 0:
        return float("nan"), float("nan")
    generator, draws = np.random.default_rng(0), 4000
    others, false = images - support, predicted - hits
    own, other = shrink
    recall = generator.beta(own * hits + 0.5, own * (support - hits) + 0.5, draws)
    alarms = np.zeros(draws)
    if others:
        alarms = generator.beta(other * false + 0.5, other * (others - false) + 0.5, draws)
    f1 = 2 * support * recall / (support * recall + support + others * alarms)
    return interval(f1, 2 * hits / (support + predicted))


@dataclass(frozen=True)
class Difference:
    """Run A minus run B: value, interval and two-sided p-value of no difference."""

    value: float
    low: float
    high: float
    p_value: float


def difference(value: float, draws: Floats) -> Difference:
    """A difference with its interval and p-value from its ``draws (R,)``; nan if any is nan.

    The p-value is twice the share of resamples with a difference of zero or of the other sign,
    where the data counts as one more resample; it is at least ``2 / (R + 1)``.
    """
    if np.isnan(value) or np.isnan(draws).any():
        return Difference(value, float("nan"), float("nan"), float("nan"))
    # A difference within rounding counts as zero.
    below, above = np.sum(draws <= 1e-12), np.sum(draws >= -1e-12)
    p_value = min(1.0, 2 * (1 + float(min(below, above))) / (len(draws) + 1))
    return Difference(value, *interval(draws, value), p_value)


def paired_differences(
    a: Sample, b: Sample, keys: Iterable[str] = METRICS, *, resamples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Metrics of run A minus those of run B on the same images, with the same resamples.

    Small classes have the rule of ``lmd.scoring.small_classes``.
    """
    from lmd.scoring.small_classes import paired_limits

    if a.probabilities.shape != b.probabilities.shape or not np.array_equal(a.labels, b.labels):
        raise LmdError(
            "a paired difference needs two runs on the same images and classes, but their "
            f"probabilities are {a.probabilities.shape} and {b.probabilities.shape}, or their "
            "labels differ"
        )
    keys = tuple(keys)
    draws_a, draws_b = (bootstrap(run, keys, resamples=resamples, seed=seed) for run in (a, b))
    found = {}
    for key in keys:
        metric = METRICS[key]
        drawn = difference(metric.value(a) - metric.value(b), draws_a[key] - draws_b[key])
        found[key] = paired_limits([a], [b], metric, drawn)
    return found


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """P-values corrected by Holm's step-down procedure (Holm 1979), in the given order.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise LmdError(f"p_values must be numbers from 0 to 1; they are {p.tolist()}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted
