"""Prediction sets, curves of each class and predictive values, as the page shows them."""

from collections.abc import Sequence
from typing import Any

from lmd.report import figures
from lmd.report.class_curves import class_curves, precision_figure, roc_figure
from lmd.report.view import Row
from lmd.report.words import NONE, fitted_on, interval, percent
from lmd.runfolder.folder import RunFiles
from lmd.scoring.definitions import UNPRICED
from lmd.scoring.estimates import Estimate

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


def decisions_view(run: RunFiles, rows: Sequence[Row]) -> dict[str, Any] | None:
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


def calibration_view(run: RunFiles) -> dict[str, str] | None:
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
