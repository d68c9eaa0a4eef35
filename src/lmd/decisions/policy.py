"""From probabilities to decisions: the mix of classes, costs, prediction sets and referrals."""

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
    from lmd.model.files import HeldOut, ModelSpec, Prior
    from lmd.runs.folder import Predictions
    from lmd.runs.record import Record

TOLERANCE = 1e-3  # how far from 1 the shares may sum
REFER = "refer"  # a column of costs


@dataclass(frozen=True)
class Costs:
    """``table (K, K)``: the cost of predicting the class of a column for one of a row.

    ``refer (K,)`` is the cost of referring an image of each class to a person, if it is known.
    """

    table: Floats
    refer: Floats | None = None

    def decide(self, probabilities: Probabilities) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the cheapest class of each image ``(N,)``, and whether referral is cheaper still.

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
    answer for, ``tiers (K,)`` are the tiers of the classes, and ``held_out`` has the validation
    images of each class, ``None`` if there are no such images.
    """

    classes: Sequence[str]
    counts: Sequence[int]
    prior: Floats | None
    tiers: Sequence[str]
    held_out: Sequence[Held] | None

    @classmethod
    def of_run(cls, record: "Record", predictions: "Predictions") -> "Basis":
        """Return the basis that a run folder has."""
        counts, held_out = record.data.counts["train"], None
        if (part := predictions.parts.get("validation")) and len(part.labels):
            held_out = true_probabilities(part.labels, part.probabilities, part.groups)
        prior = record.model.prior
        return cls(
            classes=predictions.classes,
            counts=counts,
            prior=None if prior is None else class_mix(prior, counts),
            tiers=record.tiers.assignment,
            held_out=held_out,
        )


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
        """Decide for probabilities ``(N, K)`` of the model.

        Sets are made from the model's own probabilities, before the mix is exchanged: their
        thresholds come from such probabilities, and coverage for images of one class does not
        depend on how frequent the class is.
        """
        for_mix, sets = probabilities, None
        if self.prior is not None and self.mix is not None:
            for_mix = reweighted(probabilities, self.prior, self.mix)
        chosen, refer = for_mix.argmax(axis=1), np.zeros(len(for_mix), bool)
        if self.costs is not None:
            chosen, refer = self.costs.decide(for_mix)
        if self.sets is not None:
            sets = prediction_sets(probabilities, [guarantee.threshold for guarantee in self.sets])
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

    probabilities: Probabilities
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
        if basis.held_out is None:
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


def answers_of(
    record: "Record", predictions: "Predictions"
) -> "tuple[Prior | None, HeldOut | None]":
    """Return the prior and the validation probabilities that the model's file has."""
    from lmd.model.files import HeldOut, Prior

    basis, kind = Basis.of_run(record, predictions), record.model.prior
    prior = held_out = None
    if basis.prior is not None and kind is not None:
        prior = Prior(kind, tuple(basis.prior.tolist()))
    if basis.held_out is not None:
        held_out = HeldOut.of(basis.held_out, basis.tiers)
    return prior, held_out


def policy_of(spec: "ModelSpec", decide: Decide) -> Policy:
    """Return the policy for ``decide``, checked against the description of the model."""
    held_out, prior = spec.held_out, spec.prior
    basis = Basis(
        classes=spec.classes,
        counts=spec.class_counts,
        prior=None if prior is None else np.array(prior.shares),
        tiers=("",) * len(spec.classes) if held_out is None else held_out.tiers,
        held_out=None if held_out is None or decide.coverage is None else held_out.classes(),
    )
    policy = make_policy(decide, basis)
    # Without another mix the probabilities stay as they are, to the last bit.
    return policy if policy.mix is not None else replace(policy, prior=None)


def describe_guarantees(
    sets: Sequence[Guarantee], classes: Sequence[str], coverage: float
) -> list[str]:
    """One line per class: which images its coverage is guaranteed for, and how exact it is."""
    whose = {
        "class": "images of the class",
        "tier": "images of its tier together",
        "all": "all images together",
        "always": "in every set",
    }
    lines = [f"Prediction sets with a coverage of {100 * coverage:g} %, guaranteed for"]
    width = max(len(name) for name in classes)
    for name, guarantee in zip(classes, sets, strict=True):
        line = f"  {name:<{width}}  {whose[guarantee.level]}"
        if guarantee.level == "always":
            lines.append(f"{line} (too few validation images)")
            continue
        span = f"{100 * guarantee.low:.0f} to {100 * guarantee.high:.0f} %"
        of = "" if guarantee.groups is None else f" of {guarantee.groups} patients or lesions"
        lines.append(f"{line} (by {guarantee.images} validation images{of}: {span})")
    return lines


