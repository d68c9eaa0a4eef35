"""Print tables as plain text, Markdown, LaTeX and CSV, with their notes."""

import csv
import io
import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest
from string import ascii_lowercase

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import no_formula, unknown
from lmd.benchmark.tables.forms import Cell, Column, Comparison, Line, TableData, Value, build
from lmd.benchmark.tables.results import Results, RunResult
from lmd.benchmark.trials import RULE
from lmd.scoring.tiers import TIERS


def footnotes(lines: Sequence[Line]) -> dict[str, str]:
    """A letter for each note of a row; rows with the same note share it."""
    texts = list(dict.fromkeys(line.note for line in lines if line.note))
    return {text: ascii_lowercase[i] if i < 26 else f"{i + 1}" for i, text in enumerate(texts)}


def notes(results: Results, table: TableData) -> list[str]:
    """All notes, in the order in which they are printed."""
    runs = [run for (_, p), e in results.entries.items() if p in table.points for run in e.runs]
    return [
        *_numbers(results, table),
        *_tests(results, table),
        *_tuning(results, table),
        *_data(results, table),
        *_origin(runs),
        *_missing(results, table),
    ]


def _numbers(results: Results, table: TableData) -> list[str]:
    found = {run.seed for run in results.runs} or set(results.plan.seeds)
    seeds = ", ".join(str(seed) for seed in results.plan.seeds if seed in found)
    drawn = "groups (patients or lesions) of test images" if results.grouped else "test images"
    if len(found) > 1:
        said = (
            f"Values in %: mean ± standard deviation over the seeds {seeds}, with the 95 % "
            f"interval of the mean in brackets ({drawn} resampled {results.resamples} times "
            "within each class)."
        )
    else:
        said = (
            f"Values in %: one seed ({seeds}), with the 95 % interval from the run's record in "
            f"brackets ({drawn} resampled within each class)."
        )
    if _combined(results, table):
        said += (
            " Means over classes, one of which has fewer than ten test images, have intervals "
            "combined from the limits of the classes."
        )
        if any(column.metric == "auc" for column in table.columns):
            said += " AUC has no such limits, and no interval there."
    if any(getattr(cell, "mark", "") for line in table.lines for cell in line.cells):
        said += " Best bold, second best underlined."
    return [said]


def _combined(results: Results, table: TableData) -> bool:
    """Whether intervals of balanced accuracy are combined from those of the classes."""
    shown = (entry for (_, point), entry in results.entries.items() if point in table.points)
    return any(run.combines("balanced_accuracy") for entry in shown for run in entry.runs)


def _tests(results: Results, table: TableData) -> list[str]:
    if not table.tests:
        return []
    if _combined(results, table):
        return [
            f"Δ BACC: balanced accuracy minus that of {table.reference}, on the same test images, "
            "from the limits of the classes; two-sided p with Holm's correction (comparisons: "
            f"{table.tests}). Interval and p reflect the choice of test images, not the randomness "
            "of training."
        ]
    least = min(1.0, 2 * table.tests / (results.resamples + 1))
    return [
        f"Δ BACC: balanced accuracy minus that of {table.reference}, on the same "
        f"{results.resamples} resamples; two-sided p with Holm's correction (comparisons: "
        f"{table.tests}; the smallest p that these resamples can give is {least:.2g}). Interval "
        "and p reflect the choice of test images, not the randomness of training."
    ]


def _tuning(results: Results, table: TableData) -> list[str]:
    """What was chosen for which rows, and the rule; rows with equal values share an entry."""
    trials = results.plan.trials
    if not trials:
        return []
    said: dict[str, list[str]] = {}
    for line in table.lines:
        said.setdefault(line.tuning, []).append(line.heads[0])
    listed = "; ".join(f"{', '.join(rows)}: {tuning}" for tuning, rows in said.items())
    return [f"Chosen on validation with seed {trials[0].seed}: {listed}.", RULE]


