"""Fit several balanced classifiers on frozen features and choose one on held-out images.

No row of ``METHODS``: nothing here trains an encoder. It applies formulas of several methods to
features that some encoder has already made.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from lmd.runs.predictions import PartPredictions, Predictions
from lmd.runs.record import Part
from lmd.scoring.differences import Correct, simplest
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import Sample, mean_recall
from lmd.scoring.proportions import Kind, class_mix, fit_temperature, mix_weights
from lmd.scoring.scores import metric_estimates

METRIC = "balanced_accuracy"

# The classifiers; those after "plain" are the candidates, from simple to complex: the fewer values
# are fitted to the images, the simpler.
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

# The methods whose formulas the candidates are.
METHOD_OF = {
    "existing_adjusted": "logit_adjust_posthoc",
    "existing_tau": "tau_norm",
    "means": "ncm",
    "balanced": "balanced_softmax",
    "adjusted": "logit_adjust_posthoc",
    "tau": "tau_norm",
    "gaussians": "lmd",
}

Setting = Mapping[str, float]
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Problem:
    """Scaled training features, and either validation features or ``folds (N,)`` of training.

    ``groups`` are those of the held-out images. ``head`` is an existing classifier for features
    before ``scaling``; ``mean_images`` is for ``fit``.
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

    ``classifier`` is for unscaled features; ``held_out (M, K)`` are logits of held-out images.
    """

    key: str
    setting: Setting
    classifier: Linear
    held_out: NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """One classifier of each kind, and the ``best`` of the candidates."""

    tried: Mapping[str, Chosen]
    best: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Calibrated:
    """The shipped classifier, its predictions, and how it was chosen.

    ``mix`` is the class mix that the probabilities answer for. If the choice was ``crossed``, the
    predictions of ``validation`` are those of training images, each by a classifier that has not
    seen it.
    """

    classifier: FeatureClassifier
    outcome: Outcome
    predictions: Predictions
    crossed: bool
    mix: Kind = "uniform"


def solve(
    data: FeatureTable, *, seed: int = 0, tick: Tick = lambda done, total: None
) -> Calibrated:
    """Fit, choose and score classifiers; the test part is used only after the choice."""
    table, train = data.table, data.rows("train")
    held, folds = data.rows("validation"), None
    if not len(held):
        folds = grouped_folds(table.take(train), seed=seed)
        held = train[folds >= 0]
    outcome = calibrate_features(_problem(data, held, folds, seed), tick)
    counts = table.part("train").counts()
    best = outcome.tried[outcome.best]
    mix = mix_of(best, data.mix)
    labels = table.labels[held]
    weights = mix_weights(labels, class_mix(mix, counts))
    temperature = fit_temperature(best.held_out, labels, weights)
    weight, bias = best.classifier.weight.numpy(), best.classifier.bias.numpy()
    if data.single:
        weight, bias = (a.astype(np.float32).astype(np.float64) for a in (weight, bias))
    test = data.rows("test")
    classifier = FeatureClassifier(
        table.classes,
        weight,
        bias,
        temperature,
        class_mix(mix, counts),
        counts,
        _candidates(data, held, test, outcome, crossed=folds is not None),
    )
    held_out = softmax(best.held_out / temperature)
    if folds is None:
        held_out = classifier.predict_proba(data.features[held])
    parts: dict[Part, PartPredictions] = {"validation": _part(data, held, held_out)}
    if len(test):
        parts["test"] = _part(data, test, classifier.predict_proba(data.features[test]))
    predictions = Predictions(table.classes, parts)
    return Calibrated(classifier, outcome, predictions, folds is not None, mix)


def mix_of(best: Chosen, before: Kind) -> Kind:
    """Return the nearer of the two mixes that a classifier answers for.

    Its τ says how far its logits are moved from the mix of training images to equal classes.
    """
    start = before if best.key.startswith("existing") else "training"
    return "training" if start == "training" and best.setting.get("tau", 1.0) < 0.5 else "uniform"


def _problem(
    data: FeatureTable, held: NDArray[np.int64], folds: NDArray[np.int64] | None, seed: int
) -> Problem:
    table, train = data.table, data.rows("train")
    scaling = Scaling.of(torch.from_numpy(data.features[train]), data.widths)

    def rows(index: NDArray[np.int64]) -> Rows:
        scaled = scaling.apply(torch.from_numpy(data.features[index]))
        return Rows(scaled, torch.from_numpy(table.labels[index]))

    head = None
    if data.weight is not None and data.bias is not None:
        head = Linear.of(torch.from_numpy(data.weight), torch.from_numpy(data.bias))
    return Problem(
        classes=len(table.classes),
        scaling=scaling,
        train=rows(train),
        validation=rows(held) if folds is None else None,
        folds=folds,
        groups=None if table.groups is None else table.groups[held],
        head=head,
        mean_images=data.mean_images,
        seed=seed,
    )


def calibrate_features(problem: Problem, tick: Tick = lambda done, total: None) -> Outcome:
    """Fit all candidates, choose one of each kind and the best kind on held-out images.

    Of those within one standard error of the best balanced accuracy, the most regularised is
    chosen, and then the simplest kind. The plain regression has the penalty with the least
    cross-entropy.
    """
    note = fits.no_room_for_gaussians(problem.classes, problem.train.features.shape[1])
    pairs = () if note else fits.PAIRS
    trials, labels = _trials(problem, pairs, tick)

    def held_out(key: str, setting: Setting) -> Tensor:
        logits = torch.empty(len(labels), problem.classes, dtype=torch.float64)
        for fitted, rows, features in trials:
            logits[rows] = _classifier(problem, fitted, key, setting).logits(features)
        return logits

    true = labels.numpy()
    plain = {p: held_out("plain", {"penalty": p}) for p in fits.PENALTIES}
    penalty = min(plain, key=lambda p: F.cross_entropy(plain[p], labels).item())
    chosen: dict[str, Setting] = {"plain": {"penalty": penalty}}
    correct: dict[str, Correct] = {}
    scores: dict[str, float] = {}
    for key, settings in _settings(problem, penalty, pairs).items():
        predicted = [held_out(key, setting).argmax(1).numpy() for setting in settings]
        hits = [labels == true for labels in predicted]
        values = [mean_recall(true, labels) for labels in predicted]
        i = simplest(hits, values, true, problem.groups)
        chosen[key], correct[key], scores[key] = settings[i], hits[i], values[i]
    keys = list(correct)
    best = keys[simplest(list(correct.values()), list(scores.values()), true, problem.groups)]
    final = _final(problem, chosen, trials[0][0] if problem.validation is not None else None)
    tick(len(trials) + 1, len(trials) + 1)
    tried = {}
    for key, setting in chosen.items():
        classifier = _classifier(problem, final, key, setting)
        if problem.validation is not None:
            logits = classifier.logits(problem.validation.features)
        else:
            logits = held_out(key, setting)
        tried[key] = Chosen(key, setting, problem.scaling.fold(classifier), logits.numpy())
    return Outcome(tried, best, (note,) if note else ())


def _settings(problem: Problem, penalty: float, pairs: Sequence[Pair]) -> dict[str, list[Setting]]:
    """List the settings of each candidate, from strong to weak regularisation.

    ``penalty`` is that of the plain regression. Adjusting a plain regression with τ = 1 is what
    theory asks for; an existing classifier is changed as little as possible.
    """
    taus = decoupling.TAUS
    settings: dict[str, list[Setting]] = {}
    # An existing classifier may have been trained on the rows of all folds.
    if problem.head is not None and problem.validation is not None:
        settings["existing_adjusted"] = [{"tau": tau} for tau in taus]
        settings["existing_tau"] = [{"tau": tau} for tau in taus]
    settings["means"] = [{}]
    settings["balanced"] = [{"penalty": p} for p in fits.PENALTIES]
    nearest = sorted(taus, key=lambda tau: (abs(tau - 1), tau))
    settings["adjusted"] = [{"penalty": penalty, "tau": tau} for tau in nearest]
    settings["tau"] = [{"penalty": penalty, "tau": tau} for tau in taus]
    if pairs:
        settings["gaussians"] = [
            {"shrinkage": shrinkage, "penalty": p} for shrinkage, p in sorted(pairs, reverse=True)
        ]
    return settings


def _classifier(problem: Problem, fitted: Fits, key: str, setting: Setting) -> Linear:
    """Return the classifier of scaled features with a setting."""
    tau = setting.get("tau", 1.0)
    if key == "means":
        return fitted.means
    if key == "gaussians":
        return fitted.gaussians[setting["shrinkage"], setting["penalty"]]
    if key.startswith("existing"):
        assert problem.head is not None
        head = problem.head
        if key == "existing_adjusted":
            return problem.scaling.unfold(head).adjusted(fitted.counts, tau)
        # The norms are those before scaling; τ-norm adds no prior.
        return problem.scaling.unfold(Linear.of(decoupling.tau_normalise(head.weight, tau)))
    plain = fitted.regressions[setting["penalty"]]
    if key == "tau":
        return Linear.of(decoupling.tau_normalise(plain.weight, tau))
    return plain if key == "plain" else plain.adjusted(fitted.counts, tau)


def _trials(
    problem: Problem, pairs: Sequence[Pair], tick: Tick
) -> tuple[list[tuple[Fits, Tensor, Tensor]], Tensor]:
    """Rough fits, each with the rows and features held out from it, and all held-out labels."""
    train, validation = problem.train, problem.validation

    def rough(rows: Rows) -> Fits:
        return fits.fit(
            rows,
            problem.classes,
            pairs=pairs,
            mean_images=problem.mean_images,
            seed=problem.seed,
        )

    if validation is not None:
        tick(0, 2)
        fitted = rough(train)
        tick(1, 2)
        every = torch.arange(len(validation.labels))
        return [(fitted, every, validation.features)], validation.labels
    assert problem.folds is not None
    folds = torch.from_numpy(problem.folds)
    held = folds >= 0
    place = held.cumsum(0) - 1
    numbers = folds[held].unique().tolist()
    trials = []
    for done, number in enumerate(numbers):
        tick(done, len(numbers) + 1)
        out = folds == number
        fitted = rough(Rows(train.features[~out], train.labels[~out]))
        trials.append((fitted, place[out], train.features[out]))
    tick(len(numbers), len(numbers) + 1)
    return trials, train.labels[held]


def _final(problem: Problem, chosen: Mapping[str, Setting], before: Fits | None) -> Fits:
    """Exact fits on all training images, for the chosen settings alone."""
    penalties = {chosen[key]["penalty"] for key in ("plain", "balanced")}
    gaussians = chosen.get("gaussians")
    return fits.fit(
        problem.train,
        problem.classes,
        sorted(penalties),
        [(gaussians["shrinkage"], gaussians["penalty"])] if gaussians else [],
        mean_images=problem.mean_images,
        seed=problem.seed,
        before=before or Fits(torch.zeros(0), {}, {}, Linear.of(torch.zeros(0, 0))),
    )


def _part(
    data: FeatureTable, rows: NDArray[np.int64], probabilities: NDArray[Any]
) -> PartPredictions:
    table = data.table.take(rows)
    probabilities = probabilities.astype(np.float32)
    return PartPredictions(table.ids, table.labels, probabilities, table.group_numbers())


def _candidates(
    data: FeatureTable,
    held: NDArray[np.int64],
    test: NDArray[np.int64],
    outcome: Outcome,
    *,
    crossed: bool,
) -> list[Candidate]:
    """Every classifier with its balanced accuracy where the choice was made, and on test.

    If held-out images are ``crossed`` ones of training, the existing classifier may know them.
    """
    candidates = []
    for key, title in TITLES.items():
        tried = outcome.tried.get(key)
        if tried is None and (key != "existing" or data.existing_logits(held) is None):
            continue
        held_out = tested = None
        if tried is not None:
            held_out = _measure(data, held, tried.held_out)
        elif not crossed:
            held_out = _measure(data, held, data.existing_logits(held))
        if len(test):
            tested = _measure(data, test, _test_logits(data, test, tried))
        _, worst_class, worst_recall = tested or held_out or (None, None, None)
        candidates.append(
            Candidate(
                key=key,
                title=title,
                chosen=key == outcome.best,
                settings={} if tried is None else dict(tried.setting),
                held_out=held_out[0] if held_out else None,
                test=tested[0] if tested else None,
                worst_class=worst_class,
                worst_recall=worst_recall,
            )
        )
    return candidates


def _test_logits(
    data: FeatureTable, rows: NDArray[np.int64], tried: Chosen | None
) -> NDArray[Any] | None:
    if tried is None:
        return data.existing_logits(rows)
    return tried.classifier.logits(torch.from_numpy(data.features[rows]).double()).numpy()


def _measure(
    data: FeatureTable, rows: NDArray[np.int64], logits: NDArray[Any] | None
) -> tuple[Estimate, str, float] | None:
    """Balanced accuracy with its interval, and the class with the lowest recall."""
    if logits is None:
        return None
    table = data.table.take(rows)
    sample = Sample(table.labels, softmax(logits), groups=table.group_numbers())
    recall = sample.plain.recall[0]
    worst = int(np.nanargmin(recall))
    accuracy = metric_estimates(sample, [METRIC])[METRIC]
    return accuracy, table.classes[worst], float(recall[worst])
