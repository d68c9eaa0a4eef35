"""``lmd calibrate``: a balanced classifier on the features of an encoder that stays as it is."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lmd import __version__
from lmd.base.distributed import choose_device
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.table import PARTS
from lmd.decisions.policy import answers_of
from lmd.fit.recording import NO_VALIDATION, data_info, new_record, now, scored
from lmd.frozen.choose import CLASSIFIERS, Chosen, Selection, Tick, calibrate_features
from lmd.frozen.classifier import NAME, FeatureClassifier, softmax
from lmd.frozen.encode import KEY, Encoded, Encoding, open_source
from lmd.frozen.features import FeatureTable, feature_table
from lmd.frozen.record import Candidate
from lmd.model import Model
from lmd.model.files import ModelSpec, save_model
from lmd.predict.novelty import fit_flag
from lmd.report.card import write_pages
from lmd.runs.folder import PartPredictions, Predictions, Run
from lmd.runs.record import MethodInfo, ModelInfo, Part, Record
from lmd.scoring.estimates import Estimate
from lmd.scoring.metrics import Sample
from lmd.scoring.proportions import Kind, class_mix, fit_temperature, mix_weights
from lmd.scoring.scores import metric_estimates


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


def calibrate(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    split: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    seed: int = 0,
) -> FeatureClassifier:
    """Fit a balanced classifier of ``features (N, C)`` with ``labels (N,)``, integers or strings.

    ``split (N,)`` has train, validation or test; the choice is made on validation rows, or by
    cross-validation without them. Rows with the same entry in ``groups (N,)`` are of one patient or
    lesion. ``weight (K, C)`` and ``bias (K,)``, or ``logits (N, K)``, belong to an existing
    classifier.
    """
    arguments = {
        "features": features,
        "labels": labels,
        "split": split,
        "groups": groups,
        "classes": classes,
        "weight": weight,
        "bias": bias,
        "logits": logits,
    }
    arrays = {key: _array(value) for key, value in arguments.items() if value is not None}
    return solve(feature_table(arrays, "calibrate"), seed=seed).classifier


def _array(values: Any) -> NDArray[Any]:
    """Return an array; Python strings, as pandas has them, become an array of text."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        return array.astype(np.str_)
    return array


