"""Assemble the report of a run, and write it into the run's folder."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.text import counted
from lmd.report import charts
from lmd.report.text import FILTERS, summary
from lmd.runs.folder import Run, paired
from lmd.runs.record import Record
from lmd.scoring.estimates import ClassScore, Definition, Estimate
from lmd.scoring.metrics import METRICS, PER_CLASS, Sample
from lmd.scoring.tiers import TIERS

PARTS = ("train", "validation", "test")
MOST_RUNS = 8  # side by side; each has a tone
RUN_SHAPES = ("circle", "diamond", "square", "triangle")
Values = dict[str, Any]  # what the template of a section is filled with

_PACKAGE = Path(__file__).parents[1]
# The sections in their order, by their anchor, which is also the name of their template: the title
# in the contents, and the function that makes the values of the template, or ``None`` where there
# is nothing to show. A section with the name of a field of the record needs that field.
SECTIONS: dict[str, tuple[str, str | None]] = {
    "external": ("Another place", "lmd.evaluation.shift:external_view"),
    "candidates": ("Before and after", None),
    "comparison": ("Comparison", "lmd.report.page:comparison_view"),
    "folds": ("Folds", None),
    "counts": ("Classes", "lmd.report.page:counts_view"),
    "recall": ("Recall", "lmd.report.page:recall_view"),
    "confusion": ("Confusion", "lmd.report.page:confusion_view"),
    "looks": ("Images", "lmd.explain.examples:looks_view"),
    "calibration": ("Calibration", "lmd.report.curves:calibration_view"),
    "sets": ("Sets", "lmd.decisions.section:sets_view"),
    "decisions": ("Decisions", "lmd.decisions.section:decisions_view"),
    "novelty": ("Unlike training", None),
    "metrics": ("Metrics", None),
    "curves": ("Training", "lmd.report.curves:curves_view"),
    "facts": ("What was run", None),
}


class ClassRow(ClassScore):
    """A class with its images and its scores in the reported part; ``index`` is its label.

    ``counts`` has its images by part, ``None`` where a cross-validation has no such part.
    """

    index: int
    counts: dict[str, int | None]

    def point(self, estimate: Estimate, images: int | None = None) -> charts.Point:
        """Return a point in the colour and shape of the tier."""
        return charts.Point(self.name, estimate, self.tier, images=images)

    def cells(self, title: str, estimate: Estimate) -> Values:
        """Return the cells of a figure's data: the class, its tier and the estimate."""
        numbers = {title: estimate.value, "low": estimate.low, "high": estimate.high}
        return {"class": self.name, "tier": self.tier, **numbers}


