"""The figures of the page, each drawn from the rows that it shows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lmd.report import bars as charts
from lmd.report.bars import MOST_RUNS, RUN_SHAPES, SHAPES, DotRow, Point, Row, against_counts
from lmd.report.svg import element, mark, savable
from lmd.report.words import percent
from lmd.runs.record import Record

WIDE, PHONE = 980.0, 342.0
_PARTS = ("train", "validation", "test")


def counts_figure(rows: Sequence[Row]) -> Markup:
    """Bars of the class counts."""
    data = [
        {"class": row["name"], "tier": row["tier"], **{p: row[p] for p in _PARTS}} for row in rows
    ]
    return _both("counts", data, lambda name, w: charts.count_bars(f"counts-{name}", rows, w))


def recall_figure(rows: Sequence[Row], reference: float | None) -> Markup:
    """Recall of each class with its interval and support."""
    title = "Recall of each class with 95 % intervals"
    lines = [
        DotRow(
            row["name"],
            [row["recall_text"], f"n = {row['support']}"],
            [_point(row["recall"], row, row["tier"], SHAPES.get(row["tier"], "circle"))],
        )
        for row in rows
    ]
    return _both(
        "recall",
        _recalls(rows),
        lambda name, w: charts.dots(f"recall-{name}", title, lines, w, reference),
    )


def count_recall_figure(rows: Sequence[Row]) -> Markup | None:
    """Recall against training images; nothing if fewer than two classes have both."""
    known = [row for row in rows if row["train"] and row["recall"] is not None]
    if len(known) < 2:
        return None
    points = [
        (row["train"], _point(row["recall"], row, row["tier"], SHAPES.get(row["tier"], "circle")))
        for row in known
    ]
    return _both(
        "recall by training images",
        _recalls(known),
        lambda name, width: against_counts(f"by-count-{name}", points, width),
    )


def tiers_figure(rows: Sequence[Row]) -> Markup:
    """Balanced accuracy of head, medium and tail."""
    title = "Balanced accuracy of head, medium and tail with 95 % intervals"
    lines = [
        DotRow(
            f"{row['tier']} ({row['classes']} class{'es' if row['classes'] != 1 else ''})",
            [row["text"], row["interval"]],
            [_point(row["value"], row, row["tier"], SHAPES[row["tier"]])],
        )
        for row in rows
    ]
    data = [_part(row, "tier", "classes", balanced_accuracy="value") for row in rows]
    return _both(
        "tiers", data, lambda name, width: charts.dots(f"tiers-{name}", title, lines, width)
    )


def coverage_figure(rows: Sequence[Row], requested: float) -> Markup:
    """Coverage of the prediction sets of each class, and their mean size."""
    title = "Coverage of each class with 95 % intervals"
    lines = [
        DotRow(
            row["name"],
            [percent(row["value"]), "–" if row["size"] is None else f"size {row['size']:.2f}"],
            [_point(row["value"], row, row["tier"], SHAPES.get(row["tier"], "circle"))],
        )
        for row in rows
    ]
    data = [{**_part(row, "name", "tier", coverage="value"), "size": row["size"]} for row in rows]
    return _both(
        "coverage",
        data,
        lambda name, w: charts.dots(f"coverage-{name}", title, lines, w, requested),
    )


def comparison_figure(
    rows: Sequence[Row], runs: Sequence[Mapping[str, Row]], names: Sequence[str]
) -> Markup:
    """Recall of each class in every run, one mark below the other; ``runs`` have rows by class."""
    lines, data = [], []
    for row in rows:
        found = [run[row["name"]] for run in runs]
        points = [
            _point(each["recall"], each, f"run{i % MOST_RUNS}", RUN_SHAPES[i % 4])
            for i, each in enumerate(found)
        ]
        lines.append(DotRow(row["name"], [f"n = {row['support']}"], points))
        data += [
            {"run": name, **_part({**each, "tier": row["tier"]}, "name", "tier", recall="recall")}
            for name, each in zip(names, found, strict=True)
        ]
    title = "Recall of each class in every run with 95 % intervals"
    return _both(
        "recall of runs",
        data,
        lambda name, width: charts.dots(f"compare-{name}", title, lines, width),
    )


def confusion_figure(record: Record, rows: Sequence[Row]) -> Markup | None:
    """The confusion matrix, most frequent class first."""
    matrix = record.confusion.get(record.part) if record.part else None
    if not matrix:
        return None
    order = [row["order"] for row in rows]
    names = [row["name"] for row in rows]
    sorted_matrix = [[matrix[i][j] for j in order] for i in order]
    data = [
        {"true": names[i], "predicted": names[j], "images": count}
        for i, line in enumerate(sorted_matrix)
        for j, count in enumerate(line)
    ]
    return _both(
        "confusion",
        data,
        lambda name, w: charts.confusion(f"confusion-{name}", names, sorted_matrix, w),
        scroll=True,
    )


def legend_mark(shape: str, tone: str) -> Markup:
    """One marker for a legend."""
    drawn = mark(shape, 7.0, 7.0, 4.8, f"fill {tone}")
    return Markup(element("svg", drawn, width=14, height=14, aria_hidden="true", class_="key"))


def _point(value: float | None, row: Row, tone: str, shape: str) -> Point:
    name = row.get("name") or row.get("tier") or ""
    words = f"{name}: {percent(value)}"
    if row["low"] is not None and row["high"] is not None:
        words += f" (95 % interval {percent(row['low'])} to {percent(row['high'])})"
    if "support" in row:
        words += f", {row['support']} images"
    return Point(value, row["low"], row["high"], tone, shape, words)


def _recalls(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            **_part(row, "name", "tier", recall="recall"),
            "training_images": row["train"],
            "images": row["support"],
        }
        for row in rows
    ]


def _part(row: Row, *keys: str, **value: str) -> dict[str, Any]:
    """Some cells of a row, and its value with its interval, under names for a file."""
    ((title, key),) = value.items()
    kept = {"class" if each == "name" else each: row[each] for each in keys}
    return {**kept, title: row[key], "low": row["low"], "high": row["high"]}


def _both(
    title: str,
    data: Sequence[Mapping[str, Any]],
    draw: Callable[[str, float], str],
    scroll: bool = False,
) -> Markup:
    """One drawing for desktops and one for phones, where the first would be too small to read."""
    extra = " scroll" if scroll else ""
    return savable(
        title,
        f'<div class="desk{extra}">{draw("desk", WIDE)}</div>'
        f'<div class="phone{extra}">{draw("phone", PHONE)}</div>',
        data,
    )
