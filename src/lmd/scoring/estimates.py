"""The numbers of a record, with intervals and as text, and the models that hold them."""

import math
from typing import Self

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


class Plain(BaseModel):
    """A part of a record: no unknown fields, no infinities, and never changed in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Estimate(Plain):
    """A value with its 95 % interval; ``None`` where it cannot be computed."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float, low: float, high: float) -> Self:
        """Return an estimate of numbers that are not finite where they cannot be computed."""
        numbers = (float(x) if math.isfinite(x) else None for x in (value, low, high))
        return cls(**dict(zip(("value", "low", "high"), numbers, strict=True)))

    def text(self, form: str = ".3f", missing: str = "not computable") -> str:
        """Return the value with its interval, ``form`` as for ``number_text``.

        >>> Estimate(value=0.5, low=0.41, high=0.62).text(), Estimate(value=None).text()
        ('0.500 (0.410 to 0.620)', 'not computable')
        """
        span = self.interval_text(form)
        text = missing if self.value is None else number_text(self.value, form)
        return f"{text} ({span})" if span else text

    def value_text(self, form: str = ".3f") -> str:
        """Return the value alone; a dash if it cannot be computed."""
        return number_text(self.value, form)

    def interval_text(self, form: str = ".3f") -> str:
        """Return the interval alone; empty if there is none.

        >>> Estimate(value=0.5, low=0.41, high=0.62).interval_text(".1%")
        '41.0 to 62.0\u202f%'
        """
        if self.low is None or self.high is None:
            return ""
        return f"{number_text(self.low, form.replace('%', 'p'))} to {number_text(self.high, form)}"

    def cells(self, form: str = ".3f") -> tuple[str, str]:
        """Return the value and the interval for two columns of a table."""
        return number_text(self.value, form), self.interval_text(form) or MISSING


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
