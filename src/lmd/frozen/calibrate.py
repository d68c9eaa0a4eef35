"""``lmd calibrate``: a balanced classifier on the features of an encoder that stays as it is."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lmd import __version__
from lmd.base.device import choose_device
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.dataset import Dataset
from lmd.data.table import PARTS
from lmd.decisions.shipped import answers_of
from lmd.explain.features import Kept, flag_of
from lmd.fit.recording import NO_VALIDATION, commit, data_info, machine, now, scored
from lmd.frozen.choose import PAPERS, TITLES, Calibrated, solve
from lmd.frozen.classifier import NAME, FeatureClassifier
from lmd.frozen.encode import KEY, Asked, Source, open_source
from lmd.frozen.features import feature_table
from lmd.model import save_model
from lmd.report.card import write_card
from lmd.report.page import write_report
from lmd.runs.folder import Run
from lmd.runs.record import MethodInfo, ModelInfo, Record, Request
from lmd.scoring.tiers import assign_tiers

RULE = (
    "of the classifiers within one standard error of the best balanced accuracy, the simplest and "
    "most regularised, {where}"
)


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
    """A balanced classifier of ``features (N, C)`` with ``labels (N,)``, integers or strings.

    ``split (N,)`` has train, validation or test; the choice is made on validation rows, or by
    cross-validation without them. Rows with the same entry in ``groups (N,)`` are of one patient or
    lesion. ``weight (K, C)`` and ``bias (K,)``, or ``logits (N, K)``, are of the classifier that
    exists already.
    """
    given = {
        "features": features,
        "labels": labels,
        "split": split,
        "groups": groups,
        "classes": classes,
        "weight": weight,
        "bias": bias,
        "logits": logits,
    }
    arrays = {key: _array(value) for key, value in given.items() if value is not None}
    return solve(feature_table(arrays, "calibrate"), seed=seed).classifier


def _array(values: Any) -> NDArray[Any]:
    """An array; one of Python strings, as pandas keeps them, becomes an array of text."""
    found: NDArray[Any] = np.asarray(values)
    if found.dtype == object and all(isinstance(value, str) for value in found.flat):
        return found.astype(np.str_)
    return found


def calibrate_run(
    source: str | Path,
    *,
    asked: Asked | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
    command: str | None = None,
) -> Run:
    """Calibrate a file of features, a run or an encoder, and write a complete run folder."""
    asked = asked or Asked()
    here, begun = choose_device(device), now()
    folder = Path(out) if out is not None else Path("runs") / f"{Path(source).stem}-calibrated"
    Run.check_free(folder, overwrite=overwrite, resumable=False)
    if folder.exists() and folder.resolve() == Path(source).resolve():
        raise LmdError(f"--out: {folder} is the run itself and would be lost: give another folder")
    words = ["lmd", "calibrate", str(source), *asked.words(), "--seed", str(seed)]
    with Display(quiet=quiet) as display:
        started = time.perf_counter()
        found = open_source(str(source), asked, here, display)
        encoded = time.perf_counter()
        display.start("calibrating", 1)
        done = solve(found.data, seed=seed, tick=display.step)
        display.stop()
    seconds = {"features": encoded - started, "fit": time.perf_counter() - encoded}
    typed = command or shlex.join([*words, *(["--out", str(out)] if out is not None else [])])
    run = Run(folder)
    record = _record(run, found, done, typed, here)
    record = scored(record, done.predictions).replaced(
        created=begun, finished=now(), status="finished",
        timings={key: round(value, 3) for key, value in seconds.items()},
    )  # fmt: skip
    flag = _flag(found)
    record = record.replaced(novelty=flag.info)
    Run.create(folder, overwrite=overwrite)
    _write(run, found, done, record, flag)
    return run


def _flag(found: Source) -> Kept:
    """The flag for images unlike the training images, of a complete image model."""
    if found.model is None:
        return Kept()
    features, table = found.data.features, found.data.table
    own, *others = (found.data.rows(part) for part in PARTS)
    held_out = {part: features[rows] for part, rows in zip(PARTS[1:], others, strict=True)}
    groups = None if table.groups is None else np.unique(table.groups, return_inverse=True)[1]
    return flag_of(
        features[own], table.labels[own], held_out, None if groups is None else groups[others[1]]
    )


def _record(
    run: Run, found: Source, done: Calibrated, command: str, device: torch.device
) -> Record:
    table, best = found.data.table, done.outcome.best
    counts = table.part("train").counts()
    tiers = found.tiers or assign_tiers(counts, table.classes, "thirds")
    request = found.request or Request(data=found.origin, method=KEY)
    data = data_info(request, Dataset(table, tiers, found.skipped))
    notes = [note for note in data.notes if note != NO_VALIDATION] + found.notes
    where = "by cross-validation" if done.crossed else "on the validation part"
    chosen = done.outcome.tried[best]
    values = np.concatenate([chosen.classifier.weight.flatten(), chosen.classifier.bias])
    size = values.size
    if found.model is not None:
        size += sum(p.numel() for p in found.model.encoder.parameters())
    return Record(
        status="running",
        name=run.path.name,
        created=now(),
        lmd_version=__version__,
        commit=commit(),
        command=command,
        request=request,
        method=MethodInfo(
            key=KEY,
            title=f"{TITLES[best]} on frozen features",
            paper=PAPERS[best],
            note="",
            profile="default",
            settings={},
            notes=[*_notes(done, counts, table.classes), *done.outcome.notes],
            chosen=dict(chosen.setting),
        ),
        protocol={},
        data=data.model_copy(update={"source": found.origin, "notes": notes}),
        tiers=tiers,
        model=ModelInfo(
            backbone=found.encoder,
            weights=found.weights,
            head="linear",
            feature_dim=found.data.features.shape[1],
            parameters=size,
            selected=RULE.format(where=where),
            levels=[] if found.model is None else list(found.model.levels),
            temperature=done.classifier.temperature,
            prior=done.mix,
        ),
        machine=machine(device),
        candidates=list(done.classifier.candidates),
    )


def _notes(done: Calibrated, counts: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    notes = []
    if done.crossed:
        notes.append(
            "There is no validation part: the classifier was chosen by cross-validation, and the "
            "numbers called validation are of training images, each predicted by a classifier "
            "that has not seen it."
        )
        if any(row.held_out is None for row in done.classifier.candidates):
            notes.append(
                "The existing classifier has no cross-validated number: it may have been trained "
                "on these images."
            )
    if "test" not in done.predictions.parts:
        notes.append(
            "There is no test part: the numbers are of the images on which the classifier was "
            "chosen, and somewhat too good."
        )
    single = [name for name, n in zip(classes, counts, strict=True) if n == 1]
    if single:
        notes.append(f"Only one training image of {', '.join(single)}: its spread is a guess.")
    return notes


def _write(run: Run, found: Source, done: Calibrated, record: Record, flag: Kept) -> None:
    """Write the files of a finished calibration, the record and the report last."""
    if found.model is not None and found.spec is not None:
        prior, held_out = answers_of(record, done.predictions)
        classifier = torch.nn.Linear(done.classifier.weight.shape[1], len(done.classifier.classes))
        with torch.no_grad():
            classifier.weight.copy_(torch.from_numpy(done.classifier.weight))
            classifier.bias.copy_(torch.from_numpy(done.classifier.bias))
        found.model.classifier = classifier
        spec = replace(
            found.spec,
            head="linear",
            method=record.method.title,
            class_counts=tuple(int(n) for n in done.classifier.class_counts),
            temperature=done.classifier.temperature,
            prior=prior,
            held_out=held_out,
            lmd_version=__version__,
        )
        save_model(found.model, run.path, spec)
        flag.write(run.path)
    done.classifier.save(run.path / NAME)
    run.write_predictions(done.predictions)
    run.write_record(record)
    write_report(run)
    write_card(record, run.path)
