"""``record.json`` as typed models: what was asked for, what was run, and every number."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lmd.base.errors import LmdError
from lmd.scoring.estimates import ClassScore, Estimate
from lmd.scoring.tiers import Tiers

FORMAT: Literal[2] = 2
Part = Literal["validation", "test"]
TablePart = Literal["train", "validation", "test"]
HistoryRow = dict[str, int | float | str | None]

_DEEPEST = 50  # levels of nesting; a real record has six


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Request(_Plain):
    """All that was asked for: what ``--resume`` needs to go on."""

    data: str
    method: str
    profile: str = "default"
    protocol: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    columns: dict[str, Any] = Field(default={}, description="how a manifest is read")
    skip_bad: bool = Field(default=False, description="images that cannot be read are left out")


class MethodInfo(_Plain):
    """The method, with all of its settings."""

    key: str
    title: str
    paper: str
    note: str = Field(description="what a reader of the numbers must know; may be empty")
    profile: str
    settings: dict[str, Any]
    notes: list[str] = Field(default=[], description="what the protocol changes in the profile")
    chosen: dict[str, float] = Field(
        default={}, description="values that the method chose for itself, on the validation part"
    )


class DataInfo(_Plain):
    """The images."""

    source: str
    kind: str
    synthetic: bool
    fingerprint: str = Field(description="SHA-256 of ids, labels and parts")
    file_sha256: str | None = Field(description="of the manifest or array file, if there is one")
    classes: list[str] = Field(description="names of the K classes")
    counts: dict[TablePart, list[int]] = Field(
        description="images of each class, (K,) for each part"
    )
    imbalance_factor: float | None
    grouped: bool = Field(description="whether images are known to share a patient or lesion")
    skipped: list[str] = Field(description="images that were left out, and why")
    notes: list[str]


class ModelInfo(_Plain):
    """The network, and which of its states is scored."""

    backbone: str
    weights: str
    head: str
    feature_dim: int
    parameters: int
    selected: str = Field(description="a sentence: which epoch is reported")
    temperature: float = Field(
        default=1.0, gt=0, description="divides the shipped model's logits; fitted on validation"
    )


class StageInfo(_Plain):
    """One stage of training."""

    name: str
    epochs: int
    seconds: float
    views: list[str] = Field(default=[], description="what the stage saw of each image")
    chosen: dict[str, float] = Field(default={}, description="values that the stage chose itself")


class Machine(_Plain):
    """Where the run was made."""

    python: str
    torch: str
    platform: str
    device: str
    threads: int
    processes: int


class Definition(_Plain):
    """What a number means."""

    title: str
    definition: str


class Record(_Plain):
    """The record of one run; everything after ``machine`` is empty until the run is finished."""

    format: Literal[2] = FORMAT
    status: Literal["running", "finished"]
    name: str = Field(description="name of the run folder")
    created: str = Field(description="UTC, ISO 8601")
    finished: str | None = None
    lmd_version: str
    commit: str | None = Field(description='with "+" where the code was changed since')
    command: str = Field(description="how to repeat the run")
    request: Request
    method: MethodInfo
    protocol: dict[str, Any] = Field(description="what is equal for all methods of a comparison")
    data: DataInfo
    tiers: Tiers = Field(description="which classes are head, medium and tail")
    model: ModelInfo
    machine: Machine
    stages: list[StageInfo] = []
    stage_1_from: str | None = Field(
        default=None, description="name of the run whose first stage was taken over"
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
    definitions: dict[str, Definition] = Field(default={}, description="of every number")
    notes: list[str] = Field(default=[], description="sentences that a reader must know")
    timings: dict[str, float] = Field(default={}, description="seconds")

    @property
    def part(self) -> Part | None:
        """The part that is reported: test if it was scored, else validation, else none."""
        parts: tuple[Part, Part] = ("test", "validation")
        return next((part for part in parts if self.metrics.get(part)), None)

    def replaced(self, **changes: Any) -> Self:
        """A copy with other values in some fields, validated."""
        return type(self).model_validate(dict(self) | changes)

    @field_validator("history", mode="before")
    @classmethod
    def _finite(cls, rows: Any) -> Any:
        """JSON has no NaN: a number that is not finite becomes null."""
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            return rows
        return [{key: _finite(value) for key, value in row.items()} for row in rows]

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        """Every list with one entry for each class has K entries."""
        size = len(self.data.classes)
        lists: dict[str, Any] = {"tiers.assignment": self.tiers.assignment}
        for name, of in (
            ("data.counts", self.data.counts),
            ("per_class", self.per_class),
            ("confusion", self.confusion),
        ):
            lists |= {f"{name}.{part}": entries for part, entries in of.items()}
        for part, matrix in self.confusion.items():
            lists |= {f"confusion.{part}.{k}": row for k, row in enumerate(matrix)}
        for name, entries in lists.items():
            if len(entries) != size:
                raise ValueError(f"{name} has {len(entries)} entries for {size} classes")
        return self


def read_record(path: Path) -> Record:
    """The record in a file; one line says what is wrong with a damaged one, and what to do."""
    remedy = "restore the file, or remove the run folder and train the run again"
    try:
        found = json.loads(path.read_bytes())
        nested = _nested(found, _DEEPEST)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not valid JSON ({error})"
        raise LmdError(f"{path} cannot be read: {why}; {remedy}") from None
    if not isinstance(found, dict) or nested:
        why = "nested too deeply" if nested else f"a JSON {type(found).__name__}, not an object"
        raise LmdError(f"{path} is not a record: it is {why}; {remedy}")
    if found.get("format") not in (1, FORMAT):
        raise LmdError(
            f"{path}: field 'format' must be 1 or {FORMAT}, it is {found.get('format')!r}; "
            "read it with the version of lmd that made the run"
        )
    try:
        return Record.model_validate(upgrade(found))
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        where = f"field {field!r}: " if field else ""
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise LmdError(f"{path}: {where}{problem['msg']}{more}; {remedy}") from None


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """A record of format 1 as one of format 2, in which groups of classes are called tiers.

    >>> upgrade({"format": 1, "groups": {"rule": "thirds"}})
    {'format': 2, 'tiers': {'rule': 'thirds'}}
    """
    if record["format"] != 1:
        return record
    new: dict[str, Any] = _renamed(record, "groups", "tiers") | {"format": FORMAT}
    if "protocol" in new:
        new["protocol"] = _renamed(new["protocol"], "groups", "tiers")
    request = new.get("request")
    if isinstance(request, dict) and "protocol" in request:
        protocol = _renamed(request["protocol"], "groups", "tiers")
        new["request"] = request | {"protocol": protocol}
    if isinstance(new.get("per_class"), dict):
        new["per_class"] = {
            part: [_renamed(row, "group", "tier") for row in rows]
            if isinstance(rows, list)
            else rows
            for part, rows in new["per_class"].items()
        }
    return new


def _renamed(value: Any, old: str, new: str) -> Any:
    if not isinstance(value, dict):
        return value
    return {new if key == old else key: entry for key, entry in value.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _nested(value: Any, levels: int) -> bool:
    """Whether lists and objects go deeper than so many levels."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_nested(entry, levels - 1) for entry in inner)
