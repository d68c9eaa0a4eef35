"""The part of a record about the folds of a cross-validation."""

from typing import Literal

from pydantic import Field

from lmd.scoring.estimates import Plain

Final = Literal["average", "refit", "none"]


class FoldRun(Plain):
    """One fold of a cross-validation, in a run folder of its own."""

    name: str = Field(description="name of its run folder, inside this one")
    images: dict[Literal["train", "validation", "test"], int] = Field(
        description="number of images, by part"
    )
    temperature: float = Field(description="of its model, from its validation part; 1 without one")
    balanced_accuracy: float | None = Field(description="of its own test part")


class Folds(Plain):
    """A cross-validation: the test part of the record has every fold's test images."""

    runs: list[FoldRun] = Field(min_length=2)
    final: Final = Field(
        description="the shipped model: the mean answer of the folds' models, one model trained on "
        "all images, or none"
    )
