"""The forms of the paper's tables: which rows and columns there are, and what is marked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lmd.base.errors import LmdError
from lmd.benchmark.tables.results import Entry, Estimate, Results
from lmd.protocol import OLD_NAMES
from lmd.scoring.intervals import Difference, holm
from lmd.scoring.metrics import METRICS
from lmd.scoring.tiers import TIERS

HEADLINE = "balanced_accuracy"
_METRICS = ("auc", HEADLINE, "macro_f1", "kappa", "macro_precision", "macro_recall")
COLUMNS = {
    "metrics": _METRICS,
    "tiers": (*(f"bacc_{tier}" for tier in TIERS), HEADLINE),
    "factors": ("auc", HEADLINE),
    "sweep": _METRICS,
}


@dataclass(frozen=True)
class Value:
    """A number of a table and its rank: ``best`` or ``second`` of its column."""

    estimate: Estimate
    mark: Literal["", "best", "second"] = ""


@dataclass(frozen=True)
class Comparison:
    """A row's difference to the reference row and its p-value after Holm's correction."""

    difference: Difference
    holm: float


Cell = Value | Comparison | None


@dataclass(frozen=True)
class Column:
    """``group`` is the head above several columns; ``metric`` the record's key."""

    metric: str
    title: str
    kind: Literal["value", "test"] = "value"
    group: str = ""


@dataclass(frozen=True)
class Line:
    """A row: what stands at its left, its cells, and whether a rule goes above it."""

    heads: tuple[str, ...]
    cells: tuple[Cell, ...]
    rule: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableData:
    """A table without its looks; ``points`` are those of the plan that it shows."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    points: tuple[int, ...]
    reference: str
    tests: int


@dataclass(frozen=True)
class _Place:
    """Where a line's numbers come from: for each group of columns an entry and its reference."""

    heads: tuple[str, ...]
    entries: tuple[Entry | None, ...]
    references: tuple[Entry | None, ...]
    rule: bool = False
    notes: tuple[str, ...] = ()


def build(results: Results, form: str | None = None) -> list[TableData]:
    """The tables of one form: one, or one for each point where methods are compared at many."""
    plan = results.plan
    form = OLD_NAMES.get(form or plan.form, form or plan.form)
    if form not in COLUMNS:
        raise LmdError(f"--form {form!r} is unknown; choose one of {', '.join(COLUMNS)}")
    if form in ("factors", "sweep") and len(plan.points) < 2:
        raise LmdError(
            f"--form {form} needs a grid with a [sweep] of two values or more; {plan.name} has none"
        )
    swept = [row.key for row in plan.rows if results.swept(row.key)]
    everywhere = tuple(range(len(plan.points)))
    if form == "factors":
        groups = tuple(point.title for point in plan.points)
        lines = _by_method(results, everywhere)
        return [_table(results, form, plan.title, ("Method",), groups, lines, everywhere)]
    if form == "sweep" or (len(swept) == 1 and len(plan.points) > 1):
        heads = tuple(plan.points[0].labels)
        heads = heads if len(plan.rows) == 1 else ("Method", *heads)
        lines = _by_point(results)
        return [_table(results, form, plan.title, heads, ("",), lines, everywhere)]
    tables = []
    for i, point in enumerate(plan.points):
        title = f"{plan.title}: {point.title}" if point.labels else plan.title
        lines = _by_method(results, (i,))
        tables.append(_table(results, form, title, ("Method",), ("",), lines, (i,)))
    return tables


def _by_method(results: Results, points: Sequence[int]) -> list[_Place]:
    """A line for each method; the reference and its ablations stand below a rule."""
    plan = results.plan
    lines: list[_Place] = []
    own = [row.key for row in plan.rows if row.own or row.key == plan.reference]
    for row in plan.rows:
        entries = tuple(results.entry(row.key, p) for p in points)
        references = tuple(
            None if row.key == plan.reference else results.entry(plan.reference, p) for p in points
        )
        rule = bool(own) and row.key == own[0] and bool(lines)
        lines.append(_Place((row.title,), entries, references, rule, _notes(row.note)))
    return lines


