"""The paper's tables in four forms, as plain text, Markdown, LaTeX and CSV, with their notes."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from string import ascii_lowercase
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.base.text import csv_text, shorten, text_table, unknown
from lmd.benchmark.plan import Row
from lmd.benchmark.results import Estimate, Results, RunResult
from lmd.benchmark.trials import HEADLINE, RULE
from lmd.scoring.differences import Difference, holm
from lmd.scoring.estimates import MISSING, number_text
from lmd.scoring.metrics import METRICS
from lmd.scoring.tiers import TIERS

Mark = Literal["", "best", "second"]
_METRICS = ("auc", HEADLINE, "macro_f1", "kappa", "macro_precision", "macro_recall")
COLUMNS = {
    "metrics": _METRICS,
    "tiers": (*(f"bacc_{tier}" for tier in TIERS), HEADLINE),
    "factors": ("auc", HEADLINE),
    "sweep": _METRICS,
}


@dataclass(frozen=True)
class Cell:
    """A number as text, its interval, and one number for each of ``Column.names``."""

    text: str = MISSING
    interval: str = ""
    numbers: tuple[Any, ...] = ()  # None where one is not known
    mark: Mark = ""


def _value(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell()
    mean, sd, low, high = numbers = (estimate.mean, estimate.sd, estimate.low, estimate.high)
    text = number_text(mean, ".2p") + ("" if sd is None else f" ± {number_text(sd, '.2p')}")
    bounded = low is not None and high is not None
    interval = f"[{number_text(low, '.1p')}, {number_text(high, '.1p')}]" if bounded else ""
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
        tested = ("_difference", "_difference_low", "_difference_high", "_p", "_p_holm")
        return [key + end for end in (tested if self.test else ("", "_sd", "_low", "_high"))]


@dataclass(frozen=True)
class Line:
    """A row of a table; ``rule`` draws a line above it.

    ``points`` are its numbers, one for each group of columns.
    """

    row: Row
    heads: tuple[str, ...]
    points: tuple[int, ...]
    rule: bool
    tuning: str  # what was chosen on the validation part
    cells: tuple[Cell, ...] = ()


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

    @property
    def footnotes(self) -> dict[str, str]:
        """A letter for each note of a row; rows with the same note share it."""
        texts = dict.fromkeys(line.row.note for line in self.lines if line.row.note)
        return {t: ascii_lowercase[i] if i < 26 else f"{i + 1}" for i, t in enumerate(texts)}


def drawn_metrics(results: Results, form: str | None = None) -> tuple[str, ...]:
    """Return the metrics that tables need on resamples; records have the intervals of one seed."""
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
    everywhere = {i: point.title for i, point in enumerate(plan.points)}
    if form == "factors":
        return [_table(results, form, plan.title, everywhere)]
    swept = [row for row in plan.rows if results.swept(row.key)]
    if form == "sweep" or (len(swept) == 1 and len(everywhere) > 1):
        return [_table(results, form, plan.title, None)]
    return [
        _table(results, form, f"{plan.title}: {title}" if title else plan.title, {i: ""})
        for i, title in everywhere.items()
    ]


def _lines(results: Results, points: tuple[int, ...]) -> Iterator[Line]:
    """Yield a table's rows without cells: methods, or every point of each without ``points``."""
    plan = results.plan
    ours = [row.own or row.key == plan.reference for row in plan.rows]
    for n, row in enumerate(plan.rows):
        tuning = results.tuning(row.key)
        if points:
            rule = n > 0 and ours[n] and not any(ours[:n])
            yield Line(row, (row.title,), points, rule, tuning)
            continue
        swept = results.swept(row.key)
        for i in range(len(plan.points)) if swept else [0]:
            labels = tuple(label if swept else "–" for label in plan.points[i].labels.values())
            heads = (row.title, *labels) if len(plan.rows) > 1 else labels
            yield Line(row, heads, (i,), i == 0 and n > 0, tuning)


