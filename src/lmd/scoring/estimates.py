"""The numbers of a record: values with intervals, for all classes and for each of them."""

from pydantic import BaseModel, ConfigDict, Field


class Plain(BaseModel):
    """A part of a record: no unknown fields, no infinities, and never changed in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Estimate(Plain):
    """A value with its 95 % interval; ``None`` where it cannot be computed."""

    value: float | None
    low: float | None = None
    high: float | None = None


class ClassScore(Plain):
    """The scores of one class in one part."""

    name: str
    tier: str
    train: int = Field(description="images of the class in the training part")
    support: int = Field(description="images of the class in this part")
    units: int | None = Field(
        default=None, description="patients or lesions of the class, if the data has groups"
    )
    recall: Estimate
    precision: Estimate
    f1: Estimate


class Definition(Plain):
    """What a number means."""

    title: str
    definition: str


class PartScores(Plain):
    """All numbers of one part; the rows of ``confusion (K, K)`` are true classes."""

    metrics: dict[str, Estimate]
    per_class: list[ClassScore]
    confusion: list[list[int]]
    notes: list[str] = []
