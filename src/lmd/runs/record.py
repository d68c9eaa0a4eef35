"""``record.json`` as typed models: what was asked for, what was run, and every number."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from lmd.crossval.record import Folds
from lmd.decisions.record import Decisions, SetScores
from lmd.evaluation.record import External
from lmd.frozen.record import Candidate
from lmd.predict.record import NoveltyInfo
from lmd.scoring.estimates import Calibration, ClassScore, Definition, Estimate, Plain
from lmd.scoring.tiers import Tiers

FORMAT: Literal[2] = 2
Part = Literal["validation", "test"]
TablePart = Literal["train", "validation", "test"]
HistoryRow = dict[str, int | float | str | None]
# The key in ``Record.timings`` of a stage, from 1 on.
PROCESSOR_TIME = "stage {} processor time"


class Request(Plain):
    """What was asked for, complete enough for ``--resume`` to continue the run."""

    data: str
    method: str
    profile: str = "default"
    protocol: dict[str, Any] = Field(default={})
    settings: dict[str, Any] = Field(default={})
    columns: dict[str, Any] = Field(default={}, description="how a manifest is read")
    skip_bad: bool = Field(default=False, description="leave out images that cannot be read")
    keep_features: bool = Field(
        default=False, description="keep the features of the training images in `neighbours.npz`"
    )
    images: bool = Field(
        default=True, description="keep pictures of a few test images in `examples.npz`"
    )


class MethodInfo(Plain):
    """The method and all of its settings."""

    key: str
    title: str
    paper: str
    note: str = Field(description="what to know when reading the numbers; may be empty")
    profile: str
    settings: dict[str, Any]
    notes: list[str] = Field(default=[], description="where the protocol differs from the profile")
    chosen: dict[str, float] = Field(default={}, description="values chosen on held-out images")


class DataInfo(Plain):
    """The images."""

    source: str
    kind: str
    synthetic: bool
    fingerprint: str = Field(description="SHA-256 of ids, labels and parts")
    file_sha256: str | None = Field(description="of the manifest or array file, if any")
    pixels: str | None = Field(None, description="digest of the decoded images")
    classes: list[str] = Field(description="names of the K classes")
    counts: dict[TablePart, list[int]] = Field(description="images per class (K,), by part")
    imbalance_factor: float | None
    grouped: bool = Field(description="whether groups (patients or lesions) are known")
    skipped: list[str] = Field(description="images left out, and why")
    notes: list[str]

    def same_as(self, other: "DataInfo") -> bool:
        """Return whether names, labels, parts and, where both know them, pixels are the same."""
        pixels = None in (self.pixels, other.pixels) or self.pixels == other.pixels
        return pixels and self.fingerprint == other.fingerprint


class ModelInfo(Plain):
    """The network, and the epoch that is scored."""

    backbone: str
    weights: str
    head: str
    feature_dim: int
    parameters: int
    selected: str = Field(description="the epoch that is reported, in words")
    levels: list[str] = Field(
        default=[], description="inner levels of the encoder whose averages are among the features"
    )
    temperature: float = Field(
        default=1.0, gt=0, description="divides the logits; from held-out images, 1 without any"
    )
    prior: Literal["uniform", "training"] | None = Field(
        default=None,
        description="the mix of classes that the probabilities answer for; null if it is unknown",
    )


class StageInfo(Plain):
    """One stage of training."""

    name: str
    epochs: int
    seconds: float
    lr: float | None = Field(default=None, description="its learning rate at the start, if any")
    schedule: str | None = Field(default=None, description="how the learning rate changes")
    views: list[str] = Field(default=[], description="the views of each image it trained on")
    chosen: dict[str, float] = Field(default={}, description="values chosen on validation")


class Machine(Plain):
    """The machine that made the run."""

    python: str
    torch: str
    platform: str
    device: str
    threads: int
    processes: int


class Record(Plain):
    """The record of one run; the fields after ``machine`` are empty until the run is finished."""

    format: Literal[2] = FORMAT
    status: Literal["running", "finished"]
    name: str = Field(description="name of the run folder")
    created: str = Field(description="UTC, ISO 8601")
    finished: str | None = None
    lmd_version: str
    commit: str | None = Field(description='followed by "+" if the code had uncommitted changes')
    command: str = Field(description="the command that repeats the run")
    request: Request
    method: MethodInfo
    protocol: dict[str, Any] = Field(
        description="the settings that all methods of a comparison share"
    )
    data: DataInfo
    tiers: Tiers = Field(description="which classes are head, medium and tail")
    model: ModelInfo
    machine: Machine
    stages: list[StageInfo] = Field(default=[])
    stage_1_from: str | None = Field(
        default=None, description="name of the run that trained stage 1, if another did"
    )
    history: list[HistoryRow] = Field(default=[], description="the rows of `history.csv`")
    metrics: dict[Part, dict[str, Estimate]] = Field(
        default={}, description="by part and metric, e.g. `metrics.test.balanced_accuracy`"
    )
    per_class: dict[Part, list[ClassScore]] = Field(
        default={}, description="by part, in the order of `data.classes`"
    )
    confusion: dict[Part, list[list[int]]] = Field(
        default={}, description="by part, (K, K); rows are true classes"
    )
    calibration: dict[Part, Calibration] = Field(
        default={}, description="by part: ECE without the temperature and with it"
    )
    sets: SetScores | None = Field(
        default=None, description="prediction sets on the test part, if there is a validation part"
    )
    decisions: Decisions | None = Field(
        default=None, description="of the reported part; the last `lmd evaluate` states the mix"
    )
    candidates: list[Candidate] = Field(
        default=[], description="what `lmd calibrate` compared, existing classifier first"
    )
    tta: Literal["flips"] | None = Field(
        default=None,
        description="`flips` if predictions are means over mirror images (`lmd evaluate --tta`)",
    )
    folds: Folds | None = Field(
        default=None, description="if the predictions are those of a cross-validation"
    )
    resamples: int = Field(default=1000, description="of the bootstrap behind the intervals")
    definitions: dict[str, Definition] = Field(
        default={}, description="of every number, by its key"
    )
    novelty: NoveltyInfo | None = Field(
        default=None, description="null without a validation part and in older records"
    )
    external: External | None = Field(
        default=None,
        description="set if the test part is images from another place (`lmd evaluate --data`)",
    )
    notes: list[str] = Field(default=[], description="what to know when reading the numbers")
    timings: dict[str, float] = Field(default={}, description="seconds, by activity")

    @property
    def part(self) -> Part | None:
        """The part that is reported: test, else validation, else none."""
        parts: tuple[Part, Part] = ("test", "validation")
        return next((part for part in parts if self.metrics.get(part)), None)

    @property
    def part_title(self) -> str:
        """The reported part in words."""
        return "external images" if self.external is not None else f"{self.part} part"

    def replaced(self, **changes: Any) -> Self:
        """Return a validated copy with some fields replaced."""
        return type(self).model_validate(dict(self) | changes)

    @field_validator("history", mode="wrap")
    @classmethod
    def _history(cls, rows: Any, validate: ValidatorFunctionWrapHandler) -> list[HistoryRow]:
        """Replace numbers that are not finite by null: JSON has no NaN."""
        if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
            rows = [
                {
                    key: value if not isinstance(value, float) or math.isfinite(value) else None
                    for key, value in row.items()
                }
                for row in rows
            ]
        history: list[HistoryRow] = validate(rows)
        check_numbers(history)
        return history

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        """Check that lists with one entry per class have K entries."""
        size = len(self.data.classes)
        if "train" not in self.data.counts:
            raise ValueError("data.counts has no entry for train")
        lists: dict[str, Any] = {"tiers.assignment": self.tiers.assignment}
        for name, of in (
            ("data.counts", self.data.counts),
            ("per_class", self.per_class),
            ("confusion", self.confusion),
        ):
            lists |= {f"{name}.{part}": entries for part, entries in of.items()}
        for name, scores in (("sets", self.sets), ("decisions", self.decisions)):
            if scores is not None:
                lists[f"{name}.per_class"] = scores.per_class
        if self.external is not None:
            lists["external.classes"] = self.external.classes
        for part, matrix in self.confusion.items():
            lists |= {f"confusion.{part}.{k}": row for k, row in enumerate(matrix)}
        for name, entries in lists.items():
            if len(entries) != size:
                raise ValueError(f"{name} has {len(entries)} entries for {size} classes")
        for name in ("per_class", "confusion"):
            if not getattr(self, name).keys() >= self.metrics.keys():
                raise ValueError(f"{name} must have all parts of metrics")
        return self


def check_numbers(history: Sequence[HistoryRow]) -> None:
    """Raise a ``ValueError`` unless all rows have the numbers of a stage and an epoch."""
    for number, row in enumerate(history, start=1):
        for key in ("stage", "epoch"):
            value = row.get(key)
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{key} of row {number} must be a whole number from 1 on, it is {value!r}"
                )


def training_minutes(record: Record) -> float:
    """Return processor minutes of all stages and processes, or GPU minutes.

    A record without processor times has elapsed times: they count for each thread.
    """
    used = record.machine.processes
    spent = [record.timings.get(PROCESSOR_TIME.format(i + 1)) for i in range(len(record.stages))]
    measured = [seconds for seconds in spent if seconds is not None]
    if len(measured) == len(spent):
        return used * sum(measured) / 60
    if record.machine.device == "cpu":
        used *= record.machine.threads
    return used * sum(stage.seconds for stage in record.stages) / 60
