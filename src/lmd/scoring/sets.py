"""How prediction sets do on labelled images: coverage and size, for each class and overall."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.scoring.conformal import Guarantee, prediction_sets
from lmd.scoring.confusion import Floats
from lmd.scoring.estimates import ClassSets, Estimate, SetScores
from lmd.scoring.intervals import effective, interval, wilson
from lmd.scoring.resampling import draw
from lmd.scoring.sample import Sample

RESAMPLES = 500


def share_of(outcomes: NDArray[Any], groups: NDArray[np.integer] | None) -> Estimate:
    """A share of images with Wilson's interval; images of one patient or lesion count less."""
    if not len(outcomes):
        return Estimate(value=None)
    low, high = wilson(*effective(outcomes, groups))
    return Estimate(value=float(outcomes.mean()), low=low, high=high)


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
            coverage=_coverage(covered[own], _groups(sample, own), once),
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


def _groups(sample: Sample, rows: slice) -> NDArray[np.integer] | None:
    return None if sample.groups is None else sample.groups[rows]


def resampled_sums(sample: Sample, values: Floats) -> tuple[Floats, Floats]:
    """Sums of the values, and numbers of images, of each class in each resample: ``(R, K)``."""
    sums, images = [], []
    for weights in draw(sample, RESAMPLES, 0):
        sums.append(np.stack([weights[:, own] @ values[own] for own in sample.rows], axis=1))
        images.append(np.stack([weights[:, own].sum(axis=1) for own in sample.rows], axis=1))
    return np.concatenate(sums), np.concatenate(images)


def mean_estimate(values: Floats, sums: Floats, images: Floats) -> Estimate:
    """The mean of ``(n,)`` with its interval from resamples ``(R,)``."""
    if not len(values):
        return Estimate(value=None)
    mean = float(values.mean())
    low, high = interval(sums / images, mean)
    # Where all resamples agree, nothing is known about how sure the mean is.
    return Estimate(value=mean) if low == high else Estimate(value=mean, low=low, high=high)
