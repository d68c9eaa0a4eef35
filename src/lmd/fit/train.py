"""One complete run: open the data, train, score, write."""

import hashlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import BatchNorm2d

from lmd import __file__ as package
from lmd.base import distributed as dist
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.base.text import counted
from lmd.data.checks import quick_check
from lmd.data.dataset import Dataset, plan_data
from lmd.data.source import Columns, Source
from lmd.data.table import PARTS
from lmd.decisions.policy import answers_of
from lmd.fit import recording
from lmd.fit.spec import Spec, open_run, resolve
from lmd.methods import DEFAULT, find_method
from lmd.methods.stage import Task
from lmd.model import Model, Normalise, Preprocessing, build_model
from lmd.model.files import ModelSpec, save_model
from lmd.runs.folder import WRITTEN_AGAIN, PartPredictions, Predictions, Run
from lmd.runs.record import HistoryRow, Part, Record
from lmd.scoring.proportions import fit_temperature, mix_weights
from lmd.training.loop import Trainer, check_finite

if TYPE_CHECKING:
    from lmd.training.checkpoint import FirstStages


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
    trackers: tuple[str, ...] = ()
    if log:
        from lmd.fit.tracking import check_trackers

        trackers = check_trackers(log)
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
    here = dist.own_device(dist.choose_device(device))
    with dist.joined(here), ExitStack() as stack:
        first = dist.rank() == 0
        run, spec, begun = dist.in_turn(
            partial(open_run, stack, folder, spec, resume=resume, overwrite=overwrite)
        )
        if begun and dist.in_turn(partial(_complete, run)):
            return run
        display = stack.enter_context(Display(quiet=quiet or not first))
        dataset = dist.in_turn(partial(_plan, spec))
        if not begun:
            spec = dist.in_turn(spec.with_available_weights)
        if command is None:
            command = shlex.join(spec.command() + ([] if out is None else ["--out", str(out)]))
        ready = prepare(spec, dataset, here, display)
        record = dist.in_turn(partial(_start, run, ready, command, begun=begun))
        _announce(ready, record, display)
        tracking = None
        if trackers and first:
            from lmd.fit.tracking import Tracking

            reported = len(run.read_history()) if resume else 0
            tracking = Tracking(trackers, run.path, record, display.say, reported)
            stack.enter_context(tracking)
        trainer = fit(
            run, ready, record, display, resume=resume, first_stages=first_stages,
            watch=tracking.report if tracking else None,
        )  # fmt: skip
        display.start("scoring", 2)
        features, predictions, temperature = _predict(ready, record, trainer)
        display.step(1)
        record = recording.trained_record(record, trainer, temperature)
        record = dist.in_turn(
            partial(_finish, run, ready, record, features, predictions, model_only=model_only)
        )
        if tracking is not None:
            tracking.finish(record)
        display.stop()
    return run


def _complete(run: Run) -> bool:
    """Return whether a run is finished and has all its files.

    What a finished run lacks and its other files contain is written again: a run may have been
    killed while its report was written.
    """
    if not run.is_finished():
        return False
    missing = run.missing_files()
    if missing - WRITTEN_AGAIN:
        return False
    if missing and dist.rank() == 0:
        from lmd.report.card import write_pages

        run.write_history(run.record.history)
        write_pages(run)
    return True


def _plan(spec: Spec) -> Dataset:
    """Open the data and check all that needs no pixels."""
    dataset = plan_data(spec.source, spec.protocol)
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


@dataclass(frozen=True)
class Ready:
    """All that training needs; ``seconds`` is the time that decoding took."""

    spec: Spec
    data: Dataset
    model: Model
    preprocessing: Preprocessing
    device: torch.device
    seconds: float


def prepare(spec: Spec, dataset: Dataset, device: torch.device, display: Display) -> Ready:
    """Build the model, then decode the images; several processes take turns."""
    protocol = spec.protocol
    model, preprocessing = dist.in_turn(
        lambda: build_model(
            protocol.backbone,
            protocol.weights,
            len(dataset.table.classes),
            head=spec.method.head,
            image_size=protocol.image_size,
            seed=dist.derive_seed(protocol.seed, "model"),
        )
    )
    if protocol.batch_size == 1 and any(isinstance(m, BatchNorm2d) for m in model.modules()):
        raise LmdError(
            f"setting 'batch_size' must be at least 2 for backbone {protocol.backbone!r}, whose "
            "BatchNorm needs several images; it is 1"
        )
    started = time.perf_counter()
    data = dist.in_turn(lambda: dataset.decode(display))
    return Ready(spec, data, model, preprocessing, device, time.perf_counter() - started)


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
    if dist.rank() == 0:
        if not begun:
            Run.create(run.path, overwrite=True)
        run.write_record(record)
    return record


