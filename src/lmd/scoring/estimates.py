"""The numbers of a record, with intervals and as text: for all classes and for each of them."""

import math

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
