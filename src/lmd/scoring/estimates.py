"""The numbers of a record: values with intervals, for all classes and for each."""

from pydantic import BaseModel, ConfigDict


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Estimate(_Plain):
    """A value with its 95 % interval; ``None`` where it cannot be computed."""

    value: float | None
    low: float | None = None
    high: float | None = None


class ClassScore(_Plain):
    """One class in one part: images in training and in the part, recall, precision, F1.

    ``units`` is the number of patients or lesions, where the data has groups.
    """

    name: str
    tier: str
    train: int
    support: int
    units: int | None = None
    recall: Estimate
    precision: Estimate
    f1: Estimate


class PartScores(_Plain):
    """All numbers of one part; ``confusion`` has a row for each true class."""

    metrics: dict[str, Estimate]
    per_class: list[ClassScore]
    confusion: list[list[int]]
    notes: list[str] = []
