"""What a shipped model's answers assume: its prior, and how it did on validation images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from lmd.model.network import STRICT
from lmd.scoring.conformal import Held

_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class Prior:
    """The class mix ``shares (K,)`` that the probabilities answer for.

    ``kind`` is ``uniform`` where training balances the classes and ``training`` where it does not.
    """

    kind: Literal["uniform", "training"]
    shares: tuple[Annotated[float, Field(gt=0, le=1)], ...]

    @model_validator(mode="after")
    def _check(self) -> "Prior":
        if abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(
                f"the shares of the prior must sum to 1; they sum to {sum(self.shares):g}"
            )
        return self


@dataclass(frozen=True, config=STRICT)
class HeldOut:
    """Of the validation images of each class, the sorted probabilities of that class.

    ``tiers (K,)`` are head, medium or tail; ``probabilities`` are K lists. ``groups`` has the
    number of the patient or lesion of each image, if it is known.
    """

    tiers: tuple[str, ...]
    probabilities: tuple[tuple[_Share, ...], ...]
    groups: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(cls, found: Sequence[Held], tiers: Sequence[str]) -> Self:
        """From the held-out images of each class, with probabilities rounded to float32."""
        values = [np.minimum(of.probabilities, 1).astype(np.float32) for of in found]
        groups = [tuple(of.groups.tolist()) for of in found if of.groups is not None]
        return cls(
            tuple(tiers),
            # The shortest text of a float32, which reads back as the same float32.
            tuple(tuple(float(str(p)) for p in of) for of in values),
            tuple(groups) if len(groups) == len(found) else None,
        )

    def classes(self) -> list[Held]:
        """The held-out images of each class."""
        values = [np.array(of, np.float32) for of in self.probabilities]
        if self.groups is None:
            return [Held(of) for of in values]
        return [Held(of, np.array(g, int)) for of, g in zip(values, self.groups, strict=True)]

    @model_validator(mode="after")
    def _check(self) -> "HeldOut":
        for values in self.probabilities:
            if any(a > b for a, b in pairwise(values)):
                raise ValueError("the probabilities of a class must be sorted")
        if self.groups is not None and [*map(len, self.groups)] != [*map(len, self.probabilities)]:
            raise ValueError("every probability of held-out images must have a group, or none")
        return self
