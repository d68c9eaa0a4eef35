"""The numbers of a record, from a trained model or from predictions on disk."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmd.decisions.decide import Decide
from lmd.decisions.numbers import decisions_of
from lmd.decisions.policy import Basis
from lmd.fit.prepare import Ready
from lmd.runs.predictions import PARTS, PartPredictions, Predictions
from lmd.runs.record import Part, Record
from lmd.scoring.calibration import calibration, fit_temperature
from lmd.scoring.proportions import mix_weights
from lmd.scoring.sample import Sample
from lmd.scoring.scores import definitions, score
from lmd.training import Trainer
from lmd.training.loop import not_finite


def predict_parts(ready: Ready, trainer: Trainer) -> tuple[Predictions, float]:
    """Predictions of the shipped model for validation and test, and its temperature.

    The temperature is fitted on validation. Several processes share the images.
    """
    images = {part: ready.data.part(part) for part in PARTS}
    # As the shipped model computes them.
    logits = {part: trainer.predict(of, exact=True) for part, of in images.items() if len(of)}
    if not all(found.isfinite().all() for found in logits.values()):
        raise not_finite("at the end of training")
    temperature = 1.0
    if "validation" in logits:
        temperature = _temperature(ready, logits["validation"], images["validation"].labels)
    parts = {}
    for part, found in logits.items():
        table, groups = ready.data.table.part(part), None
        if table.groups is not None:
            # Numbers instead of names protect the identity of patients.
            groups = np.unique(table.groups, return_inverse=True)[1]
        probabilities = (found / temperature).softmax(1).numpy()
        parts[part] = PartPredictions(table.ids, images[part].labels, probabilities, groups)
    return Predictions(ready.data.table.classes, parts), temperature


def _temperature(ready: Ready, logits: Tensor, labels: NDArray[np.int64]) -> float:
    """The temperature fitted to validation, weighted to the class mix that the method assumes."""
    mix = np.ones(logits.shape[1])
    if ready.method.mix(ready.request.settings) == "training":
        mix = ready.data.counts("train").astype(np.float64)
    return fit_temperature(logits.numpy(), labels, mix_weights(labels, mix))


def _temperatures(
    record: Record, part: Part, labels: NDArray[np.int64]
) -> float | NDArray[np.float64] | None:
    """What the logits were divided by: one number, or ``(N, 1)``, as each fold has its own.

    They are in the order of a ``Sample``, whose rows are sorted by class. ``None`` for means over
    mirror images, which have no logits.
    """
    if record.tta is not None:
        return None
    if record.folds is None or part != "test":
        return record.model.temperature
    folds = record.folds.runs
    images = [fold.images["test"] for fold in folds]
    each: NDArray[np.float64] = np.repeat([fold.temperature for fold in folds], images)
    return each[np.argsort(labels, kind="stable"), None]


def scored(
    record: Record,
    predictions: Predictions,
    *,
    resamples: int = 1000,
    decide: Decide = Decide(),
) -> Record:
    """Return the record with the numbers that follow from predictions and decisions.

    Of an external validation only the external images are scored: the validation part, which gives
    the prediction sets, is that of the run.
    """
    basis = Basis.of_run(record, predictions)
    decisions = decisions_of(record, predictions, basis, decide)
    external = record.external is not None
    parts = {part: of for part, of in predictions.parts.items() if part == "test" or not external}
    found = {
        part: score(
            of.labels,
            of.probabilities,
            predictions.classes,
            record.tiers,
            record.data.counts["train"],
            groups=of.groups,
            resamples=resamples,
            part="external" if external else part,
        )
        for part, of in parts.items()
    }
    grouped = any(of.groups is not None for of in parts.values())
    return record.replaced(
        metrics={part: one.metrics for part, one in found.items()},
        per_class={part: one.per_class for part, one in found.items()},
        confusion={part: one.confusion for part, one in found.items()},
        calibration={
            part: calibration(
                Sample(of.labels, of.probabilities, groups=of.groups),
                _temperatures(record, part, of.labels),
                basis.prior,
                resamples=resamples,
            )
            for part, of in parts.items()
        },
        **decisions,
        resamples=resamples,
        definitions=definitions(resamples, grouped=grouped),
        notes=[
            *record.data.notes,
            *record.method.notes,
            *(note for one in found.values() for note in one.notes),
        ],
    )
