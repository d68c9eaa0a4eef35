"""The forms of the paper's tables: their rows and columns, and what is marked in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.benchmark.plan import Row
from lmd.benchmark.tables.results import Entry, Estimate, Results
from lmd.scoring.differences import Difference, holm
from lmd.scoring.estimates import number_text
from lmd.scoring.metrics import METRICS
from lmd.scoring.tiers import TIERS

HEADLINE = "balanced_accuracy"
Mark = Literal["", "best", "second"]
NOTHING = Entry(())  # to compare with: no difference
_METRICS = ("auc", HEADLINE, "macro_f1", "kappa", "macro_precision", "macro_recall")
COLUMNS = {
    "metrics": _METRICS,
    "tiers": (*(f"bacc_{tier}" for tier in TIERS), HEADLINE),
    "factors": ("auc", HEADLINE),
    "sweep": _METRICS,
}


@dataclass(frozen=True)
class Value:
    """A number of a table, marked if it is the best or second best of its column."""

    estimate: Estimate
    mark: Mark = ""

    def text(self) -> str:
        """Return the value, without the interval."""
        mean, sd = number_text(self.estimate.mean, ".2p"), self.estimate.sd
        return mean if sd is None else f"{mean} ± {number_text(sd, '.2p')}"

    def interval(self) -> str:
        """Return the interval; empty if it is not known."""
        low, high = self.estimate.low, self.estimate.high
        if low is None or high is None:
            return ""
        return f"[{number_text(low, '.1p')}, {number_text(high, '.1p')}]"

    def numbers(self) -> list[float | None]:
        """Return the cells of a CSV file."""
        return [self.estimate.mean, self.estimate.sd, self.estimate.low, self.estimate.high]


@dataclass(frozen=True)
class Comparison:
    """A row's difference from the reference row, and its p-value after Holm's correction."""

    difference: Difference
    holm: float
    mark: Mark = ""

    def text(self) -> str:
        """Return the difference with its p-value."""
        p = "p < 0.001" if self.holm < 0.001 else f"p = {self.holm:.3f}"
        return f"{number_text(self.difference.value, '+.2p')}, {p}"

    def interval(self) -> str:
        """Return the interval of the difference."""
        low, high = self.difference.low, self.difference.high
        return f"[{number_text(low, '+.1p')}, {number_text(high, '+.1p')}]"

    def numbers(self) -> list[float | None]:
        """Return the cells of a CSV file."""
        gap = self.difference
        return [gap.value, gap.low, gap.high, gap.p_value, self.holm]


Cell = Value | Comparison | None


@dataclass(frozen=True)
class Column:
    """``metric`` is the key in the record; ``group`` is the heading above several columns."""

    metric: str
    title: str
    kind: Literal["value", "test"] = "value"
    group: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table; ``rule`` draws a line above it."""

    heads: tuple[str, ...]
    cells: tuple[Cell, ...]
    rule: bool = False
    note: str = ""
    tuning: str = ""  # what was chosen on the validation part


@dataclass(frozen=True)
class TableData:
    """The content of a table; ``points`` are those of the plan that it shows."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    points: tuple[int, ...]
    reference: str
    tests: int


@dataclass(frozen=True)
class _Place:
    """Where a line's numbers come from: an entry and its reference for each column group."""

    row: Row
    heads: tuple[str, ...]
    entries: tuple[Entry, ...]
    references: tuple[Entry, ...]
    rule: bool


def drawn_metrics(results: Results, form: str | None = None) -> tuple[str, ...]:
    """Return the metrics that the tables of a form need on resamples.

    The intervals of single runs are in their records, so only the tests of one seed are drawn.
    """
    several = any(len(entry.runs) > 1 for entry in results.entries.values())
    return COLUMNS[_form(results, form)] if several else (HEADLINE,)


def _form(results: Results, form: str | None) -> str:
    form = form or results.plan.form
    if form not in COLUMNS:
        raise LmdError(f"--form: {unknown('form', form, COLUMNS)}")
    return form