def _data(results: Results, table: TableData) -> list[str]:
    """Tiers and smallest class of each point; points that agree share a note."""
    said: dict[str, list[str]] = {}
    for point in table.points:
        run = next((e.runs[0] for (_, p), e in results.entries.items() if p == point), None)
        if run is not None:
            sentence = f"{_tiers(run)} {_smallest(run)}"
            said.setdefault(sentence, []).append(results.plan.points[point].title)
    if len(said) == 1:
        return list(said)
    return [f"{'; '.join(titles)}: {sentence}" for sentence, titles in said.items()]


def _tiers(run: RunResult) -> str:
    tiers = run.record.tiers
    members: dict[str, list[str]] = {tier: [] for tier in TIERS}
    for name, tier in zip(run.record.data.classes, tiers.assignment, strict=True):
        members[tier].append(name)
    named = "; ".join(f"{tier}: {', '.join(of) or 'none'}" for tier, of in members.items())
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
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return [f"Missing ({len(names)} of {len(here)} runs): {shown}."]


def make_tables(results: Results, *, form: str | None = None, format: str = "text") -> str:
    """All tables of a form in one format, ready to print.

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
    """Aligned columns; the intervals of a row are on the line below it."""
    marks = footnotes(table.lines)
    rows = [[*table.heads, *(_full_title(c) for c in table.columns)]]
    rules = set()
    for line in table.lines:
        if line.rule:
            rules.add(len(rows))
        mark = f" ({marks[line.note]})" if line.note else ""
        cells = [_marked(cell, "**{}**", "_{}_") for cell in line.cells]
        rows.append([*line.heads[:-1], line.heads[-1] + mark, *cells])
        rows.append([*("" for _ in line.heads), *(_span(cell) for cell in line.cells)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    bar = "-" * (sum(widths) + 2 * (len(widths) - 1))
    left = len(table.heads)
    lines = [table.title, "", _padded(rows[0], widths, left), bar]
    for i, row in enumerate(rows[1:], 1):
        if i in rules:
            lines.append(bar)
        if any(row):
            lines.append(_padded(row, widths, left))
    lines.append(bar)
    wrap = textwrap.TextWrapper(100, subsequent_indent="  ", break_on_hyphens=False)
    said = [*(f"({mark}) {text}" for text, mark in marks.items()), *remarks]
    return "\n".join([*lines, *map(wrap.fill, said)])


def as_markdown(table: TableData, remarks: Sequence[str]) -> str:
    """A pipe table; intervals are in the same cell, below the value."""
    marks = footnotes(table.lines)
    header = [*table.heads, *(_full_title(c) for c in table.columns)]
    aligned = [":---"] * len(table.heads) + ["---:"] * len(table.columns)
    rows = [header, aligned]
    for line in table.lines:
        head = [text.replace("|", r"\|") for text in line.heads]
        head[-1] += f" <sup>{marks[line.note]}</sup>" if line.note else ""
        cells = [_marked(cell, "**{}**", "<u>{}</u>") for cell in line.cells]
        spans = [_span(cell) for cell in line.cells]
        both = [f"{c}<br>{s}" if s else c for c, s in zip(cells, spans, strict=True)]
        rows.append([*head, *both])
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    said = [*(f"<sup>{mark}</sup> {text}" for text, mark in marks.items()), *remarks]
    return f"**{table.title}**\n\n{body}\n\n" + "\n".join(f"- {text}" for text in said)


def as_latex(table: TableData, remarks: Sequence[str]) -> str:
    """A table environment as in the paper; it needs the package booktabs."""
    marks = footnotes(table.lines)
    shape = "l" * len(table.heads) + "c" * len(table.columns)
    titles = [c.title if c.kind == "test" else f"{c.title} (%)" for c in table.columns]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex(table.title)}}}",
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        *_latex_groups(table),
        " & ".join(map(latex, [*table.heads, *titles])) + r" \\",
        r"\midrule",
    ]
    for line in table.lines:
        lines += [r"\midrule"] if line.rule else []
        head = [latex(text) for text in line.heads]
        head[-1] += rf"$^{{{marks[line.note]}}}$" if line.note else ""
        lines.append(" & ".join([*head, *(_latex_cell(c) for c in line.cells)]) + r" \\")
    said = [rf"$^{{{mark}}}$ {latex(text)}" for text, mark in marks.items()]
    small = "\n\n".join([*said, *map(latex, remarks)])
    lines += [r"\bottomrule", r"\end{tabular}", "", rf"{{\footnotesize\raggedright {small}\par}}"]
    return "\n".join([*lines, r"\end{table}"])


def as_csv(tables: Sequence[TableData]) -> str:
    """The rows of all tables; values are fractions in full precision.

    Words that a spreadsheet would compute have an apostrophe before them.
    """
    text = io.StringIO()
    rows = []
    for table in tables:
        for line in table.lines:
            row = {"table": table.title} | dict(zip(table.heads, line.heads, strict=True))
            row["note"] = line.note
            row |= {"chosen on validation": line.tuning} if line.tuning else {}
            row = {key: no_formula(words) for key, words in row.items()}
            for column, cell in zip(table.columns, line.cells, strict=True):
                row |= dict(zip_longest(_csv_names(column), _csv_values(cell), fillvalue=""))
            rows.append(row)
    header = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


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


def _span(cell: Cell) -> str:
    """The interval, without the value."""
    if isinstance(cell, Value):
        low, high = cell.estimate.low, cell.estimate.high
        if low is None or high is None:
            return ""
        return f"[{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−")
    if isinstance(cell, Comparison):
        gap = cell.difference
        return f"[{_signed(gap.low, 1)}, {_signed(gap.high, 1)}]"
    return ""


def _plain(cell: Cell) -> str:
    """The value, without the interval."""
    if isinstance(cell, Value):
        sd = cell.estimate.sd
        mean = f"{100 * cell.estimate.mean:.2f}".replace("-", "−")
        return mean if sd is None else f"{mean} ± {100 * sd:.2f}"
    if isinstance(cell, Comparison):
        p = "p < 0.001" if cell.holm < 0.001 else f"p = {cell.holm:.3f}"
        return f"{_signed(cell.difference.value, 2)}, {p}"
    return "–"


def _marked(cell: Cell, best: str, second: str, escape: Callable[[str], str] = str) -> str:
    look = {"best": best, "second": second}.get(getattr(cell, "mark", ""), "{}")
    return look.format(escape(_plain(cell)))


def _signed(value: float, digits: int) -> str:
    return f"{100 * value:+.{digits}f}".replace("-", "−")


def _latex_cell(cell: Cell) -> str:
    text, span = _marked(cell, r"\textbf{{{}}}", r"\underline{{{}}}", latex), _span(cell)
    # Braces keep a bracket at the start of a cell from being read as an option of \\.
    return rf"{text} {{\scriptsize {latex(span)}}}" if span else text


def _latex_groups(table: TableData) -> list[str]:
    """The headings above groups of columns, if any."""
    if not any(column.group for column in table.columns):
        return []
    cells = [""] * len(table.heads)
    for group, of in groupby(table.columns, key=lambda c: c.group):
        cells.append(rf"\multicolumn{{{len(list(of))}}}{{c}}{{{latex(group)}}}")
    return [" & ".join(cells) + r" \\"]


def _full_title(column: Column) -> str:
    return f"{column.group}: {column.title}" if column.group else column.title


def _csv_names(column: Column) -> list[str]:
    key = f"{column.group} {column.metric}" if column.group else column.metric
    if column.kind == "test":
        names = ("difference", "difference_low", "difference_high", "p", "p_holm")
        return [f"{key}_{name}" for name in names]
    return [key, *(f"{key}_{name}" for name in ("sd", "low", "high"))]


def _csv_values(cell: Cell) -> list[str]:
    if isinstance(cell, Value):
        numbers = (cell.estimate.mean, cell.estimate.sd, cell.estimate.low, cell.estimate.high)
        return ["" if x is None else repr(x) for x in numbers]
    if isinstance(cell, Comparison):
        gap = cell.difference
        return [repr(x) for x in (gap.value, gap.low, gap.high, gap.p_value, cell.holm)]
    return []


def _padded(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = [
        text.ljust(width) if i < left else text.rjust(width)
        for i, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