def calibrate_run(
    origin: str | Path,
    encoding: Encoding | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Calibrate a file of features, a run or an encoder, and write a complete run folder."""
    encoding = encoding or Encoding()
    here, created = choose_device(device), now()
    folder = Path(out) if out is not None else Path("runs") / f"{Path(origin).stem}-calibrated"
    Run.check_free(folder, overwrite=overwrite, resumable=False)
    if folder.exists() and folder.resolve() == Path(origin).resolve():
        raise LmdError(f"--out: {folder} is the run itself and would be lost: give another folder")
    command = ["lmd", "calibrate", str(origin), *encoding.words(), "--seed", str(seed)]
    command += ["--out", str(out)] if out is not None else []
    with Display(quiet=quiet) as display:
        started = time.perf_counter()
        encoded = open_source(str(origin), encoding, here, display)
        middle = time.perf_counter()
        display.start("calibrating", 1)
        calibrated = solve(encoded.features, seed=seed, tick=display.step)
        display.stop()
    seconds = {"features": middle - started, "fit": time.perf_counter() - middle}
    novelty = info = None
    if encoded.model is not None:
        table, rows = encoded.features.table, encoded.features.rows
        parts = {part: encoded.features.features[rows(part)] for part in PARTS}
        groups = table.part("test").group_numbers()
        novelty, info = fit_flag(parts, table.part("train").labels, groups)
    about = _record_parts(encoded, calibrated)
    record = new_record(folder.name, shlex.join(command), here, **about)
    record = scored(record, calibrated.predictions).replaced(
        created=created,
        finished=now(),
        status="finished",
        timings={key: round(value, 3) for key, value in seconds.items()},
        novelty=info,
    )
    run = Run.create(folder, overwrite=overwrite)
    if encoded.model is not None and encoded.spec is not None:
        digest = _write_model(run, encoded.model, encoded.spec, calibrated, record)
        if novelty is not None:
            novelty.save(run.path, digest)
    calibrated.classifier.save(run.path / NAME)
    run.write_predictions(calibrated.predictions)
    run.write_record(record)
    write_pages(run)
    return run


def solve(
    data: FeatureTable, *, seed: int = 0, tick: Tick = lambda done, total: None
) -> Calibrated:
    """Fit, choose and score classifiers; the test part is used only after the choice."""
    selection, table = Selection(data, seed), data.table
    tried, key, notes = calibrate_features(selection, tick)
    best, crossed = tried[key], selection.folds is not None
    labels, counts = table.labels[selection.index], table.part("train").counts()
    mix = mix_of(best, data.mix)
    prior = class_mix(mix, counts)
    temperature = fit_temperature(best.held_out, labels, mix_weights(labels, prior))
    weight, bias = best.classifier.weight.numpy(), best.classifier.bias.numpy()
    if data.single:
        weight, bias = (a.astype(np.float32).astype(np.float64) for a in (weight, bias))
    indices: dict[Part, NDArray[np.int64]] = {
        "validation": selection.index,
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


def _candidates(
    data: FeatureTable,
    indices: Mapping[Part, NDArray[np.int64]],
    tried: Mapping[str, Chosen],
    best: str,
    *,
    crossed: bool,
) -> list[Candidate]:
    """Score every classifier where the choice was made, and on test."""
    held, test = indices["validation"], indices["test"]
    candidates = []
    features = torch.from_numpy(data.features[test]).double()
    for key, (title, _) in CLASSIFIERS.items():
        chosen = tried.get(key)
        logits: list[NDArray[Any] | None]
        if chosen is not None:
            logits = [chosen.held_out, chosen.classifier.logits(features).numpy()]
        elif key == "existing" and (existing := data.existing_logits(held)) is not None:
            # It may have been trained on the images of a cross-validation.
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
    accuracy = metric_estimates(sample, ["balanced_accuracy"])["balanced_accuracy"]
    return accuracy, table.classes[worst], float(recall[worst])


def _record_parts(encoded: Encoded, calibrated: Calibrated) -> dict[str, Any]:
    """Return what the record has about the data, the classifiers and the model."""
    classifier, best = calibrated.classifier, calibrated.best
    title, paper = CLASSIFIERS[best.key]
    data = data_info(encoded.request, encoded.data)
    notes = [note for note in data.notes if note != NO_VALIDATION]
    parameters, levels = classifier.weight.size + classifier.bias.size, list[str]()
    if encoded.model is not None:
        parameters += sum(p.numel() for p in encoded.model.encoder.parameters())
        levels = list(encoded.model.levels)
    where = "by cross-validation" if calibrated.crossed else "on the validation part"
    return {
        "request": encoded.request,
        "method": MethodInfo(
            key=KEY,
            title=f"{title} on frozen features",
            paper=paper,
            note="",
            profile="default",
            settings={},
            notes=[*_notes(calibrated), *calibrated.notes],
            chosen=dict(best.setting),
        ),
        "protocol": {},
        "data": data.model_copy(update={"notes": [*notes, *encoded.notes]}),
        "tiers": encoded.data.tiers,
        "model": ModelInfo(
            backbone=encoded.encoder,
            weights=encoded.weights,
            head="linear",
            feature_dim=classifier.weight.shape[1],
            parameters=parameters,
            selected="of the classifiers within one standard error of the best balanced accuracy, "
            f"the simplest and most regularised, {where}",
            levels=levels,
            temperature=classifier.temperature,
            prior=calibrated.mix,
        ),
        "candidates": list(classifier.candidates),
    }


def _notes(calibrated: Calibrated) -> list[str]:
    """Return what to know about the choice."""
    classifier, crossed = calibrated.classifier, calibrated.crossed
    counts = zip(classifier.classes, classifier.class_counts, strict=True)
    single = ", ".join(name for name, images in counts if images == 1)
    notes = {
        "There is no validation part: the classifier was chosen by cross-validation, and the "
        "numbers called validation are of training images, each predicted by a classifier that "
        "has not seen it.": crossed,
        "The existing classifier has no cross-validated number: it may have been trained on these "
        "images.": crossed and any(row.held_out is None for row in classifier.candidates),
        "There is no test part: the numbers are of the images on which the classifier was chosen, "
        "and somewhat too good.": "test" not in calibrated.predictions.parts,
        f"Only one training image of {single}: its spread is a guess.": single,
    }
    return [note for note, applies in notes.items() if applies]


def _write_model(
    run: Run, model: Model, spec: ModelSpec, calibrated: Calibrated, record: Record
) -> str:
    """Write the encoder with its new classifier as an image model; return its digest."""
    classifier = calibrated.classifier
    model.classifier = torch.nn.Linear(classifier.weight.shape[1], len(classifier.weight))
    arrays = {"weight": classifier.weight, "bias": classifier.bias}
    model.classifier.load_state_dict({k: torch.from_numpy(a) for k, a in arrays.items()})
    prior, held_out = answers_of(record, calibrated.predictions)
    new = replace(
        spec,
        head="linear",
        method=record.method.title,
        class_counts=tuple(classifier.class_counts.tolist()),
        temperature=classifier.temperature,
        prior=prior,
        held_out=held_out,
        lmd_version=__version__,
    )
    return save_model(model, run.path, new)
