"""The report's sections on prediction sets, class curves and predictive values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from lmd.base.text import text_table
from lmd.decisions.numbers import precision_recall, roc_points
from lmd.decisions.record import ClassDecision, Decisions, SetScores
from lmd.report import figures
from lmd.report.bars import SHAPES
from lmd.report.svg import chart, element, line, mark, savable, text, tip
from lmd.report.view import Row
from lmd.report.words import NONE, fitted_on, interval, percent
from lmd.runs.folder import Run
from lmd.scoring.estimates import Estimate, number_text
from lmd.scoring.proportions import Floats, class_mix, reweighted
from lmd.scoring.sample import Sample

SIZE, LEFT, TOP = 132.0, 30.0, 8.0
Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class ClassCurves:
    """Points of one class: ``roc (T, 2)``, ``recall_precision (T, 2)``, and its ``share``."""

    roc: Floats
    recall_precision: Floats
    share: float


def class_curves(run: Run) -> list[ClassCurves] | None:
    """The curves of each class in the stated mix, or nothing where the mix is unknown."""
    record, part = run.record, run.record.part
    of = run.predictions.parts.get(part) if run.predictions and part else None
    if of is None or record.decisions is None or record.model.prior is None or not len(of.labels):
        return None
    shares = [one.prevalence for one in record.decisions.per_class]
    mix = np.array([share or 0.0 for share in shares])
    old = class_mix(record.model.prior, record.data.counts["train"])
    sample = Sample(of.labels, reweighted(of.probabilities, old, mix))
    present = max(float(mix[sample.support > 0].sum()), 1e-12)
    found = []
    for k in range(len(mix)):
        roc = roc_points(sample, sample.probabilities, mix, k)
        share = float(mix[k]) / present
        found.append(ClassCurves(roc, precision_recall(roc, share), share))
    return found


def roc_figure(name: str, curves: ClassCurves, found: ClassDecision, tier: str) -> Markup:
    """Sensitivity against false positive rate, with the decisions marked."""
    words, at = f"{found.name}: sensitivity {percent(found.recall.value)}", None
    if found.recall.value is not None and found.specificity.value is not None:
        words += f" at specificity {percent(found.specificity.value)}"
        at = (1 - found.specificity.value, found.recall.value)
    title = f"Sensitivity and specificity of {found.name}"
    points = [(float(x), float(y)) for x, y in curves.roc]
    chance = line(*_place((0, 0)), *_place((1, 1)), "reference")
    drawn = _panel(name, (title, words), points, at, tier, chance, falling=True)
    rows = [{"false_positive_rate": x, "sensitivity": y} for x, y in thinned(points, 0.001)]
    return savable(f"ROC {found.name}", drawn, rows)


def precision_figure(name: str, curves: ClassCurves, found: ClassDecision, tier: str) -> Markup:
    """Precision against recall, with the decisions marked; the dashed line is chance."""
    words, at = f"{found.name}: recall {percent(found.recall.value)}", None
    if found.recall.value is not None and found.ppv.value is not None:
        words += f" at precision {percent(found.ppv.value)}; chance {percent(curves.share)}"
        at = (found.recall.value, found.ppv.value)
    title = f"Precision and recall of {found.name}"
    points = [(float(x), float(y)) for x, y in curves.recall_precision]
    chance = line(*_place((0, curves.share)), *_place((1, curves.share)), "reference")
    drawn = _panel(name, (title, words), points, at, tier, chance)
    rows = [{"recall": x, "precision": y} for x, y in thinned(points, 0.001)]
    return savable(f"precision-recall {found.name}", drawn, rows)


def _place(at: tuple[float, float]) -> tuple[float, float]:
    return LEFT + SIZE * at[0], TOP + SIZE * (1 - at[1])


def _panel(
    name: str,
    said: tuple[str, str],
    points: Pairs,
    at: tuple[float, float] | None,
    tier: str,
    chance: str,
    *,
    falling: bool = False,
) -> str:
    """A square of 0 to 100 % with a curve; ``falling`` numbers the lower axis from right to left.

    ``said`` are the title and the description, ``at`` is where the decisions are.
    """
    parts = []
    for share in (0.0, 0.5, 1.0):
        x, y = _place((share, share))
        anchor = "start" if share == 0 else "end" if share == 1 else None
        shown = f"{100 * ((1 - share) if falling else share):.0f}"
        parts += [
            line(LEFT, y, LEFT + SIZE, y, "grid"),
            line(x, TOP, x, TOP + SIZE, "grid"),
            text(LEFT - 5, y + 4, f"{100 * share:.0f}", class_="tick end"),
            text(x, TOP + SIZE + 14, shown, class_="tick", text_anchor=anchor),
        ]
    parts.append(chance)
    path = " ".join(f"{x:g},{y:g}" for x, y in thinned([_place(each) for each in points]))
    parts.append(element("polyline", points=path, class_=f"roc {tier}"))
    title, words = said
    if at is not None:
        dot = mark(SHAPES.get(tier, "circle"), *_place(at), 5.0, f"fill {tier}")
        parts.append(element("g", tip(words) + dot))
    return chart(name, title, words, (LEFT + SIZE + 8, TOP + SIZE + 20), parts)


def thinned(points: Pairs, step: float = 0.5) -> list[tuple[float, float]]:
    """The points of a line on a grid, without repeats and without those on a straight piece.

    >>> thinned([(0, 0), (0, 1), (0.1, 1.1), (0, 2), (3, 2)])
    [(0.0, 0.0), (0.0, 2.0), (3.0, 2.0)]
    """
    found: list[tuple[float, float]] = []
    for x, y in points:
        at = (round(round(x / step) * step, 9), round(round(y / step) * step, 9))
        if found and at == found[-1]:
            continue
        if len(found) > 1 and any(found[-2][i] == found[-1][i] == at[i] for i in (0, 1)):
            found.pop()
        found.append(at)
    return found


GUARANTEES = {
    "class": "the class",
    "tier": "its tier",
    "all": "all images",
    "always": "in every set",
}
UNPRICED = "the costs have no column refer, which says what referring an image costs"
COLUMNS = ("recall", "specificity", "fixed", "ppv", "npv")


def sets_view(run: Run, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Coverage and size of the prediction sets; ``rows`` give the order of the classes."""
    found = run.record.sets
    if found is None:
        return None
    ordered = [(row, found.per_class[row["order"]]) for row in rows]
    return {
        "requested": f"{100 * found.requested:g} %",
        "coverage": _number(found.coverage),
        "size": _plain(found.size),
        "empty": percent(found.empty),
        "figure": figures.coverage_figure(
            [{**row, "value": one.coverage.value, "low": one.coverage.low,
              "high": one.coverage.high, "size": one.size.value} for row, one in ordered],
            found.requested,
        ),
        "rows": [
            {
                "name": one.name,
                "guarantee": GUARANTEES[one.guarantee],
                "images": one.images,
                "groups": one.group_count,
                "expected": interval("recall", one.expected),
                "expected_low": one.expected.low or 0,
                "coverage": _number(one.coverage),
                "size": _plain(one.size),
            }
            for _, one in ordered
        ],
    }  # fmt: skip


