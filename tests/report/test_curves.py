"""The learning curves: every term of the history, on axes that enclose it."""

from pathlib import Path

import pytest
from pages import page, report_of
from runs_on_disk import make_run

from lmd.report.curves import curve_groups, nice_ticks


@pytest.mark.parametrize(("epochs", "lines"), [((1,), 0), ((2,), 3), ((3, 2), 7)])
def test_learning_curves_draw_every_term(
    tmp_path: Path, epochs: tuple[int, ...], lines: int
) -> None:
    make_run(tmp_path / "run", ["a", "b"], epochs=epochs)
    found = page(report_of(tmp_path / "run"))
    drawn = [a for a in found.attributes if a == ("polyline", "class", "curve")]
    # Each term is one line in each stage that has it; a single epoch is only a dot. Balanced
    # accuracy lacks the first epoch of a stage.
    assert len(drawn) == lines
    boundaries = [v for tag, key, v in found.attributes if key == "class" and v == "boundary"]
    assert bool(boundaries) == (len(epochs) > 1)
    assert ("fdc" in found.text) == (len(epochs) > 1)


def test_a_stage_of_one_epoch_has_numbers_instead_of_dots() -> None:
    rows = [{"stage": 1, "stage_name": "First", "epoch": n, "loss": 1.0 / n} for n in (1, 2, 3)]
    once = {"stage": 2, "stage_name": "Second", "epoch": 1, "m_loss": 0.123456, "extra": 2e-7}
    first, second = curve_groups([*rows, once])
    assert [first.heading, len(first.figures), first.numbers] == ["First", 1, []]
    assert second.numbers == [("Loss of the M step", "0.1235"), ("extra", "2e-07")]
    assert not second.figures


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-19.3, -2.2), (5.0, 5.0), (0.0, 0.0), (1e-7, 3e-7), (1, 1e6)]
)
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))
