"""The sentences that sum up a run."""

from pathlib import Path

from pages import page, report_of
from runs_on_disk import SKIN, edited, make_run


def test_summary_names_the_weak_classes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SKIN)
    recalls = [0.9, 0.31, 0.8, 0.7, 0.12, 0.6, 0.5, 0.75]
    with edited(tmp_path / "run") as record:
        for row, recall in zip(record["per_class"]["test"], recalls, strict=True):
            row["recall"] = {"value": recall, "low": recall - 0.1, "high": recall + 0.1}
        for row in record["confusion"]["test"]:
            row[6] = 0
        record["confusion"]["test"][4] = [3, 9, 2, 1, 2, 0, 0, 0]
    text = page(report_of(tmp_path / "run")).text
    assert f"2 of 8 classes have recall below 50 %: {SKIN[4]} (12 %) and {SKIN[1]} (31 %)." in text
    assert f"The model never predicts {SKIN[6]}." in text
    assert f"Images of {SKIN[4]} are most often mistaken for {SKIN[1]} (9 of 17)." in text
