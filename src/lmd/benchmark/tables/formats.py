"""Print tables as plain text, Markdown, LaTeX and CSV, with their notes."""

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from string import ascii_lowercase
from typing import Any

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import csv_text, shorten, text_table, unknown
from lmd.benchmark.tables.forms import Cell, TableData, build
from lmd.benchmark.tables.results import Results, RunResult
from lmd.benchmark.trials import RULE
from lmd.scoring.tiers import TIERS


def make_tables(results: Results, *, form: str | None = None, format: str = "text") -> str:
    """Return all tables of a form in one format, ready to print.

    ``form`` is metrics, tiers, factors or sweep (default: the grid's); ``format`` is text,
    markdown, latex or csv.
    """
    if format not in (*FORMATS, "csv"):
        raise LmdError(f"--format: {unknown('format', format, [*FORMATS, 'csv'])}")
    tables = build(results, form)
    if format == "csv":
        return as_csv(tables)
    return "\n\n".join(FORMATS[format](table, notes(results, table)) for table in tables)


def as_text(table: TableData, remarks: Sequence[str]) -> str:
    """Align columns; the intervals of a row are on the line below it."""
    marks = footnotes(table)
    rows: list[list[str] | None] = [
        [*table.heads, *(column.full_title for column in table.columns)],
        None,
    ]
    for line in table.lines:
        if line.rule:
            rows.append(None)
        mark = f" ({marks[line.note]})" if line.note else ""
        cells = [_marked(cell, "**{}**", "_{}_") for cell in line.cells]
        rows.append([*line.heads[:-1], line.heads[-1] + mark, *cells])
        rows.append(["" for _ in line.heads] + [cell.interval for cell in line.cells])
    body = text_table([*rows, None], "l" * len(table.heads) + "r")
    wrap = textwrap.TextWrapper(100, subsequent_indent="  ", break_on_hyphens=False)
    notes = [*(f"({mark}) {text}" for text, mark in marks.items()), *remarks]
    return "\n".join([table.title, "", body, *map(wrap.fill, notes)])


def as_markdown(table: TableData, remarks: Sequence[str]) -> str:
    """Return a pipe table; intervals are in the same cell, below the value."""
    marks = footnotes(table)
    header = [*table.heads, *(column.full_title for column in table.columns)]
    rows = [header, [":---"] * len(table.heads) + ["---:"] * len(table.columns)]
    for line in table.lines:
        row = [text.replace("|", r"\|") for text in line.heads]
        row[-1] += f" <sup>{marks[line.note]}</sup>" if line.note else ""
        for cell in line.cells:
            below = f"<br>{cell.interval}" if cell.interval else ""
            row.append(_marked(cell, "**{}**", "<u>{}</u>") + below)
        rows.append(row)
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes = [*(f"<sup>{mark}</sup> {text}" for text, mark in marks.items()), *remarks]
    return f"**{table.title}**\n\n{body}\n\n" + "\n".join(f"- {text}" for text in notes)


