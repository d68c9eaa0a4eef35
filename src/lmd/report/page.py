"""Assembles the report of a run and writes it into the run's folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.decisions.section import calibration_view, decisions_view, sets_view
from lmd.evaluation.section import external_view
from lmd.explain.examples import read_examples
from lmd.explain.page import looks_view
from lmd.report import bars as charts
from lmd.report import figures, view, words
from lmd.report.comparison import comparison, reliability_figure
from lmd.report.history import curve_groups
from lmd.report.html import environment
from lmd.runs.folder import Run
from lmd.runs.record import Record
from lmd.scoring.calibration import without_temperature
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample
from lmd.scoring.tiers import TIERS


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
    if len(compare) >= charts.MOST_RUNS:
        most = charts.MOST_RUNS
        raise LmdError(f"a report shows at most {most} runs side by side; got {len(compare) + 1}")
    looks = looks_view(run, read_examples(run.path) if images else None)
    shown = _page(run, compare, resamples) | {"looks": looks}
    html = environment().get_template("report.html").render(shown)
    path = out or run.path / "report.html"
    atomic_write(path, html.encode(), parents=out is not None)
    return path


def _page(run: Run, others: Sequence[Run], resamples: int) -> dict[str, Any]:
    record = run.record
    classes, metrics = view.class_rows(record), view.metric_rows(record)
    headline = view.find_metric(metrics, "balanced_accuracy")
    tiers = view.tier_rows(metrics, classes)
    present = [tier for tier in TIERS if any(row["tier"] == tier for row in classes)]
    about = record.definitions.get("interval")
    return {
        "record": record,
        "part": record.part,
        "part_title": record.part_title,
        "headline": headline,
        "tiles": view.tiles(metrics, classes),
        "summary": words.summary(record, classes) if record.part else [],
        "notes": _notes(record),
        "totals": {part: sum(counts) for part, counts in record.data.counts.items() if any(counts)},
        "classes": classes,
        "metrics": metrics,
        "intervals": about.definition if about else "",
        "grouped": any(row["units"] is not None for row in classes),
        "legend": [(tier, figures.legend_mark(charts.SHAPES[tier], tier)) for tier in present],
        "counts_figure": figures.counts_figure(classes) if classes else None,
        "recall_figure": figures.recall_figure(classes, headline["value"] if headline else None),
        "by_count_figure": figures.count_recall_figure(classes),
        "tiers_figure": figures.tiers_figure(tiers) if tiers else None,
        "confusion_figure": figures.confusion_figure(record, classes),
        "curves": curve_groups(run.history),
        "calibration": _calibration(run, metrics),
        "tempered": calibration_view(run),
        "sets": sets_view(run, classes),
        "decisions": decisions_view(run, classes),
        "novelty": words.novelty(record),
        "facts": view.facts(record),
        "external": external_view(record, classes),
        "candidates": view.candidate_rows(record),
        "comparison": comparison(run, others, classes, resamples) if others else None,
    }


def _notes(record: Record) -> list[str]:
    """The notes of the method, then those of the reported part, then the rest."""
    first = f"{record.part}:" if record.external is None else ""
    notes = sorted(record.notes, key=lambda note: not note.startswith(first))
    return [record.method.note, *notes] if record.method.note else notes


def _calibration(run: Run, metrics: Sequence[view.Row]) -> dict[str, Any] | None:
    part = run.record.part
    found = run.predictions.parts.get(part) if run.predictions and part else None
    if found is None or not len(found.labels):
        return None
    sample = Sample(found.labels, found.probabilities, groups=found.groups)
    figure, bins = reliability_figure("reliability", sample)
    computed = {"text": f"{METRICS['ece'].value(sample):.3f}", "interval": ""}
    total = sum(each.count for each in bins)
    gap = sum(each.count * (each.confidence - each.accuracy) for each in bins) / total
    before = None
    temperature = run.record.model.temperature
    # A mean over mirror images has no logits that could be multiplied by it.
    if temperature != 1 and run.record.tta is None:
        untempered = without_temperature(found.probabilities, temperature)
        raw = Sample(found.labels, untempered, groups=found.groups)
        before, _ = reliability_figure("reliability-before", raw)
    return {
        "figure": figure,
        "before": before,
        "error": view.find_metric(metrics, "ece") or computed,
        "bins": len(bins),
        "gap": gap,
        "points": f"{abs(100 * gap):.1f}",
    }
