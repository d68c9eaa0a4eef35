"""The reliability diagram draws the bins of the calibration error."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from pages import page, report_of
from runs_on_disk import write_hits

from lmd.report.curves import reliability_bins
from lmd.scoring.metrics import METRICS, Sample


def test_bins_drawn_are_those_of_the_calibration_error() -> None:
    generator = np.random.default_rng(3)
    probabilities = generator.dirichlet([0.4] * 5, size=400).astype(np.float32)
    probabilities[0] = [0, 0, 1, 0, 0]
    labels = generator.integers(5, size=400)
    sample = Sample(labels, probabilities)
    bins = reliability_bins(sample)
    assert sum(each.count for each in bins) == 400
    error = sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / 400
    assert error == pytest.approx(METRICS["ece"].value(sample), abs=1e-9)
    for each in bins:
        if each.count:
            assert each.left <= each.confidence <= each.right
            assert each.low <= each.accuracy <= each.high


def test_images_of_one_patient_widen_the_intervals(tmp_path: Path) -> None:
    def width(name: str, groups: int | None) -> float:
        write_hits(tmp_path / name, (30, 10), groups)
        found = page(report_of(tmp_path / name)).attributes
        texts = [value for _, key, value in found if key == "data-csv"]
        (text,) = [text for text in texts if text.startswith("left,right,count,")]
        (row,) = [row for row in csv.DictReader(io.StringIO(text)) if int(row["count"])]
        assert float(row["accuracy"]) == pytest.approx(40 / 60, abs=1e-5)
        return float(row["high"]) - float(row["low"])

    alone = width("images", None)
    assert width("patients of one image", 1) == alone
    # All five images of a patient are right, or all are wrong: a fifth as many count.
    assert width("patients of five images", 5) == pytest.approx(alone * 5**0.5, rel=0.1)