def _announce(ready: Ready, record: Record, display: Display) -> None:
    """Print the first lines of a run: what is trained on what, and findings in the data."""
    data, method, protocol = ready.data, ready.spec.method, ready.spec.protocol
    counts = {part: int(data.counts(part).sum()) for part in PARTS}
    epochs = counted(protocol.epochs, "{n} [epoch|epochs]")
    if len(method.stages) > 1:
        later = method.outline(ready.spec.values)[-1].epochs or protocol.stage2_epochs
        epochs += f", then {counted(later, '{n} [epoch|epochs]')} of stage 2"
    weights = {"none": "random weights", "imagenet": "ImageNet weights"}
    display.say(
        f"{method.title} on {data.table.source}: "
        f"{', '.join(f'{count} {part}' for part, count in counts.items())} images; "
        f"{protocol.image_size} px; {epochs}; {protocol.backbone} with "
        f"{weights.get(protocol.weights, f'the weights of {protocol.weights}')}, "
        f"{record.model.parameters / 1e6:.1f} million parameters; head, medium, tail: "
        f"{data.tiers.rule}"
    )
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

        display.say(f"  {size_line(counts['train'], record.model.feature_dim)}")


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
    spec, data, preprocessing = ready.spec, ready.data, ready.preprocessing
    counts = torch.from_numpy(data.counts("train"))

    task = Task(counts.to(ready.device), ready.model.classifier.in_features)
    trainer = Trainer(
        stages=partial(spec.method.start, ready.model, task, spec.settings),
        train=data.part("train"),
        validation=data.part("validation"),
        model=ready.model,
        protocol=spec.protocol,
        normalise=Normalise(preprocessing.mean, preprocessing.std, ready.device),
        folder=run.path,
        device=ready.device,
        display=display,
        first_stages=None if first_stages is None else _shared(Path(first_stages), record),
        watch=watch,
    )
    trainer.progress.timings["decode"] = ready.seconds
    try:
        trainer.fit(resume=resume)
    except dist.NotShareable as error:
        raise LmdError(f"method {record.method.key!r} with these settings: {error}") from error
    return trainer


def _shared(folder: Path, record: Record) -> "FirstStages":
    """Return stage-1 checkpoints shared by runs with identical code, data and hardware."""
    from lmd.training.checkpoint import FirstStages

    later = {"stage2_epochs", "stage2_lr", "methods", "workers"}
    code = hashlib.sha256()
    for path in sorted(Path(package).resolve().parent.rglob("*.py")):
        code.update(path.read_bytes())
    context = {
        "code": code.hexdigest(),  # committed or not
        "machine": record.machine.model_dump(),
        "model": record.model.model_dump(exclude={"prior", "temperature"}),
        "data": [record.data.fingerprint, record.data.pixels],
        "protocol": {k: v for k, v in record.protocol.items() if k not in later},
    }
    return FirstStages(folder, context)


def _predict(
    ready: Ready, record: Record, trainer: Trainer
) -> tuple[dict[str, NDArray[np.float32]], Predictions, float]:
    """Encode every image once: features, predictions of the shipped model, and its temperature.

    Several processes share the images. Training images are encoded if their features are needed.
    """
    data, temperature = ready.data, 1.0
    images = {part: data.part(part) for part in PARTS}
    if not ready.spec.keep_features and not len(images["validation"]):
        del images["train"]
    with trainer.progress.clock("features"):
        encoded = {part: trainer.encode(of) for part, of in images.items() if len(of)}
    parts: dict[Part, PartPredictions] = {}
    for part in get_args(Part):
        if part not in encoded:
            continue
        table, logits = data.table.part(part), encoded[part][1]
        check_finite(logits, "at the end of training")
        if part == "validation":
            # Weighted to the class mix that the method assumes.
            mix = np.ones(logits.shape[1])
            if record.model.prior == "training":
                mix = data.counts("train").astype(np.float64)
            weights = mix_weights(table.labels, mix)
            temperature = fit_temperature(logits.numpy(), table.labels, weights)
        probabilities = (logits / temperature).softmax(1).numpy()
        parts[part] = PartPredictions(table.ids, table.labels, probabilities, table.group_numbers())
    features = {part: values.numpy() for part, (values, _) in encoded.items()}
    return features, Predictions(data.table.classes, parts), temperature


def _finish(
    run: Run,
    ready: Ready,
    record: Record,
    features: dict[str, NDArray[np.float32]],
    predictions: Predictions,
    *,
    model_only: bool,
) -> Record:
    """Score the predictions, and write the files of a finished run, the record and pages last."""
    if dist.rank() > 0:
        return record
    from lmd.predict.engines import TorchEngine
    from lmd.predict.novelty import fit_flag

    spec, data = ready.spec, ready.data
    train, test = data.table.part("train"), predictions.parts.get("test")
    novelty, flag = fit_flag(features, train.labels, None if test is None else test.groups)
    record = record.replaced(novelty=flag)
    prior, held_out = answers_of(record, predictions)
    description = ModelSpec(
        classes=train.classes,
        backbone=spec.protocol.backbone,
        head=spec.method.head,
        preprocessing=ready.preprocessing,
        method=spec.method.title,
        feature_dim=record.model.feature_dim,
        class_counts=tuple(train.counts().tolist()),
        temperature=record.model.temperature,
        levels=ready.model.levels,
        prior=prior,
        held_out=held_out,
    )
    digest = save_model(ready.model, run.path, description)
    if novelty is not None:
        novelty.save(run.path, digest)
    if spec.keep_features:
        from lmd.explain.neighbours import Neighbours

        index = Neighbours.of(features["train"], train.labels, train.classes)
        index.save(run.path, digest)
    if not model_only:
        if spec.images:
            engine = TorchEngine(ready.model, description, ready.device)
            from lmd.explain.examples import write_examples

            write_examples(run.path, engine, data, predictions)
        record = recording.scored(record, predictions).replaced(finished=recording.now())
        run.write_predictions(predictions)
    run.write_record(record)
    if not model_only:
        from lmd.report.card import write_pages

        write_pages(run)
    return record