def decisions_view(run: Run, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Curves and predictive values at the stated prevalence; ``rows`` give the order."""
    found = run.record.decisions
    curves = class_curves(run)
    if found is None or curves is None:
        return None
    ordered = [(row, found.per_class[row["order"]]) for row in rows]
    refers = found.referred > 0 or found.refer_above is not None or found.refer_costs is not None
    return {
        "prevalence": found.prevalence,
        "costs": found.costs is not None,
        "mean_cost": None if found.mean_cost is None else f"{found.mean_cost:.3g}",
        "unpriced": UNPRICED if found.unpriced else "",
        "refers": refers,
        "referred": percent(found.referred),
        "fixed": percent(found.fixed_specificity, 0),
        "roc": [
            (row["name"], roc_figure(f"roc-{i}", curves[row["order"]], one, row["tier"]))
            for i, (row, one) in enumerate(ordered)
            if one.recall.value is not None
        ],
        "precision": [
            (row["name"], precision_figure(f"pr-{i}", curves[row["order"]], one, row["tier"]))
            for i, (row, one) in enumerate(ordered)
            if one.recall.value is not None
        ],
        "rows": [
            {
                "name": one.name,
                "prevalence": percent(one.prevalence),
                "share": one.prevalence or 0,
                "referred": _number(one.referred),
                "cells": [_number(getattr(one, key)) for key in COLUMNS],
            }
            for _, one in ordered
        ],
    }


def calibration_view(run: Run) -> dict[str, str] | None:
    """ECE without the temperature, if one was fitted, and in the mix that the model answers for."""
    record = run.record
    found = record.calibration.get(record.part) if record.part else None
    if found is None:
        return None
    where = fitted_on(record)
    view = {
        "temperature": "each fold" if record.folds else f"{record.model.temperature:.3g}",
        "where": where or "",
        "before": "",
        "matched_before": "",
        "mirrored": "yes" if where and record.tta else "",
        "prior": record.model.prior or "",
        "matched_after": "" if found.matched_after is None else f"{found.matched_after:.3f}",
    }
    if where is not None and record.tta is None and found.before.value is not None:
        view["before"] = f"{found.before.value:.3f}"
        view["interval"] = interval("ece", found.before)
        if found.matched_before is not None:
            view["matched_before"] = f"{found.matched_before:.3f}"
    return view


def _number(found: Estimate) -> Row:
    return {
        "text": percent(found.value),
        "interval": interval("recall", found),
        "value": -1 if found.value is None else found.value,
    }


def _plain(found: Estimate) -> Row:
    """A mean that is no share, such as the size of a set."""
    if found.value is None:
        return {"text": NONE, "interval": "", "value": -1}
    span = f"{found.low:.2f}–{found.high:.2f}" if found.low is not None else ""
    return {"text": f"{found.value:.2f}", "interval": span, "value": found.value}


def format_decisions(decisions: Decisions, sets: SetScores | None) -> str:
    """Decisions and prediction sets of each class as plain text."""
    fixed = f"sens. at {100 * decisions.fixed_specificity:g} % spec."
    head = ("Class", "prevalence", "recall", "interval", "referred", "specificity", "PPV", "NPV")
    table: list[Sequence[str] | None] = [(*head, fixed), None]
    for row in decisions.per_class:
        rest = (row.referred, row.specificity, row.ppv, row.npv, row.fixed)
        numbers = (*row.recall.cells(), *(one.value_text() for one in rest))
        table.append((row.name, number_text(row.prevalence), *numbers))
    how = "least expected cost" if decisions.costs else "highest probability"
    lines = [f"Decisions by the {how}; prevalence: {decisions.prevalence}", text_table(table)]
    lines.append(f"Referred: {100 * decisions.referred:.1f} % of images at this prevalence")
    if decisions.unpriced:
        lines.append(f"Mean cost of one image: not known, because {UNPRICED}")
    elif decisions.mean_cost is not None:
        lines.append(f"Mean cost of one image at this prevalence: {decisions.mean_cost:.4g}")
    if sets is None:
        return "\n".join(lines)
    rows: list[Sequence[str]] = [
        (one.name, one.guarantee, str(one.images), *one.coverage.cells(), *one.size.cells())
        for one in sets.per_class
    ]
    rows.append(("All images", "", "", *sets.coverage.cells(), *sets.size.cells()))
    top = ("Class", "guaranteed for", "by images", "coverage", "interval", "set size", "interval")
    lines += ["", f"Prediction sets with a coverage of {100 * sets.requested:g} %"]
    return "\n".join([*lines, text_table([top, None, *rows])])
