"""The way of one calibration: features in parts, candidates, the chosen one, its predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.data.splits import grouped_folds
from lmd.frozen.choose import (
    TITLES,
    Chosen,
    Linear,
    Outcome,
    Problem,
    Rows,
    Scaling,
    calibrate_features,
)
from lmd.frozen.classifier import FeatureClassifier
from lmd.frozen.features import FeatureTable
from lmd.frozen.record import Candidate
from lmd.runs.predictions import PartPredictions, Predictions
from lmd.runs.record import Part
from lmd.scoring.calibration import fit_temperature
from lmd.scoring.estimates import Estimate
from lmd.scoring.proportions import class_mix, mix_weights
from lmd.scoring.sample import Sample
from lmd.scoring.scores import metric_estimates

MEASURE = "balanced_accuracy"
Tick = Callable[[int, int], None]
Mix = Literal["uniform", "training"]


@dataclass(frozen=True)
class Calibrated:
    """The shipped classifier, its predictions, and how it was chosen.

    ``mix`` is the class mix that the probabilities answer for. ``crossed`` is true if the choice
    was by cross-validation; the predictions of ``validation`` are then those of training images,
    each by a classifier that has not seen it.
    """

    classifier: FeatureClassifier
    outcome: Outcome
    predictions: Predictions
    crossed: bool
    mix: Mix = "uniform"


def solve(
    data: FeatureTable,
    *,
    widths: Sequence[int] | None = None,
    mean_images: float = 0.0,
    seed: int = 0,
    single: bool = False,
    mix: Mix = "training",
    tick: Tick | None = None,
) -> Calibrated:
    """Fit, choose and score classifiers of ``data``; the test part is used after the choice alone.

    ``widths`` are those of the encoder's levels, ``mean_images`` shrinks the means of the class
    Gaussians. ``single`` rounds the classifier to float32, as an image model has it. ``mix`` is
    the class mix that the existing classifier answers for, if there is one.
    """
    table, train = data.table, data.rows("train")
    held, folds = data.rows("validation"), None
    if not len(held):
        folds = grouped_folds(table.take(train), seed=seed)
        held = train[folds >= 0]
    outcome = calibrate_features(
        _problem(data, held, folds, widths, mean_images, seed), tick or _no
    )
    counts = table.part("train").counts()
    best = outcome.tried[outcome.best]
    found_mix = mix_of(best, mix)
    labels, prior = table.labels[held], class_mix(found_mix, counts)
    temperature = fit_temperature(best.held_out, labels, mix_weights(labels, prior))
    weight, bias = best.classifier.weight.numpy(), best.classifier.bias.numpy()
    if single:
        weight, bias = (a.astype(np.float32).astype(np.float64) for a in (weight, bias))
    made = FeatureClassifier(table.classes, weight, bias, temperature, prior, counts)
    held_out = _softmax(best.held_out / temperature)
    if folds is None:
        held_out = made.predict_proba(data.features[held])
    parts: dict[Part, PartPredictions] = {"validation": _part(data, held, held_out)}
    test = data.rows("test")
    if len(test):
        parts["test"] = _part(data, test, made.predict_proba(data.features[test]))
    candidates = _candidates(data, held, test, outcome, crossed=folds is not None)
    found = replace(made, candidates=candidates)
    predictions = Predictions(table.classes, parts)
    return Calibrated(found, outcome, predictions, folds is not None, found_mix)


def mix_of(best: Chosen, before: Mix) -> Mix:
    """The nearer of the two mixes that a classifier answers for.

    Its τ says how far its logits are moved from the mix of training images to equal classes.
    """
    start = before if best.key.startswith("existing") else "training"
    return "training" if start == "training" and best.setting.get("tau", 1.0) < 0.5 else "uniform"


def _problem(
    data: FeatureTable,
    held: NDArray[np.int64],
    folds: NDArray[np.int64] | None,
    widths: Sequence[int] | None,
    mean_images: float,
    seed: int,
) -> Problem:
    table, train = data.table, data.rows("train")
    features = torch.from_numpy(data.features[train])
    scaling = Scaling.of(features, widths)

    def rows(index: NDArray[np.int64]) -> Rows:
        scaled = scaling.apply(torch.from_numpy(data.features[index]))
        return Rows(scaled, torch.from_numpy(table.labels[index]))

    head = None
    if data.weight is not None and data.bias is not None:
        head = Linear.of(torch.from_numpy(data.weight), torch.from_numpy(data.bias))
    return Problem(
        classes=len(table.classes),
        scaling=scaling,
        train=Rows(scaling.apply(features), torch.from_numpy(table.labels[train])),
        validation=rows(held) if folds is None else None,
        folds=folds,
        groups=None if table.groups is None else table.groups[held],
        head=head,
        mean_images=mean_images,
        seed=seed,
    )


def _no(done: int, total: int) -> None:
    """No progress is shown."""


def _softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True), dtype=np.float64)


def _part(
    data: FeatureTable, rows: NDArray[np.int64], probabilities: NDArray[Any]
) -> PartPredictions:
    return PartPredictions(
        data.table.ids[rows],
        data.table.labels[rows],
        probabilities.astype(np.float32),
        _numbered(data, rows),
    )


def _numbered(data: FeatureTable, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Groups as numbers, which do not show the identity of patients."""
    groups = data.table.groups
    if groups is None:
        return None
    return np.unique(groups[rows], return_inverse=True)[1].astype(np.int64)


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

    def of(key: str, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        if key == "existing":
            if data.weight is not None and data.bias is not None:
                return np.asarray(data.features[rows] @ data.weight.T + data.bias)
            return None if data.logits is None else data.logits[rows].astype(np.float64)
        tried = outcome.tried.get(key)
        if tried is None or rows is held:
            return None if tried is None else tried.held_out
        return tried.classifier.logits(torch.from_numpy(data.features[rows]).double()).numpy()

    found = []
    for key, title in TITLES.items():
        logits = of(key, held)
        if logits is None:
            continue
        reported = tested = None
        if key != "existing" or not crossed:
            reported = _measured(data, held, logits)
        if len(test) and (on_test := of(key, test)) is not None:
            tested = _measured(data, test, on_test)
        worst = (tested or reported or (None, (None, None)))[1]
        found.append(
            Candidate(
                key=key,
                title=title,
                chosen=key == outcome.best,
                settings=_settings(outcome, key),
                held_out=reported[0] if reported else None,
                test=tested[0] if tested else None,
                worst_class=worst[0],
                worst_recall=worst[1],
            )
        )
    return found


def _settings(outcome: Outcome, key: str) -> dict[str, float]:
    setting: Mapping[str, float] = outcome.tried[key].setting if key in outcome.tried else {}
    return dict(setting)


def _measured(
    data: FeatureTable, rows: NDArray[np.int64], logits: NDArray[Any]
) -> tuple[Estimate, tuple[str, float]]:
    """Balanced accuracy with its interval, and the class with the lowest recall."""
    sample = Sample(data.table.labels[rows], _softmax(logits), groups=_numbered(data, rows))
    recall = sample.plain.recall[0]
    worst = int(np.nanargmin(recall))
    measured = metric_estimates(sample, [MEASURE])[MEASURE]
    return measured, (data.table.classes[worst], float(recall[worst]))