def as_latex(table: TableData, remarks: Sequence[str]) -> str:
    """Return a table environment as in the paper; it needs the package booktabs."""
    marks = footnotes(table)
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
    for line in table.lines:
        lines += [r"\midrule"] if line.rule else []
        row = [latex(text) for text in line.heads]
        row[-1] += rf"$^{{{marks[line.note]}}}$" if line.note else ""
        for cell in line.cells:
            text = _marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", latex)
            interval = latex(cell.interval)
            # Braces keep a bracket at the start of a cell from being read as an option of \\.
            row.append(text + (rf" {{\scriptsize {interval}}}" if interval else ""))
        lines.append(_latex_row(row))
    notes = [rf"$^{{{mark}}}$ {latex(text)}" for text, mark in marks.items()]
    small = "\n\n".join([*notes, *map(latex, remarks)])
    lines += [r"\bottomrule", r"\end{tabular}", "", rf"{{\footnotesize\raggedright {small}\par}}"]
    return "\n".join([*lines, r"\end{table}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def as_csv(tables: Sequence[TableData]) -> str:
    """Return the rows of all tables; values are fractions in full precision."""
    rows: list[dict[str, Any]] = []
    for table in tables:
        for line in table.lines:
            row: dict[str, Any] = {"table": table.title}
            row |= dict(zip(table.heads, line.heads, strict=True))
            row["note"] = line.note
            row |= {"chosen on validation": line.tuning} if line.tuning else {}
            for column, cell in zip(table.columns, line.cells, strict=True):
                numbers = cell.numbers or [None] * len(column.names)
                row |= dict(zip(column.names, numbers, strict=True))
            rows.append(row)
    header = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text(header, rows).rstrip("\n")


FORMATS: dict[str, Callable[[TableData, Sequence[str]], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
}


def latex(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    >>> latex("lambda_1 at 5 % ± 1")
    'lambda\\_1 at 5 \\% $\\pm$ 1'
    """
    return "".join(_LATEX.get(character, character) for character in text)


_LATEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "−": r"$-$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\to$",
    "–": "--",
    "…": r"\ldots{}",
}


def _marked(cell: Cell, best: str, second: str, escape: Callable[[str], str] = str) -> str:
    template = {"best": best, "second": second}.get(cell.mark, "{}")
    return template.format(escape(cell.text))


def footnotes(table: TableData) -> dict[str, str]:
    """Return a letter for each note of a row; rows with the same note share it."""
    texts = list(dict.fromkeys(line.note for line in table.lines if line.note))
    return {text: ascii_lowercase[i] if i < 26 else f"{i + 1}" for i, text in enumerate(texts)}


def notes(results: Results, table: TableData) -> list[str]:
    """Return all notes, in the order in which they are printed."""
    runs = [run for (_, p), e in results.entries.items() if p in table.points for run in e.runs]
    combined = any(run.combines("balanced_accuracy") for run in runs)
    return [
        _numbers(results, table, combined),
        *_tests(results, table, combined),
        *_tuning(results, table),
        *_data(results, table),
        *_origin(runs),
        *_missing(results, table),
    ]


def _numbers(results: Results, table: TableData, combined: bool) -> str:
    finished = {run.seed for run in results.runs} or set(results.plan.seeds)
    seeds = ", ".join(str(seed) for seed in results.plan.seeds if seed in finished)
    drawn = "groups (patients or lesions) of test images" if results.grouped else "test images"
    if len(finished) > 1:
        note = (
            f"Values in %: mean ± standard deviation over the seeds {seeds}, with the 95 % "
            f"interval of the mean in brackets ({drawn} resampled {results.resamples} times "
            "within each class)."
        )
    else:
        note = (
            f"Values in %: one seed ({seeds}), with the 95 % interval from the run's record in "
            f"brackets ({drawn} resampled within each class)."
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


def _tests(results: Results, table: TableData, combined: bool) -> list[str]:
    if not table.tests:
        return []
    if combined:
        how, smallest = "from the limits of the classes", ""
    else:
        least = min(1.0, 2 * table.tests / (results.resamples + 1))
        how = f"on the same {results.resamples} resamples"
        smallest = f"; the smallest p that these resamples can give is {least:.2g}"
    images = "on the same test images, " if combined else ""
    return [
        f"Δ BACC: balanced accuracy minus that of {table.reference}, {images}{how}; two-sided p "
        f"with Holm's correction (comparisons: {table.tests}{smallest}). Interval and p reflect "
        "the choice of test images, not the randomness of training."
    ]


def _tuning(results: Results, table: TableData) -> list[str]:
    """What was chosen for which rows, and the rule; rows with equal values share an entry."""
    trials = results.plan.trials
    if not trials:
        return []
    rows: dict[str, list[str]] = {}
    for line in table.lines:
        rows.setdefault(line.tuning, []).append(line.heads[0])
    listed = "; ".join(f"{', '.join(titles)}: {tuning}" for tuning, titles in rows.items())
    return [f"Chosen on validation with seed {trials[0].seed}: {listed}.", RULE]


def _data(results: Results, table: TableData) -> list[str]:
    """Tiers and smallest class of each point; points that agree share a note."""
    points: dict[str, list[str]] = {}
    for point in table.points:
        run = next((e.runs[0] for (_, p), e in results.entries.items() if p == point), None)
        if run is not None:
            sentence = f"{_tiers(run)} {_smallest(run)}"
            points.setdefault(sentence, []).append(results.plan.points[point].title)
    if len(points) == 1:
        return list(points)
    return [f"{'; '.join(titles)}: {sentence}" for sentence, titles in points.items()]


def _tiers(run: RunResult) -> str:
    tiers = run.record.tiers
    members: dict[str, list[str]] = {tier: [] for tier in TIERS}
    for name, tier in zip(run.record.data.classes, tiers.assignment, strict=True):
        members[tier].append(name)
    named = "; ".join(f"{tier}: {', '.join(names) or 'none'}" for tier, names in members.items())
    return f"Tiers: {tiers.rule} ({named})."


def _smallest(run: RunResult) -> str:
    classes = run.record.data.classes
    counts = np.bincount(run.labels, minlength=len(classes))
    present = np.flatnonzero(counts)
    least = int(present[np.argmin(counts[present])])
    points = 100 / (len(present) * int(counts[least]))
    absent = [name for name, n in zip(classes, counts, strict=True) if n == 0]
    without = f" No test images of {', '.join(absent)}." if absent else ""
    factor = run.record.data.imbalance_factor
    ratio = f"; imbalance factor of the training part {factor:.0f}" if factor else ""
    return (
        f"{int(counts.sum())} test images; {classes[least]} has the fewest ({int(counts[least])}), "
        f"so that one image changes balanced accuracy by up to {points:.2f} points"
        f"{ratio}.{without}"
    )


def _origin(runs: Sequence[RunResult]) -> list[str]:
    if not runs:
        return []
    records = [run.record for run in runs]
    commits = sorted({record.commit or "unknown" for record in records})
    days = sorted({record.finished[:10] for record in records if record.finished})
    span = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "unknown"
    versions = sorted({record.lmd_version for record in records})
    origin = (
        f"{len(runs)} runs of {span}, lmd {', '.join(versions)}, "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."
    )
    synthetic = any(record.data.synthetic for record in records)
    warning = "The images are synthetic: these numbers say nothing about patients."
    return [warning, origin] if synthetic else [origin]


def _missing(results: Results, table: TableData) -> list[str]:
    here = {run.name for run in results.plan.runs if run.point in table.points}
    names = [name for name in results.missing if name in here]
    if not names:
        return []
    return [f"Missing ({len(names)} of {len(here)} runs): {shorten(names, 12)}."]
