"""The learning curves of a run: what its stages share, and what each stage has alone."""

from collections.abc import Sequence
from itertools import count, groupby

from markupsafe import Markup

from lmd.report.curves import curve
from lmd.report.saving import savable
from lmd.runfolder.record import HistoryRow

FIXED_COLUMNS = ("stage", "stage_name", "epoch", "lr", "seconds")
M_STEP = "m_loss"  # a stage with this number is expectation-maximisation, an iteration per epoch
TITLES = {
    "val_bacc": "Validation balanced accuracy",
    "loss": "Loss",
    "psi": "Psi: distance to the own class",
    "phi": "Phi: distance to the other classes",
    M_STEP: "Loss of the M step",
}
Rows = Sequence[HistoryRow]
Stages = Sequence[tuple[str, Rows]]
Figures = list[tuple[str, Markup]]


def curve_groups(history: Rows) -> list[tuple[str, Figures]]:
    """Pairs of a heading and small charts: one chart for every number of the history.

    A number that only one of several stages has is drawn over the epochs of that stage.
    """
    stages = [(name, list(rows)) for name, rows in groupby(history, key=_stage)]
    keys = dict.fromkeys(("val_bacc", *(key for row in history for key in row)))
    known = [key for key in keys if key not in FIXED_COLUMNS and _has(history, key)]
    shared = [key for key in known if key == "val_bacc" or _owners(stages, key) > 1]
    numbers = count()
    if len(stages) < 2:
        unit = "EM iteration" if _has(history, M_STEP) else "epoch"
        return [("", [_figure(next(numbers), k, stages, unit) for k in known])] if known else []
    groups = [("", [_figure(next(numbers), key, stages, "epoch") for key in shared])]
    for name, rows in stages:
        em = len(rows) > 1 and _has(rows, M_STEP)
        unit = "EM iteration" if em else "epoch"
        own = [key for key in known if key not in shared and _has(rows, key)]
        figures = [_figure(next(numbers), key, [(name, rows)], unit) for key in own]
        groups.append((f"{name}, over its EM iterations" if em else name, figures))
    return [(heading, figures) for heading, figures in groups if figures]


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
