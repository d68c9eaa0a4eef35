"""Fit several balanced classifiers on frozen features and choose one on held-out images.

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

from lmd.data.splits import grouped_folds
from lmd.frozen import fits
from lmd.frozen.classifier import FeatureClassifier, softmax
from lmd.frozen.features import FeatureTable
from lmd.frozen.fits import Fits, Linear, Pair, Rows, Scaling
from lmd.frozen.record import Candidate
from lmd.methods import decoupling
from lmd.runs.folder import PartPredictions, Predictions
from lmd.runs.record import Part
from lmd.scoring.differences import Correct, simplest
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import Sample, mean_recall
from lmd.scoring.proportions import Kind, class_mix, fit_temperature, mix_weights
from lmd.scoring.scores import metric_estimates

METRIC = "balanced_accuracy"

# Title of each classifier, and the method whose formula it has. Those after "plain" are the
# candidates, from simple to complex: the fewer values are fitted to the images, the simpler.
CLASSIFIERS = {
    "existing": ("Existing classifier", ""),
    "plain": ("Plain regression (CE)", "ce"),
    "existing_adjusted": ("Existing classifier, logits adjusted", "logit_adjust_posthoc"),
    "existing_tau": ("Existing classifier, tau-norm", "tau_norm"),
    "means": ("Nearest class means", "ncm"),
    "balanced": ("Balanced Softmax regression", "balanced_softmax"),
    "adjusted": ("Plain regression, logits adjusted", "logit_adjust_posthoc"),
    "tau": ("Plain regression, tau-norm", "tau_norm"),
    "gaussians": ("Class Gaussians (LMD's M step)", "lmd"),
}

Setting = Mapping[str, float]
Tick = Callable[[int, int], None]


class Problem:
    """The scaled rows of a table for training, and those on which a classifier is chosen.

    ``held`` are the validation rows ``index (M,)``; without these, the training rows in one of the
    ``folds`` (the fold of each training row; -1 is in none). ``head`` is an existing classifier for
    features before ``scaling``.
    """

    def __init__(self, data: FeatureTable, seed: int = 0) -> None:
        table, train = data.table, data.rows("train")
        self.index, self.folds = data.rows("validation"), None
        if not len(self.index):
            folds = grouped_folds(table.take(train), seed=seed)
            self.index, self.folds = train[folds >= 0], torch.from_numpy(folds)
        self.scaling = Scaling.of(torch.from_numpy(data.features[train]), data.widths)
        self.train, self.held = (
            Rows(
                self.scaling.apply(torch.from_numpy(data.features[rows])),
                torch.from_numpy(table.labels[rows]),
            )
            for rows in (train, self.index)
        )
        self.groups = None if table.groups is None else table.groups[self.index]
        self.head = None
        if data.weight is not None and data.bias is not None:
            self.head = Linear.of(torch.from_numpy(data.weight), torch.from_numpy(data.bias))
        self.classes = len(table.classes)
        self.fit = partial(fits.fit, classes=self.classes, mean_images=data.mean_images, seed=seed)

    def trials(self, pairs: Sequence[Pair], tick: Tick) -> list[tuple[Fits, Tensor, Tensor]]:
        """Fit roughly; each fit has the indices and features of the rows held out from it."""
        if self.folds is None:
            tick(0, 2)
            fitted = self.fit(self.train, pairs=pairs)
            return [(fitted, torch.arange(len(self.index)), self.held.features)]
        held, trials = self.folds[self.folds >= 0], []
        numbers = held.unique().tolist()
        for done, number in enumerate(numbers):
            tick(done, len(numbers) + 1)
            rest, out = self.folds != number, (held == number).nonzero()[:, 0]
            rows = Rows(self.train.features[rest], self.train.labels[rest])
            trials.append((self.fit(rows, pairs=pairs), out, self.held.features[out]))
        return trials

    def classifier(self, fitted: Fits, key: str, setting: Setting) -> Linear:
        """Return the classifier of scaled features with a setting."""
        tau = setting.get("tau", 1.0)
        if key == "means":
            return fitted.means
        if key == "gaussians":
            return fitted.gaussians[setting["shrinkage"], setting["penalty"]]
        if key.startswith("existing"):
            assert self.head is not None
            if key == "existing_adjusted":
                return self.scaling.unfold(self.head).adjusted(fitted.counts, tau)
            # The norms are those before scaling; τ-norm adds no prior.
            return self.scaling.unfold(Linear.of(decoupling.tau_normalise(self.head.weight, tau)))
        plain = fitted.regressions[setting["penalty"]]
        if key == "tau":
            return Linear.of(decoupling.tau_normalise(plain.weight, tau))
        return plain if key == "plain" else plain.adjusted(fitted.counts, tau)


@dataclass(frozen=True)
class Chosen:
    """The chosen setting of one kind of classifier.

    ``classifier`` is for unscaled features; ``held_out (M, K)`` are logits of held-out images.
    """

    key: str
    setting: Setting
    classifier: Linear
    held_out: NDArray[np.float64]


@dataclass(frozen=True)
class Calibrated:
    """The shipped classifier, its predictions, and how it was chosen.

    ``mix`` is the class mix that the probabilities answer for. If the choice was ``crossed``, the
    predictions of ``validation`` are of training images, each by a classifier that has not seen
    it.
    """

    classifier: FeatureClassifier
    best: Chosen
    predictions: Predictions
    crossed: bool
    mix: Kind
    notes: Sequence[str]


def solve(
    data: FeatureTable, *, seed: int = 0, tick: Tick = lambda done, total: None
) -> Calibrated:
    """Fit, choose and score classifiers; the test part is used only after the choice."""
    problem, table = Problem(data, seed), data.table
    tried, key, notes = calibrate_features(problem, tick)
    best, crossed = tried[key], problem.folds is not None
    labels, counts = table.labels[problem.index], table.part("train").counts()
    mix = mix_of(best, data.mix)
    prior = class_mix(mix, counts)
    temperature = fit_temperature(best.held_out, labels, mix_weights(labels, prior))
    weight, bias = best.classifier.weight.numpy(), best.classifier.bias.numpy()
    if data.single:
        weight, bias = (a.astype(np.float32).astype(np.float64) for a in (weight, bias))
    indices: dict[Part, NDArray[np.int64]] = {
        "validation": problem.index,
        "test": data.rows("test"),
    }
    candidates = _candidates(data, indices, tried, key, crossed=crossed)
    classifier = FeatureClassifier(
        table.classes, weight, bias, temperature, prior, counts, candidates
    )
    parts: dict[Part, PartPredictions] = {}
    for part, rows in indices.items():
        if not len(rows):
            continue
        probabilities, some = classifier.predict_proba(data.features[rows]), table.take(rows)
        if part == "validation" and crossed:
            probabilities = softmax(best.held_out / temperature)
        parts[part] = PartPredictions(
            some.ids, some.labels, probabilities.astype(np.float32), some.group_numbers()
        )
    return Calibrated(classifier, best, Predictions(table.classes, parts), crossed, mix, notes)


def mix_of(best: Chosen, before: Kind) -> Kind:
    """Return the nearer of the two mixes that a classifier answers for.

    Its τ tells how far its logits are moved from the mix of training images to equal classes.
    """
    start = before if best.key.startswith("existing") else "training"
    return "training" if start == "training" and best.setting.get("tau", 1.0) < 0.5 else "uniform"


def calibrate_features(
    problem: Problem, tick: Tick = lambda done, total: None
) -> tuple[dict[str, Chosen], str, list[str]]:
    """Fit and choose a classifier of each kind, and the best kind, on held-out images; and notes.

    Of those within one standard error of the best balanced accuracy, the most regularised is
    chosen, and then the simplest kind. The plain regression has the penalty with the least
    cross-entropy.
    """
    width, notes = problem.train.features.shape[1], []
    size = 4 * problem.classes * width**2  # of K covariances (C, C) in float32
    if size > fits.MOST_BYTES:
        notes.append(
            f"Class Gaussians were left out: {problem.classes} covariances of {width} features "
            f"would need {size / 1e9:.1f} GB."
        )
    trials = problem.trials(() if notes else fits.PAIRS, tick)
    tick(len(trials), len(trials) + 1)

    def held_out(key: str, setting: Setting) -> Tensor:
        logits = torch.empty(len(problem.held.labels), problem.classes, dtype=torch.float64)
        for fitted, rows, features in trials:
            logits[rows] = problem.classifier(fitted, key, setting).logits(features)
        return logits

    chosen, best = _choose(problem, held_out, gaussians=not notes)
    # Exact fits on all training images, for the chosen settings alone.
    pair = chosen.get("gaussians")
    final = problem.fit(
        problem.train,
        penalties=sorted({chosen[key]["penalty"] for key in ("plain", "balanced")}),
        pairs=[(pair["shrinkage"], pair["penalty"])] if pair else [],
        exact=True,
        start=trials[0][0] if problem.folds is None else None,
    )
    tick(len(trials) + 1, len(trials) + 1)
    tried = {}
    for key, setting in chosen.items():
        classifier = problem.classifier(final, key, setting)
        if problem.folds is None:
            logits = classifier.logits(problem.held.features)
        else:
            logits = held_out(key, setting)
        tried[key] = Chosen(key, setting, problem.scaling.fold(classifier), logits.numpy())
    return tried, best, notes


def _choose(
    problem: Problem, held_out: Callable[[str, Setting], Tensor], *, gaussians: bool
) -> tuple[dict[str, Setting], str]:
    """Choose a setting of each classifier by its held-out logits, and the best candidate."""
    true = problem.held.labels.numpy()
    plain = {p: held_out("plain", {"penalty": p}) for p in fits.PENALTIES}
    penalty = min(plain, key=lambda p: F.cross_entropy(plain[p], problem.held.labels).item())
    chosen: dict[str, Setting] = {"plain": {"penalty": penalty}}
    correct: dict[str, Correct] = {}
    scores: dict[str, float] = {}
    for key, settings in _settings(problem, penalty, gaussians=gaussians).items():
        predicted = [held_out(key, setting).argmax(1).numpy() for setting in settings]
        hits = [labels == true for labels in predicted]
        values = [mean_recall(true, labels) for labels in predicted]
        i = simplest(hits, values, true, problem.groups)
        chosen[key], correct[key], scores[key] = settings[i], hits[i], values[i]
    best = simplest(list(correct.values()), list(scores.values()), true, problem.groups)
    return chosen, list(correct)[best]


def _settings(problem: Problem, penalty: float, *, gaussians: bool) -> dict[str, list[Setting]]:
    """List the settings of each candidate, from strong to weak regularisation.

    ``penalty`` is of the plain regression. Adjusting a plain regression with τ = 1 is what theory
    asks for; an existing classifier is changed as little as possible.
    """
    taus = decoupling.TAUS
    settings: dict[str, list[Setting]] = {}
    # An existing classifier may have been trained on the rows of all folds.
    if problem.head is not None and problem.folds is None:
        settings["existing_adjusted"] = [{"tau": tau} for tau in taus]
        settings["existing_tau"] = [{"tau": tau} for tau in taus]
    settings["means"] = [{}]
    settings["balanced"] = [{"penalty": p} for p in fits.PENALTIES]
    nearest = sorted(taus, key=lambda tau: (abs(tau - 1), tau))
    settings["adjusted"] = [{"penalty": penalty, "tau": tau} for tau in nearest]
    settings["tau"] = [{"penalty": penalty, "tau": tau} for tau in taus]
    if gaussians:
        pairs = sorted(fits.PAIRS, reverse=True)
        settings["gaussians"] = [{"shrinkage": s, "penalty": p} for s, p in pairs]
    return settings


def _candidates(
    data: FeatureTable,
    indices: Mapping[Part, NDArray[np.int64]],
    tried: Mapping[str, Chosen],
    best: str,
    *,
    crossed: bool,
) -> list[Candidate]:
    """Score every classifier where the choice was made, and on test.

    If held-out images are ``crossed`` ones of training, the existing classifier may know them.
    """
    held, test = indices["validation"], indices["test"]
    candidates = []
    features = torch.from_numpy(data.features[test]).double()
    for key, (title, _) in CLASSIFIERS.items():
        chosen = tried.get(key)
        logits: list[NDArray[Any] | None]
        if chosen is not None:
            logits = [chosen.held_out, chosen.classifier.logits(features).numpy()]
        elif key == "existing" and (existing := data.existing_logits(held)) is not None:
            logits = [None if crossed else existing, data.existing_logits(test)]
        else:
            continue
        scores = zip((held, test), logits, strict=True)
        held_out, tested = (_score(data, rows, part) for rows, part in scores)
        _, worst_class, worst_recall = tested or held_out or (None, None, None)
        candidates.append(
            Candidate(
                key=key,
                title=title,
                chosen=key == best,
                settings=dict(chosen.setting) if chosen else {},
                held_out=held_out[0] if held_out else None,
                test=tested[0] if tested else None,
                worst_class=worst_class,
                worst_recall=worst_recall,
            )
        )
    return candidates


def _score(
    data: FeatureTable, rows: NDArray[np.int64], logits: NDArray[Any] | None
) -> tuple[Estimate, str, float] | None:
    """Return balanced accuracy with its interval, and the class with the lowest recall."""
    if logits is None or not len(rows):
        return None
    table = data.table.take(rows)
    sample = Sample(table.labels, softmax(logits), groups=table.group_numbers())
    recall = sample.plain.recall[0]
    worst = int(np.nanargmin(recall))
    accuracy = metric_estimates(sample, [METRIC])[METRIC]
    return accuracy, table.classes[worst], float(recall[worst])
