"""Two runs are paired by the names of images and classes, or refused."""

from pathlib import Path

import numpy as np
import pytest
from runs_on_disk import edited, edited_arrays, make_run

from lmd.base.errors import LmdError
from lmd.runs.folder import Run, paired


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    for seed, name in enumerate("ab"):
        make_run(tmp_path / name, ["x", "y", "z"], seed=seed, epochs=(1,))
    return Run(tmp_path / "a"), Run(tmp_path / "b")


def test_the_order_of_images_and_classes_does_not_matter(runs: tuple[Run, Run]) -> None:
    a, b = runs
    _, before = paired(a, b)
    with edited_arrays(b.path) as arrays:
        classes, order = [2, 0, 1], np.arange(len(arrays["test_ids"]))[::-1]
        arrays["classes"] = arrays["classes"][classes]
        arrays["test_ids"] = arrays["test_ids"][order]
        arrays["test_labels"] = np.argsort(classes)[arrays["test_labels"][order]]
        arrays["test_probabilities"] = arrays["test_probabilities"][order][:, classes]
    with edited(b.path) as record:
        record["data"]["classes"] = ["z", "x", "y"]
    mine, after = paired(a, Run(b.path))
    assert np.array_equal(after, before)
    assert not np.array_equal(mine.probabilities, after)


def test_other_labels_are_refused(runs: tuple[Run, Run]) -> None:
    with edited_arrays(runs[1].path) as arrays:
        arrays["test_labels"][0] = 1
    with pytest.raises(LmdError, match="different labels"):
        paired(*runs)


def test_fewer_images_are_refused(runs: tuple[Run, Run]) -> None:
    with edited_arrays(runs[1].path) as arrays:
        arrays |= {f"test_{k}": arrays[f"test_{k}"][1:] for k in ("ids", "labels", "probabilities")}
    with edited(runs[1].path) as record:
        record["data"]["counts"]["test"][0] -= 1
    for first, second in (runs, runs[::-1]):
        with pytest.raises(LmdError, match="other images"):
            paired(first, second)
