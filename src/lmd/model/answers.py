"""What a shipped model's answers assume: its prior, and how it did on validation images."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from lmd.model.network import STRICT

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

    ``tiers (K,)`` are head, medium or tail; ``probabilities`` are K lists.
    """

    tiers: tuple[str, ...]
    probabilities: tuple[tuple[_Share, ...], ...]

    @classmethod
    def of(cls, found: Sequence[NDArray[Any]], tiers: Sequence[str]) -> Self:
        """From sorted probabilities ``(n_k,)`` of each class, rounded to float32."""
        values = [np.minimum(of, 1).astype(np.float32) for of in found]
        # The shortest text of a float32, which reads back as the same float32.
        return cls(tuple(tiers), tuple(tuple(float(str(p)) for p in of) for of in values))

    @model_validator(mode="after")
    def _check(self) -> "HeldOut":
        for values in self.probabilities:
            if any(a > b for a, b in pairwise(values)):
                raise ValueError("the probabilities of a class must be sorted")
        return self
