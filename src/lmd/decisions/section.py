"""The report's sections on prediction sets, class curves and predictive values, and as text."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from lmd.base.text import text_table
from lmd.decisions.numbers import precision_recall, roc_points
from lmd.decisions.record import Decisions, SetScores
from lmd.report import charts as svg
from lmd.report.page import ClassRow, Report, Values
from lmd.report.text import percent
from lmd.scoring.estimates import number_text
from lmd.scoring.proportions import Floats, class_mix, reweighted

UNPRICED = "the costs have no column refer, which says what referring an image costs"
SIZE, LEFT, TOP = 132.0, 30.0, 8.0


def sets_view(report: Report) -> Values | None:
    """Coverage and size of the prediction sets."""
    sets = report.record.sets
    if sets is None:
        return None
    rows = [sets.per_class[row.index] for row in report.classes]
    lines, data = [], []
    for row, numbers in zip(report.classes, rows, strict=True):
        size = "–" if numbers.size.value is None else f"size {numbers.size.value:.2f}"
        note = f"{numbers.coverage.value_text('.1%')} · {size}"
        lines.append((row.name, note, [row.point(numbers.coverage)]))
        data.append(row.cells("coverage", numbers.coverage) | {"size": numbers.size.value})
    title = "Coverage of each class"
    figure = svg.dots_figure("coverage", title, lines, data, sets.requested)
    return {"sets": sets, "rows": rows, "figure": figure}


def decisions_view(report: Report) -> Values | None:
    """Curves and predictive values at the stated prevalence, where the mix is known."""
    decisions, sample = report.record.decisions, report.sample
    if sample is None or decisions is None or report.record.model.prior is None:
        return None
    mix = np.array([row.prevalence or 0.0 for row in decisions.per_class])
    old = class_mix(report.record.model.prior, report.record.data.counts["train"])
    probabilities = reweighted(sample.probabilities, old, mix)
    present = max(float(mix[sample.support > 0].sum()), 1e-12)
    roc, precision = [], []
    for row in report.classes:
        rates = decisions.per_class[row.index]
        recall, specificity, ppv = rates.recall.value, rates.specificity.value, rates.ppv.value
        if recall is None:
            continue
        points = roc_points(sample, probabilities, mix, row.index)
        about = f"{row.name}: sensitivity {percent(recall)}"
        if specificity is not None:
            about += f" at specificity {percent(specificity)}"
        false = None if specificity is None else 1 - specificity
        roc.append(_curve(row, "ROC", about, points, (0, 1), (false, recall)))
        share = float(mix[row.index]) / present
        about = f"{row.name}: recall {percent(recall)}"
        if ppv is not None:
            about += f" at precision {percent(ppv)}; chance {percent(share)}"
        points = precision_recall(points, share)
        curve = _curve(row, "precision-recall", about, points, (share, share), (recall, ppv))
        precision.append(curve)
    refers = decisions.referred > 0 or decisions.refer_above is not None
    return {
        "decisions": decisions,
        "refers": refers or decisions.refer_costs is not None,
        "unpriced": UNPRICED if decisions.unpriced else "",
        "roc": roc,
        "precision": precision,
        "rows": [decisions.per_class[row.index] for row in report.classes],
    }


_AXES = {
    "ROC": ("Sensitivity and specificity", "false_positive_rate", "sensitivity"),
    "precision-recall": ("Precision and recall", "recall", "precision"),
}


def _curve(
    row: ClassRow,
    name: str,
    about: str,
    points: Floats,
    chance: tuple[float, float],
    decided: tuple[float | None, float | None],
) -> tuple[str, Markup]:
    """Return a class and its curve ``points (T, 2)``, with a line of ``chance`` and a mark."""
    title, *axes = _AXES[name]
    parts = []
    for share in (0.0, 0.5, 1.0):
        x, y = LEFT + SIZE * share, TOP + SIZE * (1 - share)
        anchor = "start" if share == 0 else "end" if share == 1 else None
        # The lower axis of an ROC curve is specificity, from right to left.
        below = 1 - share if name == "ROC" else share
        parts += [
            svg.line(LEFT, y, LEFT + SIZE, y, "grid"),
            svg.line(x, TOP, x, TOP + SIZE, "grid"),
            svg.text(LEFT - 5, y + 4, f"{100 * share:.0f}", class_="tick end"),
            svg.text(x, TOP + SIZE + 14, f"{100 * below:.0f}", class_="tick", text_anchor=anchor),
        ]
    start, end = (TOP + SIZE * (1 - share) for share in chance)
    parts.append(svg.line(LEFT, start, LEFT + SIZE, end, "reference"))
    places = np.stack([LEFT + SIZE * points[:, 0], TOP + SIZE * (1 - points[:, 1])], axis=1)
    path = " ".join(f"{x:g},{y:g}" for x, y in thinned(places.tolist()))
    parts.append(svg.element("polyline", points=path, class_=f"roc {row.tier}"))
    across, up = decided
    if across is not None and up is not None:
        shape, x, y = svg.SHAPES.get(row.tier, "circle"), LEFT + SIZE * across, 1 - up
        dot = svg.mark(shape, x, TOP + SIZE * y, f"fill {row.tier}", 5.0)
        parts.append(svg.with_tip(about, dot))
    size = LEFT + SIZE + 8, TOP + SIZE + 20
    drawing = svg.chart(f"{name.lower()}-{row.index}", f"{title} of {row.name}", about, size, parts)
    data = [dict(zip(axes, point, strict=True)) for point in thinned(points.tolist(), 0.001)]
    return row.name, svg.savable(f"{name} {row.name}", drawing, data)


def thinned(points: Sequence[Sequence[float]], step: float = 0.5) -> list[tuple[float, float]]:
    """Return points of a line on a grid, without repeats and without points on a straight piece.

    >>> thinned([(0, 0), (0, 1), (0.1, 1.1), (0, 2), (3, 2)])
    [(0.0, 0.0), (0.0, 2.0), (3.0, 2.0)]
    """
    path: list[tuple[float, float]] = []
    for x, y in points:
        at = (round(round(x / step) * step, 9), round(round(y / step) * step, 9))
        if path and at == path[-1]:
            continue
        if len(path) > 1 and any(path[-2][i] == path[-1][i] == at[i] for i in (0, 1)):
            path.pop()
        path.append(at)
    return path


def format_decisions(decisions: Decisions, sets: SetScores | None) -> str:
    """Decisions and prediction sets of each class as plain text."""
    fixed = f"sens. at {100 * decisions.fixed_specificity:g} % spec."
    head = ("Class", "prevalence", "recall", "interval", "referred", "specificity", "PPV", "NPV")
    table: list[Sequence[str] | None] = [(*head, fixed), None]
    for row in decisions.per_class:
        rest = (row.referred, row.specificity, row.ppv, row.npv, row.fixed)
        numbers = (*row.recall.cells(), *(rate.value_text() for rate in rest))
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
        (row.name, row.guarantee, str(row.images), *row.coverage.cells(), *row.size.cells())
        for row in sets.per_class
    ]
    rows.append(("All images", "", "", *sets.coverage.cells(), *sets.size.cells()))
    top = ("Class", "guaranteed for", "by images", "coverage", "interval", "set size", "interval")
    lines += ["", f"Prediction sets with a coverage of {100 * sets.requested:g} %"]
    return "\n".join([*lines, text_table([top, None, *rows])])
