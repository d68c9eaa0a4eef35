"""Marks and bars lie where their values are."""

import pytest
from pages import Page

from lmd.report.charts import Point, count_bars, dots_figure
from lmd.scoring.estimates import Estimate


def percent(place: str) -> float:
    assert place.endswith("%")
    return float(place[:-1])


def test_marks_lie_where_their_values_are() -> None:
    def drawn(value: float, low: float, high: float) -> tuple[float, float, float]:
        estimate = Estimate(value=value, low=low, high=high)
        row = ("a", "", [Point("", estimate, "head")])
        found = Page(dots_figure("x", "title", [row], []))
        centre = next(
            percent(v) for tag, key, v in found.attributes if (tag, key) == ("circle", "cx")
        )
        whisker = [i for i, a in enumerate(found.attributes) if a[1:] == ("class", "whisker head")]
        line = dict(a[1:] for a in found.attributes[whisker[0] - 4 : whisker[0]])
        return centre, percent(line["x1"]), percent(line["x2"])

    zero, one = drawn(0, 0, 0)[0], drawn(1, 1, 1)[0]
    assert one > zero + 90
    at = [zero + share * (one - zero) for share in (0.5, 0.25, 0.875)]
    assert drawn(0.5, 0.25, 0.875) == pytest.approx(at, abs=0.02)


def test_bars_are_logarithmic() -> None:
    counts = (1000, 100, 10, 1, 0)
    rows = [(f"class {n}", "head", (n, None, 0)) for n in counts]
    found = Page(count_bars("x", rows))
    widths = [percent(v) for tag, key, v in found.attributes if (tag, key) == ("rect", "width")]
    assert widths[1] == pytest.approx(widths[0] * 2 / 3, abs=0.02)
    assert widths[2] == pytest.approx(widths[0] / 3, abs=0.02)
    assert 0 < widths[3] < 5, "one image is still to be seen"
    assert widths[4] == 0
