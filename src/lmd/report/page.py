"""Puts the page together and writes it beside the record."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lmd.base.files import atomic_write
from lmd.report import charts, curves, figures, view, words
from lmd.report.calibration import reliability_bins
from lmd.report.comparison import check_same_test, comparison
from lmd.runfolder.reading import RunFiles, read_run
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample
from lmd.scoring.tiers import TIERS


def write_report(folder: Path, *, compare: Sequence[Path] = ()) -> Path:
    """Write ``report.html`` into a run folder; ``compare`` are runs on the same test images.

    It reads ``record.json``, ``predictions.npz`` and ``history.csv`` and nothing else; the page
    holds all that it needs and makes no request.
    """
    run = read_run(Path(folder))
    others = [read_run(Path(other)) for other in compare]
    for other in others:
        check_same_test(run, other)
    html = environment().get_template("report.html").render(_page(run, others))
    path = run.folder / "report.html"
    atomic_write(path, html.encode())
    return path


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates, with the words and figures that pages share."""
    made = Environment(
        loader=PackageLoader("lmd.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["moment"] = words.moment
    made.filters["signed"] = words.signed
    made.filters["thousands"] = words.thousands
    return made


def _page(run: RunFiles, others: Sequence[RunFiles]) -> dict[str, Any]:
    classes, metrics = view.class_rows(run), view.metric_rows(run)
    headline = view.find_metric(metrics, "balanced_accuracy")
    groups = view.group_rows(metrics, classes)
    present = [group for group in TIERS if any(row["group"] == group for row in classes)]
    return {
        "run": run,
        "record": run.record,
        "part": run.part,
        "data": run.section("data"),
        "method": run.section("method"),
        "rule": run.section("groups").get("rule", ""),
        "selected": run.section("model").get("selected", ""),
        "headline": headline,
        "tiles": view.tiles(metrics, classes),
        "summary": words.summary(run, classes) if run.part else [],
        "notes": _notes(run),
        "totals": _totals(run),
        "classes": classes,
        "metrics": metrics,
        "intervals": run.section("definitions", "interval").get("definition", ""),
        "grouped": any(row["units"] is not None for row in classes),
        "groups": groups,
        "legend": [(group, figures.legend_mark(charts.SHAPES[group], group)) for group in present],
        "counts_figure": figures.counts_figure(classes) if classes else None,
        "recall_figure": figures.recall_figure(classes, headline["value"] if headline else None),
        "groups_figure": figures.groups_figure(groups) if groups else None,
        "confusion_figure": figures.confusion_figure(run, classes),
        "curves": figures.curve_figures(run),
        "calibration": _calibration(run, metrics),
        "facts": view.facts(run),
        "comparison": comparison(run, others, classes) if others else None,
    }


def _notes(run: RunFiles) -> list[str]:
    """What a reader must know: of the method first, then of the part that is reported."""
    notes = [str(note) for note in run.record.get("notes") or []]
    notes.sort(key=lambda note: not note.startswith(f"{run.part}:"))
    about = run.section("method").get("note")
    return [str(about), *notes] if about else notes


def _totals(run: RunFiles) -> dict[str, int]:
    counts = run.section("data", "counts")
    return {part: sum(counts[part]) for part in ("train", "validation", "test") if counts.get(part)}


def _calibration(run: RunFiles, metrics: Sequence[view.Row]) -> dict[str, Any] | None:
    probabilities = run.predictions.get(f"{run.part}_probabilities")
    if probabilities is None or not len(probabilities):
        return None
    sample = Sample(run.predictions[f"{run.part}_labels"], probabilities)
    bins = reliability_bins(sample)
    recorded = view.find_metric(metrics, "ece")
    total = sum(each.count for each in bins)
    gap = sum(each.count * (each.confidence - each.accuracy) for each in bins) / total
    return {
        "figure": Markup(curves.reliability("reliability", bins)),
        "recorded": recorded,
        "computed": f"{METRICS['ece'].value(sample):.3f}",
        "bins": len(bins),
        "gap": gap,
        "points": f"{abs(100 * gap):.1f}",
    }
