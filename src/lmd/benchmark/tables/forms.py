"""The forms of the paper's tables: their rows and columns, and what is marked in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.benchmark.plan import Row
from lmd.benchmark.tables.results import Entry, Estimate, Results
from lmd.scoring.differences import Difference, holm
from lmd.scoring.estimates import MISSING, number_text
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
class Cell:
    """A number as text, its interval, and the numbers of a CSV file: those of ``Column.names``."""

    text: str = MISSING
    interval: str = ""
    numbers: tuple[Any, ...] = ()  # None where one is not known
    mark: Mark = ""


def _value(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell()
    mean, sd, low, high = numbers = (estimate.mean, estimate.sd, estimate.low, estimate.high)
    text = number_text(mean, ".2p") + ("" if sd is None else f" ± {number_text(sd, '.2p')}")
    known = low is not None and high is not None
    interval = f"[{number_text(low, '.1p')}, {number_text(high, '.1p')}]" if known else ""
    return Cell(text, interval, numbers)


def _test(gap: Difference, corrected: float) -> Cell:
    """Return a difference from the reference row, with its p-value after Holm's correction."""
    p = "p < 0.001" if corrected < 0.001 else f"p = {corrected:.3f}"
    interval = f"[{number_text(gap.low, '+.1p')}, {number_text(gap.high, '+.1p')}]"
    numbers = (gap.value, gap.low, gap.high, gap.p_value, corrected)
    return Cell(f"{number_text(gap.value, '+.2p')}, {p}", interval, numbers)


@dataclass(frozen=True)
class Column:
    """``metric`` is the key in the record; ``group`` is the heading above several columns."""

    metric: str
    title: str
    test: bool = False
    group: str = ""

    @property
    def full_title(self) -> str:
        """The title with the heading above it."""
        return f"{self.group}: {self.title}" if self.group else self.title

    @property
    def names(self) -> list[str]:
        """The columns of a CSV file."""
        key = f"{self.group} {self.metric}" if self.group else self.metric
        if self.test:
            names = ("difference", "difference_low", "difference_high", "p", "p_holm")
            return [f"{key}_{name}" for name in names]
        return [key, *(f"{key}_{name}" for name in ("sd", "low", "high"))]


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
    """Return a line for each method; a rule separates the reference and its ablations."""
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
    """Return a line for each point of each method, and one for a method that is not swept."""
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
    tests: dict[tuple[int, int], Difference] = {}  # by column and line
    for g, group in enumerate(groups):
        for metric in COLUMNS[form]:
            overall = form == "tiers" and metric == HEADLINE
            title_of = "Overall" if overall else METRICS[metric].short
            columns.append(Column(metric, title_of, group=group))
            values = [_value(place.entries[g].estimate(metric)) for place in places]
            cells.append(_ranked(values, METRICS[metric].higher_is_better))
        gaps = [place.entries[g].difference(place.references[g], HEADLINE) for place in places]
        if any(gaps):
            tests |= {(len(columns), i): gap for i, gap in enumerate(gaps) if gap}
            columns.append(Column(HEADLINE, f"Δ BACC to {reference}", True, group))
            cells.append([Cell()] * len(places))
    corrected = holm([gap.p_value for gap in tests.values()]).tolist()
    for ((column, i), gap), p in zip(tests.items(), corrected, strict=True):
        cells[column][i] = _test(gap, p)
    lines = tuple(
        Line(place.heads, row, place.rule, place.row.note, results.tuning(place.row.key))
        for place, row in zip(places, zip(*cells, strict=True), strict=True)
    )
    return TableData(title, heads, tuple(columns), lines, points, reference, len(tests))


def _ranked(column: list[Cell], higher_is_better: bool) -> list[Cell]:
    """Mark the best and the second best by the digits shown; equal values get the same mark."""
    shown = [round(100 * c.numbers[0], 2) if c.numbers else None for c in column]
    values = [value for value in shown if value is not None]
    order = sorted(set(values), reverse=higher_is_better)
    marks: dict[float | None, Mark] = {order[0]: "best"} if len(values) > 1 else {}
    if len(order) > 1 and len(values) > 2:
        marks[order[1]] = "second"
    return [replace(c, mark=marks.get(value, "")) for c, value in zip(column, shown, strict=True)]
