"""One complete run: open the data, train, score, write."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import BatchNorm2d

from lmd.base.distributed import (
    NotShareable,
    choose_device,
    derive_seed,
    in_turn,
    joined,
    own_device,
    rank,
)
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.text import counted
from lmd.data.checks import quick_check
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Columns, Source
from lmd.data.table import PARTS
from lmd.decisions.policy import answers_of
from lmd.explain.examples import write_examples
from lmd.fit import recording
from lmd.fit.spec import Spec, open_run, resolve
from lmd.fit.tracking import Tracking, checked_trackers
from lmd.methods import DEFAULT, find_method
from lmd.methods.stage import Stages, Task
from lmd.model import Model, Normalise, Preprocessing, build_model
from lmd.model.files import HeldOut, ModelSpec, Prior, save_model
from lmd.predict.engines import TorchEngine
from lmd.predict.novelty import fit_flag
from lmd.report.card import write_card
from lmd.report.page import write_report
from lmd.runs.folder import WRITTEN_AGAIN, Run
from lmd.runs.predictions import PartPredictions, Predictions
from lmd.runs.protocol import Protocol
from lmd.runs.record import HistoryRow, Part, Record
from lmd.scoring.proportions import fit_temperature, mix_weights
from lmd.training.checkpoint import FirstStages
from lmd.training.loop import Trainer, check_finite


def train(
    data: str | Path | None = None,
    *,
    method: str = DEFAULT,
    protocol: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    profile: str = "default",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    skip_bad: bool = False,
    keep_features: bool = False,
    images: bool = True,
    columns: Mapping[str, Any] | None = None,
    device: str = "auto",
    quiet: bool = False,
    first_stages: str | Path | None = None,
    command: str | None = None,
    log: str | Sequence[str] | None = None,
) -> Run:
    """Train one method on one data set and write a complete run folder.

    ``data`` is anything that ``lmd.data.sources.open_table`` accepts; ``settings`` may have keys of
    the protocol and of the method. ``resume`` continues an interrupted run in ``out``, which ends
    with the same weights as without the interruption, and completes the files of a finished one.
    Only one training at a time works in a folder. Runs with the same folder ``first_stages`` train
    a first stage that they share only once. With ``keep_features`` the run folder gets
    ``neighbours.npz``; with ``images``, ``examples.npz`` and the report have pictures of a few test
    images. ``command`` is for the record; by default it is derived from the arguments. ``log``
    names experiment trackers: tensorboard, mlflow or wandb.
    """
    trackers = checked_trackers(log)
    source = Source("" if data is None else data, Columns.of(columns), skip_bad)
    spec = resolve(
        find_method(method), protocol, settings or {}, profile, source,
        keep_features=keep_features, images=images,
    )  # fmt: skip
    return train_spec(
        spec, out, resume=resume, overwrite=overwrite, device=device, quiet=quiet,
        first_stages=first_stages, command=command, trackers=trackers,
    )  # fmt: skip


def train_spec(
    spec: Spec,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    quiet: bool = False,
    first_stages: str | Path | None = None,
    command: str | None = None,
    trackers: Sequence[str] = (),
    model_only: bool = False,
) -> Run:
    """Train what is specified; ``model_only`` leaves out all numbers, pages and pictures."""
    folder = spec.folder if out is None else Path(out)
    here = own_device(choose_device(device))
    with joined(here), ExitStack() as held:
        run, spec, begun = in_turn(
            partial(open_run, held, folder, spec, resume=resume, overwrite=overwrite)
        )
        if begun and in_turn(partial(_complete, run)):
            return run
        display = held.enter_context(Display(quiet=quiet or rank() > 0))
        dataset = plan(spec)
        if not begun:
            spec = in_turn(spec.with_available_weights)
        if command is None:
            command = shlex.join(spec.command() + ([] if out is None else ["--out", str(out)]))
        ready = prepare(spec, dataset, here, display)
        record = in_turn(partial(_start, run, ready, command, begun=begun))
        _announce(ready, record, display)
        known = len(run.read_history()) if resume else 0
        names = trackers if rank() == 0 else ()
        tracking = held.enter_context(Tracking(names, run.path, record, display.say, known))
        trainer = fit(
            run, ready, record, display, resume=resume, first_stages=first_stages,
            watch=tracking.epochs,
        )  # fmt: skip
        display.start("scoring", 2)
        encoded = encode(ready, trainer)
        predictions, temperature = _predict(ready, encoded)
        display.step(1)
        record = recording.trained_record(record, trainer, temperature)
        finish = partial(_finish, run, ready, record, encoded, predictions, model_only=model_only)
        record = in_turn(finish)
        tracking.finish(record)
        display.stop()
    return run


def _complete(run: Run) -> bool:
    """Whether a run is finished and has all its files.

    What a finished run lacks and its other files contain is written again: a run may have been
    killed while its report was written.
    """
    if not run.is_finished():
        return False
    missing = run.missing_files()
    if missing - WRITTEN_AGAIN:
        return False
    if missing and rank() == 0:
        run.write_history(run.record.history)
        _write_pages(run)
    return True


def _write_pages(run: Run) -> None:
    write_report(run)
    write_card(run.record, run.path)


@dataclass(frozen=True)
class Ready:
    """All that training needs; ``seconds`` is the time that decoding took."""

    spec: Spec
    data: Dataset
    model: Model
    preprocessing: Preprocessing
    device: torch.device
    seconds: float

    def stages(self) -> Stages:
        """The stages of the method."""
        counts = torch.from_numpy(self.data.counts("train")).to(self.device)
        task = Task(counts, self.model.classifier.in_features)
        return self.spec.method.start(self.model, task, self.spec.settings)

    def description(
        self, temperature: float, prior: Prior | None = None, held_out: HeldOut | None = None
    ) -> ModelSpec:
        """The description of the shipped model."""
        return ModelSpec(
            classes=self.data.table.classes,
            backbone=self.spec.protocol.backbone,
            head=self.spec.method.head,
            preprocessing=self.preprocessing,
            method=self.spec.method.title,
            feature_dim=self.model.classifier.in_features,
            class_counts=tuple(int(n) for n in self.data.counts("train")),
            temperature=temperature,
            levels=self.model.levels,
            prior=prior,
            held_out=held_out,
        )


def plan(spec: Spec) -> Dataset:
    """Open the data and check all that needs no pixels; several processes take turns."""
    dataset = in_turn(lambda: plan_data(spec.source, spec.protocol))
    parts = dataset.table.parts
    if parts is None or "validation" in parts:
        return dataset
    if not any(stage.needs_validation for stage in spec.method.outline(spec.values)):
        return dataset
    tau = ", or set tau (1 normalises fully)" if "tau" in spec.values else ""
    raise LmdError(
        f"method {spec.method.key!r} learns from validation images, and there are none: split "
        f"off a validation part (--set split=[0.7,0.1,0.2]){tau}"
    )


def prepare(spec: Spec, dataset: Dataset, device: torch.device, display: Display) -> Ready:
    """Build the model, then decode the images; several processes take turns."""
    protocol = spec.protocol
    model, preprocessing = in_turn(
        lambda: build_model(
            protocol.backbone,
            protocol.weights,
            len(dataset.table.classes),
            head=spec.method.head,
            image_size=protocol.image_size,
            seed=derive_seed(protocol.seed, "model"),
        )
    )
    _check_batches(model, protocol)
    started = time.perf_counter()
    data = in_turn(lambda: dataset.decode(display))
    return Ready(spec, data, model, preprocessing, device, time.perf_counter() - started)


def _check_batches(model: Model, protocol: Protocol) -> None:
    if protocol.batch_size == 1 and any(isinstance(m, BatchNorm2d) for m in model.modules()):
        raise LmdError(
            f"setting 'batch_size' must be at least 2 for backbone {protocol.backbone!r}, whose "
            "BatchNorm needs several images; it is 1"
        )


def _start(run: Run, ready: Ready, command: str, *, begun: bool) -> Record:
    """Write the first record, in place of a run that is overwritten.

    The data of a run that has begun must not have changed.
    """
    record = recording.first_record(
        run.path.name, ready.spec, ready.data, ready.model, ready.device, command
    )
    if begun:
        before = run.record
        if not before.data.same_as(record.data):
            raise LmdError(f"the data has changed since {run.path} was started: start a new run")
        record = record.replaced(
            created=before.created, command=before.command, method=before.method
        )
    if rank() == 0:
        if not begun:
            Run.create(run.path, overwrite=True)
        run.write_record(record)
    return record


def _announce(ready: Ready, record: Record, display: Display) -> None:
    """Print the first lines of a run: method, images, model, and findings in the data."""
    data = ready.data
    display.say(_first_line(ready))
    for note in record.method.notes:
        display.say(f"  settings: {note}")
    for finding in data.warnings:
        style = "bold yellow" if finding.severity == "warning" else ""
        display.say(f"  {finding.severity}: {finding.text} {finding.remedy}", style=style)
    for line in quick_check(data.table):
        display.say(f"  data: {line}")
    if data.skipped:
        display.say(f"  data: {len(data.skipped)} images were skipped; the record names them.")
    if ready.spec.keep_features:
        from lmd.explain.neighbours import size_line

        count = int(data.counts("train").sum())
        display.say(f"  {size_line(count, ready.model.classifier.in_features)}")


def _first_line(ready: Ready) -> str:
    """What is trained on what: method, images, size, epochs, backbone and its weights."""
    data, method, protocol = ready.data, ready.spec.method, ready.spec.protocol
    parts = ", ".join(f"{int(data.counts(p).sum())} {p}" for p in PARTS)
    epochs = counted(protocol.epochs, "{n} [epoch|epochs]")
    if len(method.stages) > 1:
        later = method.outline(ready.spec.values)[-1].epochs or protocol.stage2_epochs
        epochs += f", then {counted(later, '{n} [epoch|epochs]')} of stage 2"
    weights = {"none": "random weights", "imagenet": "ImageNet weights"}
    size = sum(p.numel() for p in ready.model.parameters())
    return (
        f"{method.title} on {data.table.source}: {parts} images; {protocol.image_size} px; "
        f"{epochs}; {protocol.backbone} with "
        f"{weights.get(protocol.weights, f'the weights of {protocol.weights}')}, "
        f"{size / 1e6:.1f} million parameters; head, medium, tail: {data.tiers.rule}"
    )


def fit(
    run: Run,
    ready: Ready,
    record: Record,
    display: Display,
    *,
    resume: bool = False,
    first_stages: str | Path | None = None,
    watch: Callable[[Sequence[HistoryRow]], None] | None = None,
) -> Trainer:
    """Train all stages of the method; the trainer has the model and its history."""
    data, pre = ready.data, ready.preprocessing
    trainer = Trainer(
        model=ready.model,
        stages=ready.stages,
        train=data.part("train"),
        validation=data.part("validation"),
        protocol=ready.spec.protocol,
        normalise=Normalise(pre.mean, pre.std, ready.device),
        folder=run.path,
        device=ready.device,
        display=display,
        first_stages=_first_stages(first_stages, record),
        watch=watch,
    )
    trainer.progress.timings["decode"] = ready.seconds
    try:
        trainer.fit(resume=resume)
    except NotShareable as error:
        raise LmdError(f"method {record.method.key!r} with these settings: {error}") from error
    return trainer


def _first_stages(folder: str | Path | None, record: Record) -> FirstStages | None:
    """Stage-1 checkpoints shared by runs with identical code, data, protocol and hardware."""
    if folder is None:
        return None
    later = {"stage2_epochs", "stage2_lr", "methods", "workers"}
    context = {
        "code": recording.source_digest(),
        "machine": record.machine.model_dump(),
        "model": record.model.model_dump(exclude={"prior", "temperature"}),
        "data": [record.data.fingerprint, record.data.pixels],
        "protocol": {k: v for k, v in record.protocol.items() if k not in later},
    }
    return FirstStages(Path(folder), context)


# Features (N, C) and logits (N, K) of each part that has images.
Encoded = Mapping[str, tuple[Tensor, Tensor]]


def encode(ready: Ready, trainer: Trainer) -> Encoded:
    """Encode every image once, as the shipped model does; several processes share the images.

    Features of training images are needed for what is kept of them.
    """
    images = {part: ready.data.part(part) for part in PARTS}
    if not ready.spec.keep_features and not len(images["validation"]):
        del images["train"]
    with trainer.progress.clock("features"):
        encoded = {part: trainer.encode(of) for part, of in images.items() if len(of)}
    for part, (_, logits) in encoded.items():
        if part != "train":
            check_finite(logits, "at the end of training")
    return encoded


def _predict(ready: Ready, encoded: Encoded) -> tuple[Predictions, float]:
    """Predictions of the shipped model for validation and test, and its temperature."""
    data, temperature = ready.data, 1.0
    if "validation" in encoded:
        labels = data.part("validation").labels
        temperature = _temperature(ready, encoded["validation"][1], labels)
    parts: dict[Part, PartPredictions] = {}
    names: tuple[Part, Part] = ("validation", "test")
    for part in names:
        if part in encoded:
            table = data.table.part(part)
            probabilities = (encoded[part][1] / temperature).softmax(1).numpy()
            parts[part] = PartPredictions(
                table.ids, table.labels, probabilities, table.group_numbers()
            )
    return Predictions(data.table.classes, parts), temperature


def _temperature(ready: Ready, logits: Tensor, labels: NDArray[np.int64]) -> float:
    """The temperature fitted to validation, weighted to the class mix that the method assumes."""
    mix = np.ones(logits.shape[1])
    if ready.spec.method.mix(ready.spec.values) == "training":
        mix = ready.data.counts("train").astype(np.float64)
    return fit_temperature(logits.numpy(), labels, mix_weights(labels, mix))


def _finish(
    run: Run,
    ready: Ready,
    record: Record,
    encoded: Encoded,
    predictions: Predictions,
    *,
    model_only: bool,
) -> Record:
    """Score the predictions, and write the files of a finished run, the record and pages last."""
    if rank() > 0:
        return record
    features = {part: found.numpy() for part, (found, _) in encoded.items()}
    train, test = ready.data.table.part("train"), predictions.parts.get("test")
    novelty, flag = fit_flag(features, train.labels, None if test is None else test.groups)
    record = record.replaced(novelty=flag)
    description = ready.description(record.model.temperature, *answers_of(record, predictions))
    digest = save_model(ready.model, run.path, description)
    if novelty is not None:
        novelty.save(run.path, digest)
    if ready.spec.keep_features:
        from lmd.explain.neighbours import Neighbours

        index = Neighbours.of(features["train"], train.labels, train.classes)
        index.save(run.path, digest)
    if model_only:
        run.write_record(record)
        return record
    if ready.spec.images:
        engine = TorchEngine(ready.model, description, ready.device)
        write_examples(run.path, engine, ready.data, predictions)
    record = recording.scored(record, predictions).replaced(finished=recording.now())
    run.write_predictions(predictions)
    run.write_record(record)
    _write_pages(run)
    return record