def _table(results: Results, form: str, title: str, groups: Mapping[int, str] | None) -> TableData:
    """Fill in numbers, tests and marks; ``groups`` names the points with columns of their own."""
    plan = results.plan
    lines = list(_lines(results, tuple(groups or ())))
    reference = next((r.title for r in plan.rows if r.key == plan.reference), "")
    usual = next((i for i, point in enumerate(plan.points) if point.usual), None)
    heads: tuple[str, ...] = ("Method",)
    if groups is None:
        heads = (*(heads if len(plan.rows) > 1 else ()), *plan.points[0].labels)
        at_usual = "" if usual is None else plan.points[usual].title
        both = at_usual and len(plan.rows) > 1
        reference = f"{reference}, {at_usual}" if both else at_usual

    def difference(row: str, point: int) -> Difference | None:
        base = point if groups else usual
        if base is None or (row, point) == (plan.reference, base):
            return None
        other = results.entry(plan.reference, base)
        return results.entry(row, point).difference(other, HEADLINE)

    columns: list[Column] = []
    cells: list[list[Cell]] = []
    tests: dict[tuple[int, int], Difference] = {}  # by column and line
    for g, group in enumerate(groups.values() if groups else [""]):
        at = [(line.row.key, line.points[g]) for line in lines]
        for metric in COLUMNS[form]:
            overall = form == "tiers" and metric == HEADLINE
            short = "Overall" if overall else METRICS[metric].short
            columns.append(Column(metric, short, group=group))
            values = [_value(results.entry(*key).estimate(metric)) for key in at]
            cells.append(_ranked(values, METRICS[metric].higher_is_better))
        gaps = {i: gap for i, key in enumerate(at) if (gap := difference(*key))}
        if gaps:
            tests |= {(len(columns), i): gap for i, gap in gaps.items()}
            columns.append(Column(HEADLINE, f"Δ BACC to {reference}", True, group))
            cells.append([Cell()] * len(lines))
    corrected = holm([gap.p_value for gap in tests.values()]).tolist()
    for ((column, i), gap), p in zip(tests.items(), corrected, strict=True):
        cells[column][i] = _test(gap, p)
    rows = zip(lines, zip(*cells, strict=True), strict=True)
    full = tuple(replace(line, cells=row) for line, row in rows)
    points = tuple(groups or range(len(plan.points)))
    return TableData(title, heads, tuple(columns), full, points, reference, len(tests))


def _ranked(column: list[Cell], higher_is_better: bool) -> list[Cell]:
    """Mark the best and the second best by the digits shown; equal values get the same mark."""
    shown = [round(100 * c.numbers[0], 2) if c.numbers else None for c in column]
    values = [value for value in shown if value is not None]
    order = sorted(set(values), reverse=higher_is_better)
    marks: dict[float | None, Mark] = {order[0]: "best"} if len(values) > 1 else {}
    if len(order) > 1 and len(values) > 2:
        marks[order[1]] = "second"
    return [replace(c, mark=marks.get(value, "")) for c, value in zip(column, shown, strict=True)]


@dataclass(frozen=True)
class Style:
    """How a format shows the best and second best, a note's mark and text, and an interval."""

    best: str
    second: str
    mark: str
    note: str
    interval: str
    escape: Callable[[str], str] = str

    def rows(self, table: TableData) -> Iterator[tuple[Line, list[str]]]:
        """Yield the lines of a table with their cells as text."""
        templates = {"": "{}", "best": self.best, "second": self.second}
        for line in table.lines:
            row = [self.escape(text) for text in line.heads]
            row[-1] += self.mark.format(table.footnotes[line.row.note]) if line.row.note else ""
            for cell in line.cells:
                text = templates[cell.mark].format(self.escape(cell.text))
                interval = self.interval.format(self.escape(cell.interval))
                row.append(text + (interval if cell.interval else ""))
            yield line, row

    def notes(self, table: TableData) -> list[str]:
        """Return the notes of rows."""
        marks = table.footnotes.items()
        return [self.note.format(mark, self.escape(text)) for text, mark in marks]


