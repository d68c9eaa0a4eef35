"""Export of a run: the ONNX file, its model card, and what int8 does to the answers."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.cache import Part
from lmd.data.dataset import Dataset
from lmd.data.loaders import evaluation_batches
from lmd.explain.features import images_of_run
from lmd.export.quantise import quantised
from lmd.model import HeldOut, load_model
from lmd.predict.engines import OnnxEngine
from lmd.predict.exported import checked_target, complete, core_graph, export_onnx, write_graph
from lmd.report.card import write_card
from lmd.runs.folder import Run, of_one_model
from lmd.scoring.conformal import true_probabilities
from lmd.scoring.intervals import Difference, paired_differences
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample

CALIBRATION = 256  # training images that show the ranges of the activations
TOLERANCE = 0.01  # largest loss of balanced accuracy on the validation part
FASTER = 1.1  # least ratio of the seconds of float32 and int8
NO_INTERVAL = "No interval: a class has too few validation images, or all resamples agree."
_TIMED, _ROUNDS = 8, 7  # images in a batch, and how often both are timed


@dataclass(frozen=True)
class Change:
    """What int8 changes, on the validation part: metrics, answers, size and speed.

    ``metrics`` are int8 minus float32; ``same`` is the share of images with the same class.
    """

    images: int
    before: dict[str, float]
    metrics: dict[str, Difference]
    same: float
    megabytes: tuple[float, float]
    ratio: float

    @property
    def unbounded(self) -> bool:
        """Whether a metric has a value but no interval."""
        return any(np.isfinite(one.value) and not _span(one) for one in self.metrics.values())

    def objections(self) -> list[str]:
        """Why int8 does not pay, if it does not."""
        lost, found = -self.metrics["balanced_accuracy"].value, []
        if not lost <= TOLERANCE:  # not a number fails too
            found.append(
                f"balanced accuracy falls by {100 * lost:.2f} points (at most {100 * TOLERANCE:g})"
            )
        if self.ratio < FASTER:
            found.append(f"it is {self.ratio:.2f} times as fast as float32 (at least {FASTER:g})")
        return found

    def lines(self) -> list[str]:
        """The change of every metric as plain text."""
        lines = [f"int8 against float32 on {self.images} validation images, in points"]
        for key, one in self.metrics.items():
            if np.isfinite(one.value):
                span, before = _span(one), f"{100 * self.before[key]:7.2f}"
                said = f"95 % {span}" if span else "no interval"
                lines.append(
                    f"  {METRICS[key].title:<26} {before} {100 * one.value:+7.2f}   {said}"
                )
        lines += [f"  {NO_INTERVAL}"] if self.unbounded else []
        lines.append(f"  the same class for {100 * self.same:.1f} % of the images")
        small, large = self.megabytes[1], self.megabytes[0]
        lines.append(f"  {large:.1f} MB become {small:.1f} MB")
        lines.append(f"  {self.ratio:.2f} times as fast as float32, on one thread of this machine")
        return lines


def export_run(
    run: str | Path,
    onnx: str | Path,
    *,
    overwrite: bool = False,
    quantise: str | None = None,
    data: str | None = None,
    anyway: bool = False,
    display: Display | None = None,
) -> tuple[Path, Change | None]:
    """Write the model of a run as ONNX, with its model card beside it.

    ``quantise="int8"`` measures first what that changes on the validation part, and writes the file
    only if it pays, or ``anyway``. ``data`` is only needed if the images have moved.
    """
    path, run, display = (
        checked_target(onnx, overwrite=overwrite),
        Path(run),
        display or Display(quiet=True),
    )
    if quantise is None:
        for name, given in (("--data", data is not None), ("--anyway", anyway)):
            if given:
                raise LmdError(f"{name} needs --quantise int8 as well")
        export_onnx(run, path, overwrite=overwrite)
        _write_card(run, path)
        return path, None
    if quantise != "int8":
        raise LmdError(f"--quantise must be int8; it is {quantise!r}")
    record = of_one_model(run).record
    graph, change = _quantised(run, images_of_run(record, data, display), display)
    for line in change.lines():
        display.say(line)
    if change.objections() and not anyway:
        raise LmdError(
            f"--quantise int8 does not pay for this model: {' and '.join(change.objections())}. "
            "Nothing was written: leave out --quantise, or use --anyway"
        )
    write_graph(graph, path)
    _write_card(run, path, change)
    return path, change


def _quantised(run: Path, images: Dataset, display: Display) -> tuple[Any, Change]:
    """The complete int8 graph, and what it changes on the validation part."""
    validation, (model, spec) = images.part("validation"), load_model(run)
    if spec.preprocessing.resize != "v2":
        raise LmdError(
            f"--quantise: {run} was trained with an earlier rule of reading images: train it again"
        )
    if not len(validation):
        raise LmdError(
            "--quantise needs validation images to measure what it changes, and the run has none"
        )
    display.say(f"quantising with {CALIBRATION} training images at most")
    cores = [core_graph(model, spec)]
    cores.append(quantised(cores[0], _calibration_images(images)))
    with tempfile.TemporaryDirectory() as name:
        engines = []
        for kind, core in zip(("float32", "int8"), cores, strict=True):
            write_graph(complete(_copy(core), spec), Path(name) / f"{kind}.onnx")
            engines.append(OnnxEngine(Path(name) / f"{kind}.onnx", threads=1))
        sizes = [engine.path.stat().st_size / 1e6 for engine in engines]
        found = [_answers(engine, validation) for engine in engines]
        ratio = _ratio(engines, validation[:_TIMED])
    groups = images.table.part("validation").groups
    numbered = None if groups is None else np.unique(groups, return_inverse=True)[1]
    tiers = images.tiers.assignment
    one, two = (Sample(validation.labels, p, tiers, numbered) for p in found)
    change = Change(
        images=len(validation),
        before={key: metric.value(one) for key, metric in METRICS.items()},
        metrics=paired_differences(two, one),
        same=float((found[0].argmax(1) == found[1].argmax(1)).mean()),
        megabytes=(sizes[0], sizes[1]),
        ratio=ratio,
    )
    # Prediction sets need thresholds from the model that gives the answers.
    own = HeldOut.of(true_probabilities(validation.labels, found[1], numbered), tiers)
    return complete(cores[1], replace(spec, held_out=own)), change


def _copy(graph: Any) -> Any:
    found = type(graph)()
    found.CopyFrom(graph)
    return found


def _calibration_images(images: Dataset) -> NDArray[np.uint8]:
    """Training images, about as many of each class: rare classes have ranges of their own."""
    train, rng = images.part("train"), np.random.default_rng(0)
    shuffled = rng.permutation(len(train))
    turn = np.zeros(len(train), np.int64)
    for k in np.unique(train.labels):
        own = shuffled[train.labels[shuffled] == k]
        turn[own] = np.arange(len(own))
    chosen = shuffled[np.argsort(turn[shuffled], kind="stable")][:CALIBRATION]
    return train[np.sort(chosen)]


def _answers(engine: OnnxEngine, images: Part) -> NDArray[np.float32]:
    batches = evaluation_batches(images, _TIMED)
    return np.concatenate([engine.probabilities(batch.numpy()) for _, batch in batches])


def _ratio(engines: Sequence[OnnxEngine], batch: NDArray[np.uint8]) -> float:
    """How many times as fast the second is, in seconds of the processor, measured in turns."""
    ratios = []
    for _ in range(_ROUNDS):
        seconds = []
        for engine in engines:
            start = time.process_time()
            engine.probabilities(batch)
            seconds.append(time.process_time() - start)
        ratios.append(seconds[0] / max(seconds[1], 1e-9))
    return statistics.median(ratios)


def _write_card(run: Path, path: Path, change: Change | None = None) -> None:
    """The card of the run beside the file; a model without its record has none."""
    folder = run if run.is_dir() else run.parent
    if not (folder / "record.json").exists():
        return
    more = "" if change is None else _about(change)
    write_card(Run.open(folder).record, path.parent, exported=path, more=more)


def _span(change: Difference) -> str:
    """The interval in points; empty if there is none."""
    if not np.isfinite(change.low):
        return ""
    return f"{100 * change.low:+.2f} to {100 * change.high:+.2f}"


def _about(change: Change) -> str:
    """Return the section of the card about int8, as Markdown."""
    rows = [
        f"| {METRICS[key].title} | {100 * one.value:+.2f} | {_span(one) or 'none'} |"
        for key, one in change.metrics.items()
        if np.isfinite(one.value)
    ]
    lines = [
        "## int8",
        "",
        "This file computes convolutions with 8-bit numbers. The numbers above are of the float32 "
        f"model; on {change.images} validation images int8 changes them by these points.",
        "",
        "| Metric | Change | 95 % interval |",
        "| --- | --- | --- |",
        *rows,
        "",
        *([f"- {NO_INTERVAL}"] if change.unbounded else []),
        f"- The same class for {100 * change.same:.1f} % of these images.",
        "- Thresholds of prediction sets are from the int8 answers.",
    ]
    return "\n".join(lines)
