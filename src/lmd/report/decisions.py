"""Prediction sets, sensitivity-specificity curves and predictive values, as the page shows them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from lmd.report import figures
from lmd.report.charts import SHAPES
from lmd.report.svg import chart, element, line, mark, text, tip
from lmd.report.view import Row
from lmd.report.words import NONE, interval, percent
from lmd.runfolder.folder import RunFiles
from lmd.scoring.confusion import Floats
from lmd.scoring.decisions import roc_points
from lmd.scoring.estimates import ClassDecision, Estimate
from lmd.scoring.prevalence import class_mix, reweighted
from lmd.scoring.sample import Sample

GUARANTEES = {
    "class": "the class",
    "tier": "its tier",
    "all": "all images",
    "always": "in every set",
}
COLUMNS = ("recall", "specificity", "fixed", "ppv", "npv")


def sets_view(run: RunFiles, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Coverage and size of the prediction sets; ``rows`` give the order of the classes."""
    found = run.record.sets
    if found is None:
        return None
    ordered = [(row, found.per_class[row["order"]]) for row in rows]
    return {
        "requested": percent(found.requested, 0),
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
                "expected": interval("recall", one.expected),
                "coverage": _number(one.coverage),
                "size": _plain(one.size),
            }
            for _, one in ordered
        ],
    }  # fmt: skip


def decisions_view(run: RunFiles, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Curves and predictive values at the stated prevalence; ``rows`` give the order."""
    found = run.record.decisions
    curves = _curves(run)
    if found is None or curves is None:
        return None
    ordered = [(row, found.per_class[row["order"]]) for row in rows]
    refers = found.referred > 0 or found.refer_above is not None or found.refer_costs is not None
    return {
        "prevalence": found.prevalence,
        "costs": found.costs is not None,
        "mean_cost": None if found.mean_cost is None else f"{found.mean_cost:.3g}",
        "refers": refers,
        "referred": percent(found.referred),
        "fixed": percent(found.fixed_specificity, 0),
        "figures": [
            (row["name"], Markup(roc(f"roc-{i}", curves[row["order"]], one, row["tier"])))
            for i, (row, one) in enumerate(ordered)
            if one.recall.value is not None
        ],
        "rows": [
            {
                "name": one.name,
                "prevalence": percent(one.prevalence),
                "referred": percent(one.referred.value),
                "cells": [_number(getattr(one, key)) for key in COLUMNS],
            }
            for _, one in ordered
        ],
    }


def calibration_view(run: RunFiles) -> dict[str, str] | None:
    """ECE without the temperature, and both values in the mix that the model answers for."""
    found = run.record.calibration.get(run.record.part) if run.record.part else None
    if found is None or found.before.value is None:
        return None
    both = found.matched_before is not None and found.matched_after is not None
    return {
        "temperature": "each fold" if run.record.folds else f"{run.record.model.temperature:.3g}",
        "before": f"{found.before.value:.3f}",
        "interval": interval("ece", found.before),
        "prior": run.record.model.prior or "",
        "matched_before": f"{found.matched_before:.3f}" if both else "",
        "matched_after": f"{found.matched_after:.3f}" if both else "",
    }


def roc(name: str, points: Floats, found: ClassDecision, tier: str) -> str:
    """Sensitivity against false positive rate, with the decisions and the fixed point marked."""
    size, left, top = 132.0, 30.0, 8.0

    def place(at: tuple[float, float]) -> tuple[float, float]:
        return left + size * at[0], top + size * (1 - at[1])

    parts = []
    for share in (0.0, 0.5, 1.0):
        x, y = place((share, share))
        anchor = "start" if share == 0 else "end" if share == 1 else None
        parts += [
            line(left, y, left + size, y, "grid"),
            line(x, top, x, top + size, "grid"),
            text(left - 5, y + 4, f"{100 * share:.0f}", class_="tick end"),
            text(x, top + size + 14, f"{100 * (1 - share):.0f}", class_="tick", text_anchor=anchor),
        ]
    parts.append(line(*place((0, 0)), *place((1, 1)), "reference"))
    path = " ".join(f"{x:g},{y:g}" for x, y in _thinned([place((x, y)) for x, y in points]))
    parts.append(element("polyline", points=path, class_=f"roc {tier}"))
    words = f"{found.name}: sensitivity {percent(found.recall.value)}"
    if found.recall.value is not None and found.specificity.value is not None:
        words += f" at specificity {percent(found.specificity.value)}"
        at = place((1 - found.specificity.value, found.recall.value))
        dot = mark(SHAPES.get(tier, "circle"), *at, 5.0, f"fill {tier}")
        parts.append(element("g", tip(words) + dot))
    title = f"Sensitivity and specificity of {found.name}"
    return chart(name, title, words, (left + size + 8, top + size + 20), parts)


def _curves(run: RunFiles) -> list[Floats] | None:
    """Points of the curve of each class ``(T, 2)``, or nothing where the mix is unknown."""
    record, part = run.record, run.record.part
    of = run.predictions.parts.get(part) if run.predictions and part else None
    if of is None or record.decisions is None or record.model.prior is None or not len(of.labels):
        return None
    shares = [one.prevalence for one in record.decisions.per_class]
    mix = np.array([share or 0.0 for share in shares])
    old = class_mix(record.model.prior, record.data.counts["train"])
    sample = Sample(of.labels, reweighted(of.probabilities, old, mix))
    return [roc_points(sample, sample.probabilities, mix, k) for k in range(len(mix))]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line at half a px, without repeats and without those on a straight piece.

    >>> _thinned([(0, 0), (0, 1), (0.1, 1.1), (0, 2), (3, 2)])
    [(0.0, 0.0), (0.0, 2.0), (3.0, 2.0)]
    """
    found: list[tuple[float, float]] = []
    for x, y in points:
        at = (round(2 * x) / 2, round(2 * y) / 2)
        if found and at == found[-1]:
            continue
        if len(found) > 1 and any(found[-2][i] == found[-1][i] == at[i] for i in (0, 1)):
            found.pop()
        found.append(at)
    return found


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
