"""Assemble the report of a run and write it into the run's folder."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.report.charts import MOST_RUNS
from lmd.report.sections import Report, Values
from lmd.report.wording import FILTERS, summary
from lmd.runs.folder import Run
from lmd.runs.record import Record
from lmd.scoring.estimates import Estimate

_PACKAGE = Path(__file__).parents[1]
# The sections in their order, by their anchor, which is also the name of their template: the title
# in the contents, and the function that makes the values of the template, or ``None`` where there
# is nothing to show. A section without a function needs only the field of the record of its name.
SECTIONS: dict[str, tuple[str, str | None]] = {
    "external": ("Another place", "lmd.evaluation.section:external_view"),
    "candidates": ("Before and after", None),
    "comparison": ("Comparison", "lmd.report.comparison:comparison_view"),
    "folds": ("Folds", None),
    "counts": ("Classes", "lmd.report.sections:counts_view"),
    "recall": ("Recall", "lmd.report.sections:recall_view"),
    "confusion": ("Confusion", "lmd.report.sections:confusion_view"),
    "looks": ("Images", "lmd.explain.examples:looks_view"),
    "calibration": ("Calibration", "lmd.report.sections:calibration_view"),
    "sets": ("Sets", "lmd.decisions.section:sets_view"),
    "decisions": ("Decisions", "lmd.decisions.section:decisions_view"),
    "novelty": ("Unlike training", None),
    "metrics": ("Metrics", None),
    "curves": ("Training", "lmd.report.curves:curves_view"),
    "facts": ("What was run", None),
}


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
    if len(compare) >= MOST_RUNS:
        raise LmdError(
            f"a report shows at most {MOST_RUNS} runs side by side; got {len(compare) + 1}"
        )
    report = Report(run, compare, resamples, images)
    sections = [
        (key, title, section)
        for key, (title, function) in SECTIONS.items()
        if (section := _section(report, key, function)) is not None
    ]
    html = environment().get_template("report.html").render(
        report=report,
        record=run.record,
        tiles=_tiles(report),
        summary=summary(run.record, report.classes) if run.record.part else [],
        notes=_notes(run.record),
        sections=sections,
    )  # fmt: skip
    path = out or run.path / "report.html"
    atomic_write(path, html.encode(), parents=out is not None)
    return path


def _section(report: Report, key: str, function: str | None) -> Markup | None:
    """Return a section as HTML; ``None`` if there is nothing to show."""
    if function is None:
        values: Values | None = {} if getattr(report.record, key, True) else None
    else:
        module, _, name = function.partition(":")
        view: Callable[[Report], Values | None] = getattr(import_module(module), name)
        values = view(report)
    if values is None:
        return None
    template = environment().get_template(f"{key}.html")
    return Markup(template.render(values, report=report, record=report.record))


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


def _notes(record: Record) -> list[str]:
    """Return the notes of the method, then those of the reported part, then the rest."""
    first = f"{record.part}:" if record.external is None else ""
    notes = sorted(record.notes, key=lambda note: not note.startswith(first))
    return [record.method.note, *notes] if record.method.note else notes