def parse_prevalence(stated: Prevalence, classes: Sequence[str], counts: Sequence[int]) -> Floats:
    """Return the shares ``(K,)`` that a user states; ``counts (K,)`` are of the training part.

    >>> parse_prevalence("nv=0.9, mel=0.1", ["mel", "nv"], [5, 5]).tolist()
    [0.1, 0.9]
    """
    if stated == "uniform":
        return class_mix("uniform", counts)
    if stated == "training":
        return class_mix("training", counts)
    shares: Mapping[str, Any]
    if isinstance(stated, Mapping):
        shares = stated
    elif str(stated).lower().endswith(".csv"):
        head, rows = _read_table(Path(stated), "--prevalence")
        if [name.lower() for name in head] != ["class", "prevalence"]:
            raise LmdError(
                f"--prevalence: {stated} must have the two columns class,prevalence, with "
                f"this first line; it begins with {','.join(head)!r}"
            )
        shares = {name: row[0] for name, row in rows.items()}
    else:
        pieces = [piece.rpartition("=") for piece in str(stated).split(",") if piece.strip()]
        if not pieces or not all(name.strip() for name, _, _ in pieces):
            raise LmdError(
                "--prevalence must be uniform, training, a .csv file with the columns "
                f'class,prevalence, or "A=0.7,B=0.3"; it is {str(stated)!r}'
            )
        names = [name.strip() for name, _, _ in pieces]
        _check_unique(names, "--prevalence")
        shares = dict(zip(names, (share.strip() for _, _, share in pieces), strict=True))
    values = _numbers(shares, classes, "--prevalence")
    total = sum(values)
    if abs(total - 1) > TOLERANCE:
        raise LmdError(
            f"--prevalence: the shares of the classes must sum to 1 within {TOLERANCE:g}; "
            f"they sum to {total:.6g}: give shares, not counts or per cent"
        )
    return np.asarray(values) / total


def parse_costs(stated: CostTable, classes: Sequence[str]) -> Costs:
    """Return costs from a CSV file or a mapping.

    One number per class (``class,cost``) is the cost of any mistake with an image of that class. A
    table has true classes as rows and predicted classes as columns; one more column, ``refer``, may
    say what referral costs.

    >>> parse_costs({"mel": 10, "nv": 1}, ["nv", "mel"]).table.tolist()
    [[0.0, 1.0], [10.0, 0.0]]
    """
    rows = dict(stated) if isinstance(stated, Mapping) else _costs_from_file(Path(stated))
    tables = [isinstance(row, Mapping) for row in rows.values()]
    if not all(tables) and any(tables):
        raise LmdError("--costs must be one number per class or a whole table, not a mixture")
    if not any(tables):
        weights = np.array(_numbers(rows, classes, "--costs"))
        costs = Costs(weights[:, None] * (1 - np.eye(len(classes))))
    else:
        _check_names(rows, classes, "--costs")
        extra = REFER not in classes and any(REFER in row for row in rows.values())
        columns = [*classes, REFER] if extra else list(classes)
        cells = np.array([_numbers(rows[name], columns, "--costs", name) for name in classes])
        costs = Costs(cells[:, : len(classes)], cells[:, -1] if extra else None)
    if not costs.table.any():
        raise LmdError("--costs: all costs are 0, so every decision would be as good as another")
    return costs


def _costs_from_file(path: Path) -> dict[str, Any]:
    head, rows = _read_table(path, "--costs")
    if len(head) < 2 or not rows:
        raise LmdError(
            f"--costs: {path} must have the columns class,cost, or a first line with the "
            "predicted classes and one row for each true class"
        )
    if [name.lower() for name in head[1:]] == ["cost"]:
        return {name: row[0] for name, row in rows.items()}
    _check_unique(head[1:], "--costs")
    return {name: dict(zip(head[1:], row, strict=True)) for name, row in rows.items()}


def _read_table(path: Path, option: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the first line of a CSV file, and the other cells of each row by its first cell."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise LmdError(f"{option}: {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise LmdError(f"{option}: {path} is not a CSV file in UTF-8 ({error})") from None
    cells = [[cell.strip() for cell in line] for line in lines]
    head, *rows = [row for row in cells if any(row)] or [[]]
    for row in rows:
        if len(row) != len(head):
            raise LmdError(
                f"{option}: {path}: every row must have {len(head)} cells, as the first line; "
                f"the row of {row[0]!r} has {len(row)}"
            )
    _check_unique([row[0] for row in rows], option)
    return head, {row[0]: row[1:] for row in rows}


def _check_unique(names: Sequence[str], option: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise LmdError(f"{option}: class {name!r} is given twice; give it once")


def _check_names(names: Collection[str], classes: Sequence[str], option: str) -> None:
    """Check that every class has a value, and nothing else has."""
    foreign = [name for name in names if name not in classes]
    if foreign:
        raise LmdError(f"{option}: {unknown('class', foreign[0], classes)}")
    missing = [name for name in classes if name not in names]
    if missing:
        raise LmdError(f"{option}: no value for {shorten(missing, 5)}; give one for every class")


def _numbers(
    values: Mapping[str, Any], classes: Sequence[str], option: str, true: str = ""
) -> list[float]:
    """Return the values in the order of ``classes (K,)``, or of a row of a table."""
    title = "the value of"
    if true:
        option, title = f"{option}, row of {true}", f"the cell of true {true} and predicted"
    _check_names(values, classes, option)
    numbers = []
    for name in classes:
        value = values[name]
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or number < 0:
            shown = "empty" if value in ("", None) else repr(value)
            raise LmdError(
                f"{option}: {title} {name} must be a number of at least 0; it is {shown}"
            )
        numbers.append(number)
    return numbers