class Report:
    """A run, the ``others`` beside it, and what the sections show of them.

    ``resamples`` is for the paired differences, ``images`` says whether to show pictures.
    ``classes`` are in the order of their training images, most first; ``grouped`` says whether
    their patients or lesions are known. ``legend`` has the mark of each tier. ``sample`` are the
    predictions for the reported part, if there are any.
    """

    def __init__(self, run: Run, others: Sequence[Run], resamples: int, images: bool) -> None:
        self.run, self.others, self.resamples, self.images = run, others, resamples, images
        self.record, self.metrics, predictions = run.record, run.metrics, run.predictions
        part = self.record.part
        self.history = run.history
        self.headline = self.metrics.get("balanced_accuracy")
        self.classes = class_rows(self.record)
        self.grouped = any(row.units is not None for row in self.classes)
        tiers = [tier for tier in TIERS if any(row.tier == tier for row in self.classes)]
        self.legend = [(tier, charts.legend_mark(charts.SHAPES[tier], tier)) for tier in tiers]
        rows = predictions.parts.get(part) if predictions and part else None
        self.sample = None
        if rows is not None and len(rows.labels):
            self.sample = Sample(rows.labels, rows.probabilities, groups=rows.groups)

    def define(self, key: str) -> Definition:
        """Return title and definition of a number."""
        title = key.replace("_", " ").capitalize()
        return self.record.definitions.get(key, Definition(title=title, definition=""))


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of all features, with the filters they share."""
    templates = Environment(
        loader=FileSystemLoader(sorted(_PACKAGE.glob("*/templates"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= FILTERS
    return templates


def write_report(
    run: Run,
    *,
    compare: Sequence[Run] = (),
    out: Path | None = None,
    resamples: int = 1000,
    images: bool = True,
) -> Path:
    """Write the self-contained page; ``compare`` are runs on the same test images.

    Without ``out``, it is ``report.html`` in the run's folder. ``resamples`` is for the paired
    differences. With ``images``, it has the pictures of ``examples.npz``, if the folder has them.
    """
    if (count := len(compare) + 1) > MOST_RUNS:
        raise LmdError(f"a report shows at most {MOST_RUNS} runs side by side; got {count}")
    report, record = Report(run, compare, resamples, images), run.record
    sections = []
    for key, (title, function) in SECTIONS.items():
        if not getattr(record, key, True):
            continue
        values: Values | None = resolve_name(function)(report) if function else {}
        if values is not None:
            template = environment().get_template(f"{key}.html")
            html = template.render(values, report=report, record=record)
            sections.append((key, title, Markup(html)))
    # Notes of the method, of the reported part, and the rest.
    first = f"{record.part}:" if record.external is None else ""
    notes = sorted(record.notes, key=lambda note: not note.startswith(first))
    html = environment().get_template("report.html").render(
        report=report,
        record=record,
        tiles=_tiles(report),
        summary=summary(record, report.classes) if record.part else [],
        notes=[record.method.note, *notes] if record.method.note else notes,
        sections=sections,
    )  # fmt: skip
    path = out or run.path / "report.html"
    atomic_write(path, html.encode(), parents=out is not None)
    return path


def _tiles(report: Report) -> list[tuple[str, Estimate, str, str]]:
    """Return title, value, its form and a note of accuracy, macro F1, AUC and the lowest recall."""
    tiles = [
        (report.define(key).title, report.metrics[key], form, "")
        for key, form in (("accuracy", ".1%"), ("macro_f1", ".1%"), ("auc", ".3f"))
        if key in report.metrics
    ]
    scored = [row for row in report.classes if row.recall.value is not None]
    if scored:
        worst = min(scored, key=lambda row: row.recall.value or 0)
        tiles.append(("Lowest recall", worst.recall, ".1%", worst.name))
    return tiles


def class_rows(record: Record) -> list[ClassRow]:
    """Return a row for each class, most training images first."""
    # All folds of a cross-validation together have no validation part.
    counts = {
        part: images
        for part, images in record.data.counts.items()
        if record.folds is None or any(images)
    }
    rows = []
    for k, tier in enumerate(record.tiers.assignment):
        images = {part: counts[part][k] if part in counts else None for part in PARTS}
        score: Values = {"name": record.data.classes[k], "tier": tier, "support": 0}
        score |= dict.fromkeys(PER_CLASS, Estimate(value=None))
        score |= dict(record.per_class[record.part][k]) if record.part else {}
        score |= {"train": images["train"] or 0}
        rows.append(ClassRow(index=k, counts=images, **score))
    return sorted(rows, key=lambda row: -row.train)


def counts_view(report: Report) -> Values:
    """Show bars of the images of each class."""
    rows = [(row.name, row.tier, list(row.counts.values())) for row in report.classes]
    data = [{"class": row.name, "tier": row.tier, **row.counts} for row in report.classes]
    return {"figure": charts.savable("counts", charts.count_bars("counts", rows), data)}


def recall_view(report: Report) -> Values | None:
    """Show recall of each class and tier, and recall against training images."""
    if report.record.part is None:
        return None
    rows, data, points, by_count = [], [], [], []
    for row in report.classes:
        point, note = row.point(row.recall, row.support), row.recall.value_text(".1%")
        rows.append((row.name, f"{note} · n = {row.support}", [point]))
        images = {"training_images": row.counts["train"], "images": row.support}
        data.append(row.cells("recall", row.recall) | images)
        if row.train and row.recall.value is not None:
            points.append((row.train, point))
            by_count.append(data[-1])
    drawing = charts.against_counts("by-count", points) if len(points) > 1 else ""
    reference = report.headline.value if report.headline else None
    return {
        "figure": charts.dots_figure("recall", "Recall of each class", rows, data, reference),
        "by_count": drawing and charts.savable("recall by training images", drawing, by_count),
        "tiers": _tiers_figure(report),
    }


def _tiers_figure(report: Report) -> Markup | None:
    """Draw balanced accuracy of the tiers that have classes."""
    sizes = Counter(row.tier for row in report.classes)
    rows, data = [], []
    for tier in TIERS:
        estimate = report.metrics.get(f"bacc_{tier}")
        if not sizes[tier] or estimate is None:
            continue
        label = counted(sizes[tier], f"{tier} ({{n}} class[|es])")
        note = " · ".join(estimate.cells(".1%"))
        rows.append((label, note, [charts.Point(tier, estimate, tier)]))
        values = {"tier": tier, "classes": sizes[tier], "balanced_accuracy": estimate.value}
        data.append(values | {"low": estimate.low, "high": estimate.high})
    title = "Balanced accuracy of head, medium and tail"
    return charts.dots_figure("tiers", title, rows, data) if rows else None


def confusion_view(report: Report) -> Values | None:
    """Show the confusion matrix, most frequent class first."""
    record = report.record
    matrix = record.confusion.get(record.part) if record.part else None
    if not matrix:
        return None
    rows = report.classes
    data = [
        {"true": true.name, "predicted": guess.name, "images": matrix[true.index][guess.index]}
        for true in rows
        for guess in rows
    ]
    ordered = [[matrix[true.index][guess.index] for guess in rows] for true in rows]
    drawing = charts.confusion("confusion", [row.name for row in rows], ordered)
    return {"figure": charts.savable("confusion", drawing, data)}


def comparison_view(report: Report) -> Values | None:
    """Show metrics, recalls and paired differences of several runs, on the same test images."""
    if not report.others:
        return None
    runs = [report.run, *report.others]
    # The pairs first: they refuse runs on other images.
    pairs = [_pair(report.run, other, report.resamples) for other in report.others]
    tables = [{row.name: row for row in class_rows(run.record)} for run in runs]
    recalls = [(row.name, [table[row.name] for table in tables]) for row in report.classes]
    titles = [run.record.method.title for run in runs]
    names = [run.record.name for run in runs]
    styles = [(f"run{i}", RUN_SHAPES[i % len(RUN_SHAPES)]) for i in range(len(runs))]
    lines, data = [], []
    for label, rows in recalls:
        points = [
            charts.Point(row.name, row.recall, *style, row.support)
            for row, style in zip(rows, styles, strict=True)
        ]
        lines.append((label, f"n = {rows[0].support}", points))
        data += [
            {"run": name, **row.cells("recall", row.recall), "tier": rows[0].tier}
            for name, row in zip(names, rows, strict=True)
        ]
    title = "Recall of each class in every run"
    return {
        "runs": [
            (title, name, charts.legend_mark(shape, tone))
            for title, name, (tone, shape) in zip(titles, names, styles, strict=True)
        ],
        "metrics": [(key, [run.metrics.get(key) for run in runs]) for key in report.metrics],
        "recalls": recalls,
        "figure": charts.dots_figure("recall of runs", title, lines, data),
        "pairs": pairs,
        "alike": len(set(titles)) < len(titles),
    }


def _pair(run: Run, other: Run, resamples: int) -> Values:
    """Return differences of two runs, and how many images only one of them answers right."""
    from lmd.scoring.differences import compare

    mine, theirs = paired(run, other)
    tiers, pair = run.record.tiers.assignment, (mine.probabilities, theirs)
    a, b = (Sample(mine.labels, probabilities, tiers, mine.groups) for probabilities in pair)
    gaps = compare(a, b, resamples=resamples)
    return {
        "title": other.record.method.title,
        "name": other.record.name,
        "only_mine": int((a.right & ~b.right).sum()),
        "only_theirs": int((b.right & ~a.right).sum()),
        "images": len(a.labels),
        "differences": [(METRICS[key], gap) for key, gap in gaps.items() if gap.known],
        "metrics": METRICS,
    }
