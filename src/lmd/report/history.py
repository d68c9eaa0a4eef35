"""The learning curves of a run: what its stages share, and what each stage has alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, groupby

from markupsafe import Markup

from lmd.report.curves import curve
from lmd.report.svg import savable
from lmd.runs.record import HistoryRow

FIXED_COLUMNS = ("stage", "stage_name", "epoch", "lr", "seconds")
M_STEP = "m_loss"  # a stage with this number is expectation-maximisation, an iteration per epoch
TITLES = {
    "val_bacc": "Validation balanced accuracy",
    "loss": "Loss",
    "psi": "Psi: distance to the own class",
    "phi": "Phi: distance to the other classes",
    M_STEP: "Loss of the M step",
    "m_grad_norm": "Gradient where the M step ended",
    "m_evaluations": "Evaluations in the M step",
    "shrinkage": "Shrinkage of the covariances",
    "weight_penalty": "Penalty on the classifier's weights",
}
Rows = Sequence[HistoryRow]
Stages = Sequence[tuple[str, Rows]]
Figures = list[tuple[str, Markup]]


@dataclass(frozen=True)
class Group:
    """What one stage has alone, or all stages share: small charts, or numbers of a single epoch."""

    heading: str
    figures: Figures = field(default_factory=list)
    numbers: list[tuple[str, str]] = field(default_factory=list)


def curve_groups(history: Rows) -> list[Group]:
    """Every number of the history, drawn over the epochs of the stages that have it.

    One that only one of several stages has is drawn over the epochs of that stage, and written
    down if that is a single epoch.
    """
    stages = [(name, list(rows)) for name, rows in groupby(history, key=_stage)]
    keys = dict.fromkeys(("val_bacc", *(key for row in history for key in row)))
    known = [key for key in keys if key not in FIXED_COLUMNS and _has(history, key)]
    shared = [key for key in known if key == "val_bacc" or _owners(stages, key) > 1]
    numbers = count()
    if len(stages) < 2:
        unit = "EM iteration" if _has(history, M_STEP) else "epoch"
        figures = [_figure(next(numbers), key, stages, unit) for key in known]
        return [Group("", figures)] if figures else []
    groups = [Group("", [_figure(next(numbers), key, stages, "epoch") for key in shared])]
    for name, rows in stages:
        own = [key for key in known if key not in shared and _has(rows, key)]
        if len(rows) == 1:
            values = [(TITLES.get(key, key), f"{_number(rows[0], key):.4g}") for key in own]
            groups.append(Group(name, numbers=values))
            continue
        em = _has(rows, M_STEP)
        unit = "EM iteration" if em else "epoch"
        figures = [_figure(next(numbers), key, [(name, rows)], unit) for key in own]
        groups.append(Group(f"{name}, over its EM iterations" if em else name, figures))
    return [group for group in groups if group.figures or group.numbers]


def _figure(number: int, key: str, stages: Stages, unit: str) -> tuple[str, Markup]:
    title = TITLES.get(key, key)
    rows = [row for _, each in stages for row in each]
    values = [_number(row, key) for row in rows]
    lengths = [(name, len(each)) for name, each in stages]
    drawing = curve(f"curve-{number}", title, values, lengths, unit)
    data = [
        {"stage": _stage(row), "epoch": row.get("epoch"), key: value}
        for row, value in zip(rows, values, strict=True)
    ]
    return title, savable(key, drawing, data)


def _owners(stages: Stages, key: str) -> int:
    return sum(_has(rows, key) for _, rows in stages)


def _has(rows: Rows, key: str) -> bool:
    return any(_number(row, key) is not None for row in rows)


def _number(row: HistoryRow, key: str) -> float | None:
    found = row.get(key)
    return float(found) if isinstance(found, int | float) else None


def _stage(row: HistoryRow) -> str:
    return str(row.get("stage_name") or f"stage {row.get('stage')}")