def _by_point(results: Results) -> list[_Place]:
    """A line for each point of each method, and one for a method that is not swept."""
    plan = results.plan
    lines: list[_Place] = []
    usual = next((i for i, point in enumerate(plan.points) if point.usual), None)
    several = len(plan.rows) > 1
    for row in plan.rows:
        points = range(len(plan.points)) if results.swept(row.key) else [0]
        for i in points:
            labels = tuple(plan.points[i].labels.values())
            labels = labels if results.swept(row.key) else ("–",) * len(labels)
            reference = None
            if usual is not None and not (row.key == plan.reference and i == usual):
                reference = results.entry(plan.reference, usual)
            lines.append(
                _Place(
                    (row.title, *labels) if several else labels,
                    (results.entry(row.key, i),),
                    (reference,),
                    several and i == 0 and bool(lines),
                    _notes(row.note),
                )
            )
    return lines


def _notes(note: str) -> tuple[str, ...]:
    return (note,) if note else ()


def _table(
    results: Results,
    form: str,
    title: str,
    heads: tuple[str, ...],
    groups: tuple[str, ...],
    places: Sequence[_Place],
    points: tuple[int, ...],
) -> TableData:
    """Numbers, tests and marks of all lines."""
    reference = next((r.title for r in results.plan.rows if r.key == results.plan.reference), "")
    usual = next((p.title for p in results.plan.points if p.usual), "")
    if heads[-1] != "Method":
        reference = f"{reference}, {usual}" if usual and "Method" in heads else usual
    metrics = COLUMNS[form]
    columns, cells = [], []
    for g, group in enumerate(groups):
        own = [place.entries[g] for place in places]
        for metric in metrics:
            overall = form == "tiers" and metric == HEADLINE
            name = "Overall" if overall else METRICS[metric].short
            columns.append(Column(metric, name, group=group))
            cells.append([_value(entry, metric) for entry in own])
        tests = [_difference(place.entries[g], place.references[g]) for place in places]
        if any(test is not None for test in tests):
            columns.append(Column(HEADLINE, f"Δ BACC to {reference}", "test", group))
            cells.append(tests)
    count = _correct(cells)
    marked = [
        _ranked(of, METRICS[column.metric].higher_is_better)
        for column, of in zip(columns, cells, strict=True)
    ]
    lines = [
        Line(place.heads, tuple(column[i] for column in marked), place.rule, place.notes)
        for i, place in enumerate(places)
    ]
    return TableData(title, heads, tuple(columns), tuple(lines), points, reference, count)


def _value(entry: Entry | None, metric: str) -> Cell:
    estimate = entry.estimate(metric) if entry is not None else None
    return None if estimate is None else Value(estimate)


def _difference(entry: Entry | None, reference: Entry | None) -> Cell:
    if entry is None or reference is None:
        return None
    found = entry.difference(reference, HEADLINE)
    return None if found is None else Comparison(found, found.p_value)


def _correct(cells: list[list[Cell]]) -> int:
    """Holm's correction over all tests of the table, in place; returns their number."""
    tests = {
        (c, i): cell
        for c, column in enumerate(cells)
        for i, cell in enumerate(column)
        if isinstance(cell, Comparison)
    }
    corrected = holm([test.difference.p_value for test in tests.values()])
    for ((c, i), test), p in zip(tests.items(), corrected, strict=True):
        cells[c][i] = replace(test, holm=float(p))
    return len(tests)


def _ranked(column: list[Cell], higher_is_better: bool) -> list[Cell]:
    """The best and the second best marked, ties alike, judged by the digits that are shown."""
    shown = {
        i: round(100 * x.estimate.mean, 2) for i, x in enumerate(column) if isinstance(x, Value)
    }
    order = sorted(set(shown.values()), reverse=higher_is_better)
    if len(shown) < 2:
        return column
    marks: dict[float, Literal["", "best", "second"]] = {order[0]: "best"}
    if len(order) > 1 and len(shown) > 2:
        marks[order[1]] = "second"
    return [
        replace(x, mark=marks.get(shown[i], "")) if isinstance(x, Value) else x
        for i, x in enumerate(column)
    ]