def make_tables(results: Results, *, form: str | None = None, format: str = "text") -> str:
    """Return all tables of a form (default: the grid's) in one format, ready to print."""
    formats = {"text": as_text, "markdown": as_markdown, "latex": as_latex}
    if format not in (*formats, "csv"):
        raise LmdError(f"--format: {unknown('format', format, [*formats, 'csv'])}")
    tables = build(results, form)
    if format == "csv":
        return as_csv(tables)
    return "\n\n".join(formats[format](table, [*notes(results, table)]) for table in tables)


def as_text(table: TableData, remarks: Sequence[str]) -> str:
    """Align columns; the intervals of a row are on the line below it."""
    style = Style("**{}**", "_{}_", " ({})", "({}) {}", "")
    rows: list[list[str] | None] = [[*table.heads, *(c.full_title for c in table.columns)], None]
    for line, row in style.rows(table):
        rows += [None] if line.rule else []
        rows += [row, ["" for _ in line.heads] + [cell.interval for cell in line.cells]]
    body = text_table([*rows, None], "l" * len(table.heads) + "r")
    wrap = textwrap.TextWrapper(100, subsequent_indent="  ", break_on_hyphens=False)
    notes = map(wrap.fill, [*style.notes(table), *remarks])
    return "\n".join([table.title, "", body, *notes])


def as_markdown(table: TableData, remarks: Sequence[str]) -> str:
    """Return a pipe table; intervals are in the same cell, below the value."""
    mark = "<sup>{}</sup>"
    style = Style(
        "**{}**",
        "<u>{}</u>",
        f" {mark}",
        f"{mark} {{}}",
        "<br>{}",
        lambda text: text.replace("|", r"\|"),
    )
    rows = [
        [*table.heads, *(column.full_title for column in table.columns)],
        [":---"] * len(table.heads) + ["---:"] * len(table.columns),
        *(row for _, row in style.rows(table)),
    ]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes = "\n".join(f"- {text}" for text in [*style.notes(table), *remarks])
    return f"**{table.title}**\n\n{body}\n\n{notes}"


