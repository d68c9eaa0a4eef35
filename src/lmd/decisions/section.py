"""The report's sections on prediction sets, class curves and predictive values, and as text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from lmd.base.text import text_table
from lmd.decisions.numbers import precision_recall, roc_points
from lmd.report.charts import SHAPES, DotRow, dots_figure
from lmd.report.sections import ClassRow, Report, Values
from lmd.report.svg import chart, element, line, mark, savable, text, with_tip
from lmd.report.wording import percent
from lmd.scoring.estimates import Decisions, SetScores, number_text
from lmd.scoring.proportions import Floats, class_mix, reweighted

UNPRICED = "the costs have no column refer, which says what referring an image costs"
SIZE, LEFT, TOP = 132.0, 30.0, 8.0
Pairs = Sequence[tuple[float, float]]


def sets_view(report: Report) -> Values | None:
    """Coverage and size of the prediction sets."""
    sets = report.record.sets
    if sets is None:
        return None
    rows = [(row, sets.per_class[row.index]) for row in report.classes]
    lines = []
    for row, one in rows:
        size = "–" if one.size.value is None else f"size {one.size.value:.2f}"
        note = f"{one.coverage.value_text('.1%')} · {size}"
        lines.append(DotRow(row.name, note, [row.point(one.coverage)]))
    data = [row.cells("coverage", one.coverage) | {"size": one.size.value} for row, one in rows]
    title = "Coverage of each class"
    return {
        "sets": sets,
        "rows": [one for _, one in rows],
        "figure": dots_figure("coverage", title, lines, data, sets.requested),
    }


def decisions_view(report: Report) -> Values | None:
    """Curves and predictive values at the stated prevalence, where the mix is known."""
    decisions, sample = report.record.decisions, report.sample()
    if sample is None or decisions is None or report.record.model.prior is None:
        return None
    mix = np.array([one.prevalence or 0.0 for one in decisions.per_class])
    old = class_mix(report.record.model.prior, report.record.data.counts["train"])
    probabilities = reweighted(sample.probabilities, old, mix)
    present = max(float(mix[sample.support > 0].sum()), 1e-12)
    roc, precision = [], []
    for row in report.classes:
        one = decisions.per_class[row.index]
        if one.recall.value is None:
            continue
        share = float(mix[row.index]) / present
        points = roc_points(sample, probabilities, mix, row.index)
        false = None if one.specificity.value is None else 1 - one.specificity.value
        about = f"{row.name}: sensitivity {percent(one.recall.value)}"
        if false is not None:
            about += f" at specificity {percent(one.specificity.value)}"
        curve = Curve("ROC", about, points, (0, 1), (false, one.recall.value))
        roc.append(curve.figure(row))
        about = f"{row.name}: recall {percent(one.recall.value)}"
        if one.ppv.value is not None:
            about += f" at precision {percent(one.ppv.value)}; chance {percent(share)}"
        points = precision_recall(points, share)
        curve = Curve(
            "precision-recall", about, points, (share, share), (one.recall.value, one.ppv.value)
        )
        precision.append(curve.figure(row))
    refers = decisions.referred > 0 or decisions.refer_above is not None
    return {
        "decisions": decisions,
        "refers": refers or decisions.refer_costs is not None,
        "unpriced": UNPRICED,
        "roc": roc,
        "precision": precision,
        "rows": [decisions.per_class[row.index] for row in report.classes],
    }


_AXES = {
    "ROC": ("Sensitivity and specificity", "false_positive_rate", "sensitivity"),
    "precision-recall": ("Precision and recall", "recall", "precision"),
}


@dataclass(frozen=True)
class Curve:
    """A curve of one class in a square of 0 to 100 %.

    ``points (T, 2)`` are drawn with the height of ``chance`` at both sides and a mark ``at`` the
    decisions, if both of its places are known; ``about`` says in words where these are.
    """

    name: str
    about: str
    points: Floats
    chance: tuple[float, float]
    at: tuple[float | None, float | None]

    def figure(self, row: ClassRow) -> tuple[str, Markup]:
        """Return the name of the class and the drawing."""
        title, *axes = _AXES[self.name]
        parts = []
        for share in (0.0, 0.5, 1.0):
            x, y = _place((share, share))
            anchor = "start" if share == 0 else "end" if share == 1 else None
            # The lower axis of an ROC curve is specificity, from right to left.
            below = 1 - share if self.name == "ROC" else share
            parts += [
                line(LEFT, y, LEFT + SIZE, y, "grid"),
                line(x, TOP, x, TOP + SIZE, "grid"),
                text(LEFT - 5, y + 4, f"{100 * share:.0f}", class_="tick end"),
                text(x, TOP + SIZE + 14, f"{100 * below:.0f}", class_="tick", text_anchor=anchor),
            ]
        ends = _place((0, self.chance[0])), _place((1, self.chance[1]))
        parts.append(line(*ends[0], *ends[1], "reference"))
        points = [(float(x), float(y)) for x, y in self.points]
        path = " ".join(f"{x:g},{y:g}" for x, y in thinned([_place(point) for point in points]))
        parts.append(element("polyline", points=path, class_=f"roc {row.tier}"))
        across, up = self.at
        if across is not None and up is not None:
            shape = SHAPES.get(row.tier, "circle")
            dot = mark(shape, *_place((across, up)), f"fill {row.tier}", 5.0)
            parts.append(with_tip(self.about, dot))
        size = LEFT + SIZE + 8, TOP + SIZE + 20
        key = f"{self.name.lower()}-{row.index}"
        drawing = chart(key, f"{title} of {row.name}", self.about, size, parts)
        data = [dict(zip(axes, point, strict=True)) for point in thinned(points, 0.001)]
        return row.name, savable(f"{self.name} {row.name}", drawing, data)


def _place(point: tuple[float, float]) -> tuple[float, float]:
    return LEFT + SIZE * point[0], TOP + SIZE * (1 - point[1])


def thinned(points: Pairs, step: float = 0.5) -> list[tuple[float, float]]:
    """Return the points of a line on a grid, without repeats and without those on a straight piece.

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
