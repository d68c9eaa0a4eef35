"""The numbers of a record, with intervals and as text: for all classes and for each of them."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MISSING = "–"


def number_text(value: float | None, form: str = ".3f") -> str:
    """Return a number as text; a dash if it is ``None`` or nan.

    ``form`` is a format of Python with two more meanings: ``%`` has a space before the sign, and
    ``p`` is per cent without a sign, for columns and differences that say so.

    >>> number_text(0.7125), number_text(0.7125, ".1%"), number_text(-0.01, "+.1p")
    ('0.713', '71.2\u202f%', '−1.0')
    >>> number_text(None)
    '–'
    """
    if value is None or math.isnan(value):
        return MISSING
    sign = "\u202f%" if form.endswith("%") else ""
    if form[-1] in "%p":
        value, form = 100 * value, f"{form[:-1]}f"
    return f"{value:{form}}".replace("-", "−") + sign


def interval_text(low: float | None, high: float | None, form: str = ".3f") -> str:
    """Return an interval as text, ``form`` as for ``number_text``; empty if it is not known.

    >>> interval_text(0.41, 0.62), interval_text(0.41, 0.62, ".1%"), interval_text(0.41, None)
    ('0.410 to 0.620', '41.0 to 62.0\u202f%', '')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f"{number_text(low, form.replace('%', 'p'))} to {number_text(high, form)}"


class Plain(BaseModel):
    """A part of a record: no unknown fields, no infinities, and never changed in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Estimate(Plain):
    """A value with its 95 % interval; ``None`` where it cannot be computed."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, form: str = ".3f", missing: str = "not computable") -> str:
        """Return the value with its interval, ``form`` as for ``number_text``.

        >>> Estimate(value=0.5, low=0.41, high=0.62).text(), Estimate(value=None).text()
        ('0.500 (0.410 to 0.620)', 'not computable')
        """
        span = self.interval_text(form)
        text = missing if self.value is None else self.value_text(form)
        return f"{text} ({span})" if span else text

    def value_text(self, form: str = ".3f") -> str:
        """Return the value alone; a dash if it cannot be computed."""
        return number_text(self.value, form)

    def interval_text(self, form: str = ".3f") -> str:
        """Return the interval alone; empty if there is none."""
        return interval_text(self.low, self.high, form)

    def cells(self, form: str = ".3f") -> tuple[str, str]:
        """Return the value and the interval for two columns of a table."""
        return self.value_text(form), self.interval_text(form) or MISSING


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


class Calibration(Plain):
    """ECE of one part, without the temperature and with it.

    Means over mirror images have no value without it: their temperature was fitted to other answers
    of the model.

    ``matched`` counts images so that the classes have the mix that the method answers for; there,
    what is left is not caused by another mix of classes in this part.
    """

    before: Estimate = Field(
        description="without the temperature, null with `tta`; after it, see `metrics`"
    )
    matched_before: float | None = Field(description="in the mix of `model.prior`, as `before`")
    matched_after: float | None = Field(description="in the mix of `model.prior`")


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


class ClassShift(Plain):
    """How often a class occurs in each place, and how well it is recognised in the run's own."""

    name: str
    train: float = Field(description="share of the training images")
    home: float = Field(description="share of the run's own images")
    here: float = Field(description="share of the external images")
    recall: Estimate = Field(description="on the run's own images; here, see `per_class`")


class Compared(Plain):
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
    metrics: dict[str, Compared]
    confidence: ConfidenceShift
    coverage: Estimate | None = Field(
        description="of prediction sets in home's test part, all classes; here, see `sets`; null "
        "without sets or a test part"
    )
    flagged: Estimate | None = Field(
        description="share of the images that are flagged as unlike the training images"
    )
    unknown: list[UnknownClass] = Field(description="classes that the model does not know")
