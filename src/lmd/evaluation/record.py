"""The part of a record about images from another place."""

from typing import Literal

from pydantic import Field

from lmd.scoring.estimates import Estimate, Plain


class ClassShift(Plain):
    """How often a class occurs in each place, and how well it is recognised in the run's own."""

    name: str
    train: float = Field(description="share of the training images")
    home: float = Field(description="share of the run's own images")
    here: float = Field(description="share of the external images")
    recall: Estimate = Field(description="on the run's own images; here, see `per_class`")


class MetricShift(Plain):
    """A metric in two places, on the classes that both have."""

    home: Estimate
    here: Estimate
    difference: Estimate = Field(description="here minus home")


class ConfidenceShift(Plain):
    """The mean probability of the predicted class in both places."""

    home: Estimate
    here: Estimate
    expected: float = Field(description="at home, with images counted in the class mix of here")
    distance: float = Field(
        description="largest difference of the two distribution functions (Kolmogorov-Smirnov)"
    )


class UnknownClass(Plain):
    """Images that are not scored, because the model does not know their class."""

    name: str
    images: int
    confidence: float = Field(description="mean probability of the predicted class")
    flagged: float | None = Field(description="share flagged as unlike the training images")


class External(Plain):
    """Labelled images from another place (here), beside the run's own test part (home)."""

    run: str = Field(description="name of the run that made the model")
    model_sha256: str | None = Field(description="of the model's weights, if they are one file")
    part: str = Field(description="the part of the data that was used, or `all`")
    home_part: Literal["validation", "test"] = Field(description="what home is")
    mix_distance: float = Field(
        description="share of images that would need another class to have home's class mix"
    )
    classes: list[ClassShift]
    metrics: dict[str, MetricShift]
    confidence: ConfidenceShift
    coverage: Estimate | None = Field(
        description="of prediction sets in home's test part, all classes; here, see `sets`; null "
        "without sets or a test part"
    )
    flagged: Estimate | None = Field(
        description="share of the images that are flagged as unlike the training images"
    )
    unknown: list[UnknownClass] = Field(description="classes that the model does not know")
