"""The part of a record about prediction sets and decisions."""

from typing import Literal

from pydantic import Field

from lmd.scoring.estimates import Estimate, Plain


class ClassSets(Plain):
    """The prediction sets of one class."""

    name: str
    guarantee: Literal["class", "tier", "all", "always"] = Field(
        description="the images that the guarantee is for: of the class, of all classes of its "
        "tier, or all images; `always` if the class is in every set"
    )
    images: int = Field(description="validation images behind the threshold")
    group_count: int | None = Field(
        default=None, description="patients or lesions behind it, each of which counts once"
    )
    threshold: float = Field(description="the class is in a set from this probability on")
    expected: Estimate = Field(
        description="coverage to be expected; the interval is for other validation images"
    )
    coverage: Estimate = Field(
        description="share of images whose set has the true class; every patient or lesion counts "
        "once if it does for the threshold"
    )
    size: Estimate = Field(description="mean number of classes in a set")


class SetScores(Plain):
    """Prediction sets of the reported part, with thresholds from the validation part."""

    requested: float = Field(description="the coverage that was asked for")
    coverage: Estimate
    size: Estimate
    empty: float = Field(description="share of images with an empty set")
    per_class: list[ClassSets]


class ClassDecision(Plain):
    """What the decisions mean for one class."""

    name: str
    prevalence: float | None = Field(description="share of the class in the stated mix")
    recall: Estimate = Field(description="decided as the class and not referred")
    referred: Estimate = Field(description="share of its images that are referred to a person")
    specificity: Estimate = Field(description="share of other images not decided as the class")
    ppv: Estimate = Field(description="positive predictive value")
    npv: Estimate = Field(description="negative predictive value")
    fixed: Estimate = Field(description="sensitivity at the fixed specificity")


class Decisions(Plain):
    """Decisions on the reported part: by the highest probability or the least expected cost."""

    prevalence: str = Field(description="where the stated mix of classes comes from")
    costs: list[list[float]] | None = Field(description="(K, K), true by predicted, if given")
    refer_costs: list[float] | None = Field(description="(K,), if given")
    refer_above: int | None = Field(description="larger sets are referred")
    fixed_specificity: float
    referred: float = Field(description="share of images that are referred, in the stated mix")
    mean_cost: float | None = Field(
        description="of one image in the stated mix; null without costs, and if images are "
        "referred but `refer_costs` are not given"
    )
    per_class: list[ClassDecision]

    @property
    def unpriced(self) -> bool:
        """Whether images are referred and nobody said what that costs."""
        return self.costs is not None and self.refer_costs is None and self.referred > 0
