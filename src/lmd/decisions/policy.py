"""From probabilities to decisions: the mix of classes, costs, prediction sets and referrals."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.text import shorten, unknown
from lmd.decisions.decide import CostTable, Decide, Prevalence
from lmd.scoring.conformal import Guarantee, Held, guarantees, prediction_sets, true_probabilities
from lmd.scoring.proportions import Floats, Probabilities, class_mix, reweighted

if TYPE_CHECKING:
    from lmd.runs.predictions import Predictions
    from lmd.runs.record import Record

PREVALENCE_OPTION = "--prevalence"
TOLERANCE = 1e-3  # how far from 1 the shares may sum
_FORMS = 'uniform, training, a .csv file with the columns class,prevalence, or "A=0.7,B=0.3"'
COSTS_OPTION = "--costs"
REFER = "refer"


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


@dataclass(frozen=True)
class Basis:
    """What a policy needs to know about a model.

    ``counts (K,)`` are of the training part, ``prior (K,)`` is the mix that the probabilities
    answer for, ``tiers (K,)`` are those of the classes, and ``held_out`` has the validation images
    of each class.
    """

    classes: Sequence[str]
    counts: Sequence[int]
    prior: Floats | None
    tiers: Sequence[str]
    held_out: Sequence[Held] | None

    @classmethod
    def of_run(cls, record: "Record", predictions: "Predictions") -> "Basis":
        """Return what is known about the model of a run."""
        counts, validation = record.data.counts["train"], predictions.parts.get("validation")
        held_out = None
        if validation is not None:
            held_out = true_probabilities(
                validation.labels, validation.probabilities, validation.groups
            )
        prior = record.model.prior
        return cls(
            classes=predictions.classes,
            counts=counts,
            prior=None if prior is None else class_mix(prior, counts),
            tiers=record.tiers.assignment,
            held_out=held_out,
        )

    @property
    def holds_out(self) -> bool:
        """Whether there are validation images."""
        return self.held_out is not None and any(map(len, self.held_out))


@dataclass(frozen=True)
class Policy:
    """How probabilities become decisions.

    ``prior (K,)`` is the mix that the probabilities answer for and ``mix (K,)`` the one that they
    are wanted for. Without costs the most probable class is decided. ``sets`` are the guarantees of
    prediction sets; an image whose set is empty, or larger than ``refer_above``, is referred.
    """

    prior: Floats | None = None
    mix: Floats | None = None
    costs: Costs | None = None
    sets: Sequence[Guarantee] | None = None
    refer_above: int | None = None

    def decide(self, probabilities: Probabilities) -> "Decided":
        """The decisions for probabilities ``(N, K)`` of the model.

        Sets are made from the model's own probabilities, before the mix is exchanged: their
        thresholds come from such probabilities, and coverage for images of one class does not
        depend on how frequent the class is.
        """
        for_mix: NDArray[np.floating[Any]] = probabilities
        if self.prior is not None and self.mix is not None:
            for_mix = reweighted(probabilities, self.prior, self.mix)
        chosen, refer = for_mix.argmax(axis=1), np.zeros(len(for_mix), bool)
        if self.costs is not None:
            chosen, refer = self.costs.decide(for_mix)
        sets = None
        if self.sets is not None:
            sets = prediction_sets(probabilities, [one.threshold for one in self.sets])
            sizes = sets.sum(axis=1)
            most = sets.shape[1] if self.refer_above is None else self.refer_above
            refer = refer | (sizes == 0) | (sizes > most)
        return Decided(for_mix, chosen, sets, refer)

    @property
    def refers(self) -> bool:
        """Whether an image can be referred."""
        return self.sets is not None or (self.costs is not None and self.costs.refer is not None)


@dataclass(frozen=True)
class Decided:
    """Probabilities ``(N, K)`` for the mix, chosen classes ``(N,)``, sets ``(N, K)``, referrals."""

    probabilities: NDArray[np.floating[Any]]
    chosen: NDArray[np.intp]
    sets: NDArray[np.bool_] | None
    refer: NDArray[np.bool_]


def make_policy(decide: Decide, basis: Basis) -> Policy:
    """Check what a user asks for against the basis that the model has."""
    mix = sets = None
    if decide.prevalence is not None:
        if basis.prior is None:
            raise LmdError(
                "--prevalence needs to know the mix of classes that the model answers for, and "
                "this model does not say it"
            )
        mix = parse_prevalence(decide.prevalence, basis.classes, basis.counts)
    costs = None if decide.costs is None else parse_costs(decide.costs, basis.classes)
    if decide.coverage is not None:
        if basis.held_out is None or not basis.holds_out:
            raise LmdError(
                "--coverage needs the probabilities of validation images, and this model has none: "
                "a run without a validation part has none, nor have all folds of a "
                "cross-validation together (train with --final refit and give its folder `final` "
                "to predict; the report of each fold has the coverage on test images)"
            )
        sets = guarantees(basis.held_out, basis.tiers, decide.coverage)
    if decide.refer_above is not None and (sets is None or decide.refer_above < 1):
        why = "needs --coverage as well" if sets is None else "must be at least 1"
        raise LmdError(f"--refer-above {why}; it is {decide.refer_above}")
    return Policy(basis.prior, mix, costs, sets, decide.refer_above)


def parse_prevalence(given: Prevalence, classes: Sequence[str], counts: Sequence[int]) -> Floats:
    """The shares ``(K,)`` that a user states; ``counts (K,)`` are those of the training part.

    >>> parse_prevalence("nv=0.9, mel=0.1", ["mel", "nv"], [5, 5]).tolist()
    [0.1, 0.9]
    """
    if isinstance(given, str) and given in ("uniform", "training"):
        return class_mix("uniform" if given == "uniform" else "training", counts)
    values = class_values(_pairs(given), classes, PREVALENCE_OPTION)
    total = sum(values)
    if abs(total - 1) > TOLERANCE:
        raise LmdError(
            f"{PREVALENCE_OPTION}: the shares of the classes must sum to 1 within {TOLERANCE:g}; "
            f"they sum to {total:.6g}: give shares, not counts or per cent"
        )
    return np.asarray(values) / total


def read_cells(path: Path, option: str) -> list[list[str]]:
    """The rows of a CSV file without blank ones, each with its cells stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise LmdError(f"{option}: {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise LmdError(f"{option}: {path} is not a CSV file in UTF-8 ({error})") from None
    cells = [[cell.strip() for cell in row] for row in rows]
    return [row for row in cells if any(row)]


def by_name(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    """Pairs of class and value as a mapping; a class must not be given twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise LmdError(f"{option}: class {name!r} is given twice; give it once")
        found[name] = value
    return found


def check_names(given: Iterable[str], classes: Sequence[str], option: str) -> None:
    """Every class must be given, and no other."""
    names = list(given)
    foreign = [name for name in names if name not in classes]
    if foreign:
        raise LmdError(f"{option}: {unknown('class', foreign[0], classes)}")
    missing = [name for name in classes if name not in names]
    if missing:
        raise LmdError(f"{option}: no value for {shorten(missing, 5)}; give one for every class")


def number(value: Any, name: str, option: str) -> float:
    """A number that is finite and not negative; ``name`` says which one it is."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found) or found < 0:
        shown = "empty" if value in ("", None) else repr(value)
        raise LmdError(f"{option}: {name} must be a number of at least 0; it is {shown}")
    return found


def class_values(given: Mapping[str, Any], classes: Sequence[str], option: str) -> list[float]:
    """The values in the order of ``classes (K,)``, after all checks.

    >>> class_values({"b": "2", "a": 0.5}, ["a", "b"], "--costs")
    [0.5, 2.0]
    """
    check_names(given, classes, option)
    return [number(given[name], f"the value of {name}", option) for name in classes]


def _pairs(given: Prevalence) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if str(given).lower().endswith(".csv"):
        return _from_file(Path(given))
    words = [word for word in str(given).split(",") if word.strip()]
    split = [tuple(part.strip() for part in word.rpartition("=")[::2]) for word in words]
    if not split or not all(name for name, _ in split):
        raise LmdError(f"{PREVALENCE_OPTION} must be {_FORMS}; it is {str(given)!r}")
    return by_name(((name, value) for name, value in split), PREVALENCE_OPTION)


def _from_file(path: Path) -> dict[str, Any]:
    head, *rows = read_cells(path, PREVALENCE_OPTION) or [[]]
    names = [name.lower() for name in head]
    if names != ["class", "prevalence"] or any(len(row) != 2 for row in rows):
        raise LmdError(
            f"{PREVALENCE_OPTION}: {path} must have the two columns class,prevalence, with this "
            f"first line; it begins with {','.join(head)!r}"
        )
    return by_name(((row[0], row[1]) for row in rows), PREVALENCE_OPTION)


def parse_costs(given: CostTable, classes: Sequence[str]) -> Costs:
    """Costs from a CSV file or a mapping.

    One number per class (``class,cost``) is the cost of any mistake with an image of that class. A
    table has true classes as rows and predicted classes as columns; one more column, ``refer``, may
    say what referral costs.

    >>> parse_costs({"mel": 10, "nv": 1}, ["nv", "mel"]).table.tolist()
    [[0.0, 1.0], [10.0, 0.0]]
    """
    rows = dict(given) if isinstance(given, Mapping) else _costs_from_file(Path(given))
    nested = [isinstance(row, Mapping) for row in rows.values()]
    if not any(nested):
        weights = np.array(class_values(rows, classes, COSTS_OPTION))
        return _useful(Costs(weights[:, None] * (1 - np.eye(len(classes)))))
    if not all(nested):
        raise LmdError(
            f"{COSTS_OPTION} must be one number per class or a whole table, not a mixture"
        )
    check_names(rows, classes, COSTS_OPTION)
    extra = REFER not in classes and any(REFER in row for row in rows.values())
    columns = [*classes, REFER] if extra else list(classes)
    cells = np.array([_row(rows[name], name, columns) for name in classes])
    return _useful(Costs(cells[:, : len(classes)], cells[:, -1] if extra else None))


def _row(row: Mapping[str, Any], true: str, columns: Sequence[str]) -> list[float]:
    check_names(row, columns, f"{COSTS_OPTION}, row of {true}")
    return [
        number(row[name], f"the cell of true {true} and predicted {name}", COSTS_OPTION)
        for name in columns
    ]


def _useful(costs: Costs) -> Costs:
    if not costs.table.any():
        raise LmdError(
            f"{COSTS_OPTION}: all costs are 0, so every decision would be as good as another"
        )
    return costs


def _costs_from_file(path: Path) -> dict[str, Any]:
    head, *rows = read_cells(path, COSTS_OPTION) or [[]]
    if len(head) < 2 or not rows:
        raise LmdError(
            f"{COSTS_OPTION}: {path} must have the columns class,cost, or a first line with the "
            "predicted classes and one row for each true class"
        )
    for row in rows:
        if len(row) != len(head):
            raise LmdError(
                f"{COSTS_OPTION}: {path}: every row must have {len(head)} cells, as the first "
                f"line; the row of {row[0]!r} has {len(row)}"
            )
    if [name.lower() for name in head[1:]] == ["cost"]:
        return by_name(((row[0], row[1]) for row in rows), COSTS_OPTION)
    by_name(((name, None) for name in head[1:]), COSTS_OPTION)
    cells = (dict(zip(head[1:], row[1:], strict=True)) for row in rows)
    return by_name(zip((row[0] for row in rows), cells, strict=True), COSTS_OPTION)