def build(results: Results, form: str | None = None) -> list[TableData]:
    """Build the tables of one form: one, or one per point if several methods are swept."""
    plan, form = results.plan, _form(results, form)
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
    """A line for each method; a rule separates the reference and its ablations."""
    rows, key = results.plan.rows, results.plan.reference
    reference = tuple(results.entry(key, p) for p in points)
    own = next((row for row in rows if row.own or row.key == key), None)
    lines: list[_Place] = []
    for row in rows:
        entries = tuple(results.entry(row.key, p) for p in points)
        against = (NOTHING,) * len(points) if row.key == key else reference
        lines.append(_Place(row, (row.title,), entries, against, row is own and bool(lines)))
    return lines


def _by_point(results: Results) -> list[_Place]:
    """A line for each point of each method, and one for a method that is not swept."""
    plan = results.plan
    lines: list[_Place] = []
    usual = next((i for i, point in enumerate(plan.points) if point.usual), None)
    for row in plan.rows:
        swept = results.swept(row.key)
        for i in range(len(plan.points)) if swept else [0]:
            labels = tuple(label if swept else "–" for label in plan.points[i].labels.values())
            heads = (row.title, *labels) if len(plan.rows) > 1 else labels
            against = NOTHING
            if usual is not None and (row.key, i) != (plan.reference, usual):
                against = results.entry(plan.reference, usual)
            rule = i == 0 and bool(lines)
            lines.append(_Place(row, heads, (results.entry(row.key, i),), (against,), rule))
    return lines


def _table(
    results: Results,
    form: str,
    title: str,
    heads: tuple[str, ...],
    groups: tuple[str, ...],
    places: Sequence[_Place],
    points: tuple[int, ...],
) -> TableData:
    """Fill in numbers, tests and marks."""
    plan = results.plan
    reference = next((r.title for r in plan.rows if r.key == plan.reference), "")
    usual = next((p.title for p in plan.points if p.usual), "")
    if heads[-1] != "Method":
        reference = f"{reference}, {usual}" if usual and "Method" in heads else usual
    columns: list[Column] = []
    cells: list[list[Cell]] = []
    for g, group in enumerate(groups):
        for metric in COLUMNS[form]:
            overall = form == "tiers" and metric == HEADLINE
            name = "Overall" if overall else METRICS[metric].short
            columns.append(Column(metric, name, group=group))
            estimates = [place.entries[g].estimate(metric) for place in places]
            values: list[Cell] = [Value(one) if one is not None else None for one in estimates]
            cells.append(_ranked(values, METRICS[metric].higher_is_better))
        gaps = [place.entries[g].difference(place.references[g], HEADLINE) for place in places]
        if any(gaps):
            columns.append(Column(HEADLINE, f"Δ BACC to {reference}", "test", group))
            cells.append([Comparison(gap, gap.p_value) if gap else None for gap in gaps])
    count = _correct(cells)
    lines = tuple(
        Line(
            place.heads,
            tuple(column[i] for column in cells),
            place.rule,
            place.row.note,
            results.tuning(place.row.key),
        )
        for i, place in enumerate(places)
    )
    return TableData(title, heads, tuple(columns), lines, points, reference, count)


def _correct(cells: list[list[Cell]]) -> int:
    """Apply Holm's correction to all tests of the table in place; returns their number."""
    tests = [
        (column, i, cell)
        for column in cells
        for i, cell in enumerate(column)
        if isinstance(cell, Comparison)
    ]
    corrected = holm([test.difference.p_value for _, _, test in tests])
    for (column, i, test), p in zip(tests, corrected, strict=True):
        column[i] = replace(test, holm=float(p))
    return len(tests)


def _ranked(column: list[Cell], higher_is_better: bool) -> list[Cell]:
    """Mark the best and the second best by the digits shown; equal values get the same mark."""
    shown = {
        i: round(100 * x.estimate.mean, 2) for i, x in enumerate(column) if isinstance(x, Value)
    }
    if len(shown) < 2:
        return column
    order = sorted(set(shown.values()), reverse=higher_is_better)
    marks: dict[float, Mark] = {order[0]: "best"}
    if len(order) > 1 and len(shown) > 2:
        marks[order[1]] = "second"
    return [
        replace(x, mark=marks.get(shown[i], "")) if isinstance(x, Value) else x
        for i, x in enumerate(column)
    ]