def as_latex(table: TableData, remarks: Sequence[str]) -> str:
    """Return a table environment as in the paper; it needs the package booktabs."""
    mark, small = "$^{{{}}}$", r"{{\scriptsize {}}}"
    # Braces keep a bracket at the start of a cell from being read as an option of \\.
    style = Style(r"\textbf{{{}}}", r"\underline{{{}}}", mark, f"{mark} {{}}", f" {small}", latex)
    shape = "l" * len(table.heads) + "c" * len(table.columns)
    titles = [c.title if c.test else f"{c.title} (%)" for c in table.columns]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex(table.title)}}}",
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
    ]
    if any(column.group for column in table.columns):
        cells = [""] * len(table.heads)
        for group, columns in groupby(table.columns, key=lambda column: column.group):
            cells.append(rf"\multicolumn{{{len(list(columns))}}}{{c}}{{{latex(group)}}}")
        lines.append(_latex_row(cells))
    lines += [_latex_row([latex(title) for title in (*table.heads, *titles)]), r"\midrule"]
    for line, row in style.rows(table):
        lines += [*([r"\midrule"] if line.rule else []), _latex_row(row)]
    notes = "\n\n".join([*style.notes(table), *map(latex, remarks)])
    lines += [r"\bottomrule", r"\end{tabular}", "", rf"{{\footnotesize\raggedright {notes}\par}}"]
    return "\n".join([*lines, r"\end{table}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def as_csv(tables: Sequence[TableData]) -> str:
    """Return the rows of all tables; values are fractions in full precision."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        for line in table.lines:
            heads = zip(table.heads, line.heads, strict=True)
            row: dict[str, Any] = {"table": table.title, **dict(heads), "note": line.row.note}
            row |= {"chosen on validation": line.tuning} if line.tuning else {}
            for column, cell in zip(table.columns, line.cells, strict=True):
                numbers = cell.numbers or [None] * len(column.names)
                row |= dict(zip(column.names, numbers, strict=True))
            rows.append(row)
    return csv_text([*dict.fromkeys(key for row in rows for key in row)], rows).rstrip("\n")


_MATH = {"±": r"\pm", "Δ": r"\Delta", "−": "-", "×": r"\times", "≥": r"\geq", "≤": r"\leq"}
_MATH |= {"<": "<", ">": ">", "→": r"\to"}
_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        **{c: f"${text}$" for c, text in _MATH.items()},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"–": "--", "…": r"\ldots{}"},
    }
)


def latex(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> latex("lambda_1 at 5 % ± 1")
    'lambda\\_1 at 5 \\% $\\pm$ 1'
    """
    return text.translate(_LATEX)


def notes(results: Results, table: TableData) -> Iterator[str]:
    """Yield all notes, in the order in which they are printed."""
    plan, entries = results.plan, results.entries.items()
    runs = [run for (_, p), entry in entries if p in table.points for run in entry.runs]
    combined = any(run.combines(HEADLINE) for run in runs)
    yield _numbers(results, table, combined)
    if table.tests:
        yield _tests(results, table, combined)
    if plan.trials:
        # Rows with equal values share an entry.
        rows: dict[str, list[str]] = {}
        for line in table.lines:
            rows.setdefault(line.tuning, []).append(line.heads[0])
        listed = "; ".join(f"{', '.join(titles)}: {tuning}" for tuning, titles in rows.items())
        yield f"Chosen on validation with seed {plan.trials[0].seed}: {listed}."
        yield RULE
    points: dict[str, list[str]] = {}  # those that agree share a note
    for i in table.points:
        if run := next((e.runs[0] for (_, p), e in entries if p == i), None):
            points.setdefault(run.sentence, []).append(plan.points[i].title)
    for sentence, titles in points.items():
        yield sentence if len(points) == 1 else f"{'; '.join(titles)}: {sentence}"
    if runs:
        yield from _origin(runs)
    here = {run.name for run in plan.runs if run.point in table.points}
    if names := [name for name in results.missing if name in here]:
        yield f"Missing ({len(names)} of {len(here)} runs): {shorten(names, 12)}."


def _numbers(results: Results, table: TableData, combined: bool) -> str:
    finished = {run.seed for run in results.runs} or set(results.plan.seeds)
    seeds = ", ".join(str(seed) for seed in results.plan.seeds if seed in finished)
    drawn = "groups (patients or lesions) of test images" if results.grouped else "test images"
    values, times = f"one seed ({seeds})", ""
    interval = "the 95 % interval from the run's record"
    if len(finished) > 1:
        values = f"mean ± standard deviation over the seeds {seeds}"
        times = f" {results.resamples} times"
        interval = "the 95 % interval of the mean"
    note = (
        f"Values in %: {values}, with {interval} in brackets ({drawn} resampled{times} within each "
        "class)."
    )
    if combined:
        note += (
            " Means over classes, one of which has fewer than ten test images, have intervals "
            "combined from the limits of the classes."
        )
        if any(column.metric == "auc" for column in table.columns):
            note += " AUC has no such limits, and no interval there."
    if any(cell.mark for line in table.lines for cell in line.cells):
        note += " Best bold, second best underlined."
    return note


def _tests(results: Results, table: TableData, combined: bool) -> str:
    how, smallest = "on the same test images, from the limits of the classes", ""
    if not combined:
        least = min(1.0, 2 * table.tests / (results.resamples + 1))
        how = f"on the same {results.resamples} resamples"
        smallest = f"; the smallest p that these resamples can give is {least:.2g}"
    return (
        f"Δ BACC: balanced accuracy minus that of {table.reference}, {how}; two-sided p "
        f"with Holm's correction (comparisons: {table.tests}{smallest}). Interval and p reflect "
        "the choice of test images, not the randomness of training."
    )


def _origin(runs: Sequence[RunResult]) -> Iterator[str]:
    records = [run.record for run in runs]
    commits = sorted({record.commit or "unknown" for record in records})
    days = sorted({record.finished[:10] for record in records if record.finished})
    span = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "unknown"
    versions = sorted({record.lmd_version for record in records})
    if any(record.data.synthetic for record in records):
        yield "The images are synthetic: these numbers say nothing about patients."
    yield (
        f"{len(runs)} runs of {span}, lmd {', '.join(versions)}, "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."
    )
