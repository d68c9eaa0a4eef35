"""How probabilities are to become decisions; the text of ``Attributes`` is also help."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Prevalence = str | Path | Mapping[str, float]
CostTable = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Decide:
    """How probabilities are to become decisions; ``make_policy`` checks it.

    Attributes:
        prevalence: The mix of classes where the model is used: uniform, training, a .csv with
            class,prevalence, or "A=0.7,B=0.3". By default the mix that the model answers for.
        costs: A .csv with class,cost, or a table of true by predicted classes: decide for the
            class with the least expected cost. By default the most probable class.
        coverage: Give a set of classes that contains the true one with this probability, such as
            0.9.
        refer_above: Refer images with more classes in their set to a person. By default never.
    """

    prevalence: Prevalence | None = None
    costs: CostTable | None = None
    coverage: float | None = None
    refer_above: int | None = None

    def words(self) -> list[str]:
        """Return the options of a command that decide in this way.

        Costs that are in no file are called ``COSTS.csv``; the record has them.

        >>> Decide({"nv": 0.9, "mel": 0.1}, coverage=0.8).words()
        ['--prevalence', 'nv=0.9,mel=0.1', '--coverage', '0.8']
        """
        values = dict(vars(self))
        if isinstance(self.prevalence, Mapping):
            shares = (f"{name}={float(share)}" for name, share in self.prevalence.items())
            values["prevalence"] = ",".join(shares)
        if isinstance(self.costs, Mapping):
            values["costs"] = "COSTS.csv"
        options: list[str] = []
        for name, value in values.items():
            options += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
        return options
