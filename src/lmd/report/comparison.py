"""Show several runs side by side, on the same test images."""

from typing import Any

from markupsafe import Markup

from lmd.report import charts
from lmd.report.sections import ClassRow, Report, Values, class_rows
from lmd.report.svg import legend_mark
from lmd.runs.folder import Run, paired
from lmd.scoring.differences import compare
from lmd.scoring.metrics import METRICS, Sample


def comparison_view(report: Report) -> Values | None:
    """The metrics, recalls and paired differences of the runs."""
    if not report.others:
        return None
    runs = [report.run, *report.others]
    # The pairs first: they refuse runs on other images.
    pairs = [_pair(report.run, other, report.resamples) for other in report.others]
    tables = [{row.name: row for row in class_rows(run.record)} for run in runs]
    recalls = [(row.name, [table[row.name] for table in tables]) for row in report.classes]
    titles = [run.record.method.title for run in runs]
    return {
        "runs": [
            (title, run.record.name, legend_mark(_shape(i), _tone(i)))
            for i, (title, run) in enumerate(zip(titles, runs, strict=True))
        ],
        "metrics": [(key, [run.metrics.get(key) for run in runs]) for key in report.metrics],
        "recalls": recalls,
        "figure": _recalls_figure(recalls, [run.record.name for run in runs]),
        "pairs": pairs,
        "alike": len(set(titles)) < len(titles),
    }


def _recalls_figure(recalls: list[tuple[str, list[ClassRow]]], names: list[str]) -> Markup:
    """Return recall of each class in every run, one mark below the other."""
    lines, data = [], []
    for label, rows in recalls:
        points = [
            charts.Point.make(row.name, row.recall, _tone(i), _shape(i), row.support)
            for i, row in enumerate(rows)
        ]
        lines.append(charts.DotRow(label, f"n = {rows[0].support}", points))
        data += [
            {"run": name, **row.cells("recall", row.recall), "tier": rows[0].tier}
            for name, row in zip(names, rows, strict=True)
        ]
    return charts.dots_figure("recall of runs", "Recall of each class in every run", lines, data)


def _shape(i: int) -> str:
    return charts.RUN_SHAPES[i % len(charts.RUN_SHAPES)]


def _tone(i: int) -> str:
    return f"run{i % charts.MOST_RUNS}"


def _pair(run: Run, other: Run, resamples: int) -> dict[str, Any]:
    """Return differences of two runs, and how many images only one of them answers right."""
    mine, theirs = paired(run, other)
    labels, tiers = mine.labels, run.record.tiers.assignment
    probabilities = mine.probabilities, theirs
    right, right_too = (p.argmax(1) == labels for p in probabilities)
    a, b = (Sample(labels, p, tiers, mine.groups) for p in probabilities)
    gaps = compare(a, b, resamples=resamples)
    return {
        "title": other.record.method.title,
        "name": other.record.name,
        "only_mine": int((right & ~right_too).sum()),
        "only_theirs": int((right_too & ~right).sum()),
        "images": len(labels),
        "differences": [(METRICS[key], gap) for key, gap in gaps.items() if gap.known],
        "metrics": METRICS,
    }
