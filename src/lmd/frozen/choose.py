"""Fit several balanced classifiers on frozen features and choose one on the validation part.

No row of ``METHODS``: nothing here trains an encoder. It applies formulas of several methods to
features that some encoder has already made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmd.frozen.fits import (
    PAIRS,
    PENALTIES,
    Fits,
    Linear,
    Pair,
    Rows,
    Scaling,
    fit,
    room_for_gaussians,
)
from lmd.methods.balanced_softmax import PAPER as BALANCED
from lmd.methods.decoupling import PAPER as DECOUPLING
from lmd.methods.decoupling import tau_normalise
from lmd.methods.lmd import METHODS as LMD
from lmd.methods.logit_adjustment import PAPER as ADJUSTMENT
from lmd.methods.weighting import log_priors
from lmd.scoring.proportions import Labels
from lmd.scoring.sample import mean_recall

Right = NDArray[np.bool_]


def balanced_difference(
    first: Right, second: Right, labels: Labels, groups: NDArray[Any] | None = None
) -> tuple[float, float]:
    """First minus second in balanced accuracy, and the standard error of this difference.

    ``first (N,)`` and ``second (N,)`` say which images are right. Both are tried on the same
    images, so an image counts only if they disagree. Images of one group count together. To a class
    with a disagreement one image is added in favour of each, so that one image does not look
    certain.

    >>> right, wrong = np.array([True, True, True, False]), np.array([True, True, False, False])
    >>> balanced_difference(right, wrong, np.array([0, 0, 0, 1]))[0].__round__(3)
    0.167
    """
    gain = first.astype(np.float64) - second
    present = np.unique(labels)
    total = variance = 0.0
    for k in present:
        own = labels == k
        each = gain[own]
        if groups is not None:
            each = np.bincount(np.unique(groups[own], return_inverse=True)[1], weights=each)
        images = int(own.sum())
        share = images / len(each)  # images of a group, on average
        mean = float(each.sum()) / images
        total += mean
        if each.any():
            spread = float(((each - mean * share) ** 2).sum()) + 2 * share**2
            variance += spread / (images + 2 * share) ** 2
    return total / len(present), variance**0.5 / len(present)


def simplest(
    tried: Sequence[Right],
    scores: Sequence[float],
    labels: Labels,
    groups: NDArray[Any] | None = None,
) -> int:
    """The first of ``tried`` that is within one standard error of the best.

    ``tried`` are ordered from simple to complex, or from strong to weak regularisation; ``scores``
    are their balanced accuracies. The standard error is that of the difference to the best.
    """
    best = max(range(len(tried)), key=lambda i: (scores[i], -i))
    for i, right in enumerate(tried[:best]):
        difference, error = balanced_difference(tried[best], right, labels, groups)
        if difference <= error:
            return i
    return best


TAUS = tuple(step / 10 for step in range(21))

# What the classifiers are called; those after "plain" are the candidates, from simple to complex:
# the fewer values are fitted to the images, the simpler.
TITLES = {
    "existing": "Existing classifier",
    "plain": "Plain regression (CE)",
    "existing_adjusted": "Existing classifier, logits adjusted",
    "existing_tau": "Existing classifier, tau-norm",
    "means": "Nearest class means",
    "balanced": "Balanced Softmax regression",
    "adjusted": "Plain regression, logits adjusted",
    "tau": "Plain regression, tau-norm",
    "gaussians": "Class Gaussians (LMD's M step)",
}

PAPERS = {
    **dict.fromkeys(("existing_tau", "means", "tau"), DECOUPLING),
    **dict.fromkeys(("existing_adjusted", "adjusted"), ADJUSTMENT),
    "balanced": BALANCED,
    "gaussians": LMD[0].paper,
}

Make = Callable[[Fits], Linear]
Setting = Mapping[str, float]
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Problem:
    """Scaled training features, and either validation features or ``folds (N,)`` of training.

    ``groups`` are of the held-out images. ``head`` is an existing classifier for features as they
    are; ``scaling`` says what was done to them. ``mean_images`` is for ``fit``.
    """

    classes: int
    scaling: Scaling
    train: Rows
    validation: Rows | None
    folds: NDArray[np.int64] | None
    groups: NDArray[Any] | None = None
    head: Linear | None = None
    mean_images: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Chosen:
    """The chosen setting of one kind of classifier.

    ``classifier`` is for features as they are; ``held_out (M, K)`` are logits of held-out images.
    """

    key: str
    setting: Setting
    classifier: Linear
    held_out: NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """One classifier of each kind, the ``best`` of the candidates, and what was left out."""

    tried: Mapping[str, Chosen]
    best: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Option:
    setting: Setting
    make: Make


def _shifted(of: Linear, counts: Tensor, tau: float) -> Linear:
    """Logits minus ``τ ln π`` (Menon et al., ICLR 2021, Eq. 9)."""
    return Linear(of.weight, of.bias - tau * log_priors(counts.double()))


def _plain(penalty: float, fits: Fits) -> Linear:
    return fits.regressions[penalty]


def _adjusted(penalty: float, tau: float, fits: Fits) -> Linear:
    return _shifted(fits.regressions[penalty], fits.counts, tau)


def _normalised(penalty: float, tau: float, fits: Fits) -> Linear:
    return Linear.of(tau_normalise(fits.regressions[penalty].weight, tau))


def _gaussians(pair: Pair, fits: Fits) -> Linear:
    return fits.gaussians[pair]


def _means(fits: Fits) -> Linear:
    return fits.means


def _existing(head: Linear, tau: float, fits: Fits) -> Linear:
    return _shifted(head, fits.counts, tau)


def _options(problem: Problem, penalty: float, pairs: Sequence[Pair]) -> dict[str, list[_Option]]:
    """The candidates by kind, each from strong to weak regularisation.

    ``penalty`` is that of the plain regression. Adjusting a plain regression with τ = 1 is what
    theory asks for; an existing classifier is changed as little as possible.
    """
    found: dict[str, list[_Option]] = {}
    # A classifier that exists may have been trained on the rows of all folds.
    if problem.head is not None and problem.validation is not None:
        head, raw = problem.scaling.unfold(problem.head), problem.head.weight
        found["existing_adjusted"] = [
            _Option({"tau": tau}, partial(_existing, head, tau)) for tau in TAUS
        ]
        # The norms are those of the classifier as it is; τ-norm adds no prior.
        scaled = [problem.scaling.unfold(Linear.of(tau_normalise(raw, tau))) for tau in TAUS]
        found["existing_tau"] = [
            _Option({"tau": tau}, partial(_existing, one, 0.0))
            for tau, one in zip(TAUS, scaled, strict=True)
        ]
    found["means"] = [_Option({}, _means)]
    found["balanced"] = [_Option({"penalty": p}, partial(_adjusted, p, 1.0)) for p in PENALTIES]
    nearest = sorted(TAUS, key=lambda tau: (abs(tau - 1), tau))
    found["adjusted"] = [
        _Option({"penalty": penalty, "tau": tau}, partial(_adjusted, penalty, tau))
        for tau in nearest
    ]
    found["tau"] = [
        _Option({"penalty": penalty, "tau": tau}, partial(_normalised, penalty, tau))
        for tau in TAUS
    ]
    if pairs:
        found["gaussians"] = [
            _Option({"shrinkage": pair[0], "penalty": pair[1]}, partial(_gaussians, pair))
            for pair in sorted(pairs, reverse=True)
        ]
    return found


def calibrate_features(problem: Problem, tick: Tick = lambda done, total: None) -> Outcome:
    """Fit all candidates, choose one of each kind and the best kind on held-out images.

    Rule: of those within one standard error of the best balanced accuracy, the most regularised,
    and then the simplest kind. The plain regression has the penalty with the least cross-entropy.
    """
    width = problem.train.features.shape[1]
    pairs = PAIRS if room_for_gaussians(problem.classes, width) else ()
    notes = () if pairs else (_too_many(problem.classes, width),)
    trials, labels = _trials(problem, pairs, tick)

    def held_out(make: Make) -> Tensor:
        parts = [(rows, make(fits).logits(x)) for fits, rows, x in trials]
        logits = torch.empty(len(labels), problem.classes, dtype=torch.float64)
        for rows, found in parts:
            logits[rows] = found
        return logits

    true = labels.numpy()
    plain = {p: held_out(partial(_plain, p)) for p in PENALTIES}
    penalty = min(plain, key=lambda p: F.cross_entropy(plain[p], labels).item())
    picked = {"plain": _Option({"penalty": penalty}, partial(_plain, penalty))}
    right: dict[str, NDArray[np.bool_]] = {}
    scores: dict[str, float] = {}
    for key, options in _options(problem, penalty, pairs).items():
        guesses = [held_out(option.make).argmax(1).numpy() for option in options]
        hits = [guess == true for guess in guesses]
        values = [mean_recall(true, guess) for guess in guesses]
        i = simplest(hits, values, true, problem.groups)
        picked[key], right[key], scores[key] = options[i], hits[i], values[i]
    keys = list(right)
    best = keys[simplest(list(right.values()), list(scores.values()), true, problem.groups)]
    final = _final(problem, picked, trials[0][0] if problem.validation is not None else None)
    tick(len(trials) + 1, len(trials) + 1)
    tried = {}
    for key, option in picked.items():
        classifier = option.make(final)
        logits = held_out(option.make)
        if problem.validation is not None:
            logits = classifier.logits(problem.validation.features)
        folded = problem.scaling.fold(classifier)
        tried[key] = Chosen(key, dict(option.setting), folded, logits.numpy())
    return Outcome(tried, best, notes)


def _trials(
    problem: Problem, pairs: Sequence[Pair], tick: Tick
) -> tuple[list[tuple[Fits, Tensor, Tensor]], Tensor]:
    """Rough fits with the rows and features held out from each, and all held-out labels."""
    train, validation = problem.train, problem.validation
    given: dict[str, Any] = {"mean_images": problem.mean_images, "seed": problem.seed}
    if validation is not None:
        tick(0, 2)
        fits = fit(train, problem.classes, PENALTIES, pairs, **given)
        tick(1, 2)
        every = torch.arange(len(validation.labels))
        return [(fits, every, validation.features)], validation.labels
    assert problem.folds is not None
    folds = torch.from_numpy(problem.folds)
    held = folds >= 0
    place = held.cumsum(0) - 1
    numbers = folds[held].unique().tolist()
    trials = []
    for done, number in enumerate(numbers):
        tick(done, len(numbers) + 1)
        out = folds == number
        rest = Rows(train.features[~out], train.labels[~out])
        fits = fit(rest, problem.classes, PENALTIES, pairs, **given)
        del rest
        trials.append((fits, place[out], train.features[out]))
    tick(len(numbers), len(numbers) + 1)
    return trials, train.labels[held]


def _final(problem: Problem, picked: Mapping[str, _Option], before: Fits | None) -> Fits:
    """Exact fits on all training images, for the chosen settings alone."""
    penalties = {s["penalty"] for key in ("plain", "balanced") for s in (picked[key].setting,)}
    virtual = picked.get("gaussians")
    pairs = [(virtual.setting["shrinkage"], virtual.setting["penalty"])] if virtual else []
    given: dict[str, Any] = {"mean_images": problem.mean_images, "seed": problem.seed}
    if before is None:
        before = Fits(torch.zeros(0), {}, {}, Linear.of(torch.zeros(0, 0)))
    return fit(problem.train, problem.classes, sorted(penalties), pairs, before=before, **given)


def _too_many(classes: int, width: int) -> str:
    size = 4 * classes * width * width / 1e9
    return (
        f"Class Gaussians were left out: {classes} covariances of {width} features would need "
        f"{size:.1f} GB."
    )


__all__ = [
    "PAPERS",
    "TITLES",
    "Chosen",
    "Linear",
    "Outcome",
    "Problem",
    "Rows",
    "Scaling",
    "calibrate_features",
]
