"""What mistakes cost, and the decision with the least expected cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.scoring.class_values import by_name, check_names, class_values, number, read_cells
from lmd.scoring.confusion import Floats
from lmd.scoring.sample import Probabilities

OPTION = "--costs"
REFER = "refer"
GivenCosts = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Costs:
    """``table (K, K)``: the cost of predicting the class of a column for one of a row.

    ``refer (K,)`` is the cost of referring an image of each class to a person, if it is known.
    """

    table: Floats
    refer: Floats | None = None

    def decide(self, probabilities: Probabilities) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The cheapest class of each image ``(N,)``, and whether referral is cheaper still.

        The expected cost of class j is ``Σ_k p_k · cost(k, j)``; of equals, the first class. For
        the option to refer see Chow, IEEE Trans. Information Theory 1970.
        """
        expected = probabilities.astype(np.float64) @ self.table
        chosen = expected.argmin(axis=1)
        if self.refer is None:
            return chosen, np.zeros(len(chosen), bool)
        return chosen, probabilities @ self.refer < expected.min(axis=1)


def parse_costs(given: GivenCosts, classes: Sequence[str]) -> Costs:
    """Costs from a CSV file or a mapping.

    One number per class (``class,cost``) is the cost of any mistake with an image of that class. A
    table has true classes as rows and predicted classes as columns; one more column, ``refer``, may
    say what referral costs.

    >>> parse_costs({"mel": 10, "nv": 1}, ["nv", "mel"]).table.tolist()
    [[0.0, 1.0], [10.0, 0.0]]
    """
    rows = dict(given) if isinstance(given, Mapping) else _from_file(Path(given))
    nested = [isinstance(row, Mapping) for row in rows.values()]
    if not any(nested):
        weights = np.array(class_values(rows, classes, OPTION))
        return _useful(Costs(weights[:, None] * (1 - np.eye(len(classes)))))
    if not all(nested):
        raise LmdError(f"{OPTION} must be one number per class or a whole table, not a mixture")
    check_names(rows, classes, OPTION)
    extra = REFER not in classes and any(REFER in row for row in rows.values())
    columns = [*classes, REFER] if extra else list(classes)
    cells = np.array([_row(rows[name], name, columns) for name in classes])
    return _useful(Costs(cells[:, : len(classes)], cells[:, -1] if extra else None))


def _row(row: Mapping[str, Any], true: str, columns: Sequence[str]) -> list[float]:
    check_names(row, columns, f"{OPTION}, row of {true}")
    return [
        number(row[name], f"the cell of true {true} and predicted {name}", OPTION)
        for name in columns
    ]


def _useful(costs: Costs) -> Costs:
    if not costs.table.any():
        raise LmdError(f"{OPTION}: all costs are 0, so every decision would be as good as another")
    return costs


def _from_file(path: Path) -> dict[str, Any]:
    head, *rows = read_cells(path, OPTION) or [[]]
    if len(head) < 2 or not rows:
        raise LmdError(
            f"{OPTION}: {path} must have the columns class,cost, or a first line with the "
            "predicted classes and one row for each true class"
        )
    for row in rows:
        if len(row) != len(head):
            raise LmdError(
                f"{OPTION}: {path}: every row must have {len(head)} cells, as the first line; the "
                f"row of {row[0]!r} has {len(row)}"
            )
    if [name.lower() for name in head[1:]] == ["cost"]:
        return by_name(((row[0], row[1]) for row in rows), OPTION)
    by_name(((name, None) for name in head[1:]), OPTION)
    return by_name(((row[0], dict(zip(head[1:], row[1:], strict=True))) for row in rows), OPTION)
