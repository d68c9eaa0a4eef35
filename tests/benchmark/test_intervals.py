"""What a table does not show: intervals that are not known, and runs on other images."""

import csv
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from runs_on_disk import as_planned, begun, edited, make_run, write_run

from lmd.base.errors import LmdError
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.results import Results, read_results
from lmd.benchmark.tables import drawn_metrics, make_tables
from lmd.runs.folder import PartPredictions, Predictions

CLASSES = ("nevus", "melanoma", "wart")
SUPPORT = (40, 30, 20)


def two_seeds(
    tmp_path: Path, support: tuple[int, ...], wrong: Sequence[int] = (), title: str = "Two seeds"
) -> Results:
    """A table's results, from runs that are right but for some images."""
    grid = tmp_path / "grid.toml"
    grid.write_text(f'title = "{title}"\ndata = "a.csv"\nmethods = ["ce"]\nseeds = [0, 1]\n')
    labels = np.repeat(np.arange(len(CLASSES)), support)
    called = labels.copy()
    called[list(wrong)] = (called[list(wrong)] + 1) % len(CLASSES)
    given = (np.eye(len(CLASSES))[called] * 0.7 + 0.1).astype(np.float32)
    test = PartPredictions(np.array([f"i{i}" for i in range(len(labels))]), labels, given)
    for seed in (0, 1):
        record = begun(f"ce-seed{seed}", CLASSES, [500, 200, 80], key="ce", title="CE")
        folder = tmp_path / "out" / f"ce-seed{seed}"
        write_run(folder, record, Predictions(CLASSES, {"test": test}), resamples=50)
    plan = plan_grid(grid)
    as_planned(plan, tmp_path / "out")
    return read_results(plan, tmp_path / "out", resamples=50)


def test_what_all_resamples_agree_on_has_no_interval(tmp_path: Path) -> None:
    found = two_seeds(tmp_path, SUPPORT).entry("ce", 0).estimate("auc")
    assert found is not None
    assert (found.mean, found.low, found.high) == (1, None, None)


@pytest.mark.parametrize(("fewest", "known"), [(4, False), (20, True)])
def test_auc_has_no_interval_with_a_small_class(tmp_path: Path, fewest: int, known: bool) -> None:
    results = two_seeds(tmp_path, (40, 30, fewest), wrong=[0, 1, 41, 71])
    found = results.entry("ce", 0).estimate("auc")
    assert found is not None
    assert (found.low is not None) == (found.high is not None) == known
    said, text = "AUC has no such limits, and no interval there.", make_tables(results)
    assert (said in " ".join(text.split())) == (not known)
    assert "nan" not in text
    assert said not in " ".join(make_tables(results, form="tiers").split())


def test_seeds_that_are_not_trained_yet_are_not_named(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('data = "a.csv"\nmethods = ["ce"]\nseeds = [0, 1, 2]\n')
    plan, folder = plan_grid(grid), tmp_path / "out"
    assert "Values in %: mean ± standard deviation over the seeds 0, 1, 2," in " ".join(
        make_tables(read_results(plan, folder)).split()
    )
    for seed, said in ((2, "one seed (2),"), (0, "over the seeds 0, 2,")):
        make_run(folder / f"ce-seed{seed}", list(CLASSES))
        as_planned(plan, folder)
        assert said in " ".join(make_tables(read_results(plan, folder, resamples=50)).split())


def test_resamples_drawn_for_all_runs_are_those_of_each(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'data = "a.csv"\nmethods = ["lmd"]\nform = "sweep"\n[sweep]\nlambda_e = [0.1, 1.0]\n'
    )
    plan = plan_grid(grid)
    for i, run in enumerate(plan.runs):  # two points, with other images
        make_run(tmp_path / "out" / run.name, list(CLASSES), skill=1.0 + i, seed=i)
    as_planned(plan, tmp_path / "out")
    together, alone = (read_results(plan, tmp_path / "out", resamples=50) for _ in range(2))
    added: list[int] = []
    together.resample(("auc", "macro_f1"), added.append)
    assert sum(added) == 50 * len(plan.runs)
    for one, other in zip(together.runs, alone.runs, strict=True):
        for key in ("auc", "macro_f1", "balanced_accuracy"):
            np.testing.assert_array_equal(one.draws(key), other.draws(key))
    assert drawn_metrics(together) == ("balanced_accuracy",)  # one seed: the rest is in the records


@pytest.mark.parametrize("changed", ["fingerprint", "pixels"])
def test_runs_on_other_training_images_are_not_in_one_table(tmp_path: Path, changed: str) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('data = "a.csv"\nmethods = ["ce"]\nseeds = [0, 1]\n')
    for seed in (0, 1):
        make_run(tmp_path / "out" / f"ce-seed{seed}", list(CLASSES))
        with edited(tmp_path / "out" / f"ce-seed{seed}") as record:
            record["data"] |= {"pixels": "0", changed: str(seed)}
    plan = plan_grid(grid)
    as_planned(plan, tmp_path / "out")
    with pytest.raises(LmdError, match="were not trained on the same images"):
        read_results(plan, tmp_path / "out")


def test_runs_with_other_settings_are_not_the_grids(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('data = "a.csv"\nmethods = ["ce"]\n[protocol]\nepochs = 10\n')
    make_run(tmp_path / "out" / "ce-seed0", list(CLASSES))
    as_planned(plan_grid(grid), tmp_path / "out")
    with edited(tmp_path / "out" / "ce-seed0") as record:
        del record["request"]["protocol"]["amp"]  # a setting that is younger than the run
    assert read_results(plan_grid(grid), tmp_path / "out", resamples=10).runs
    grid.write_text(grid.read_text().replace("10", "40"))
    with pytest.raises(LmdError, match=r"ce-seed0 does not belong .*: epochs: 10 → 40;"):
        read_results(plan_grid(grid), tmp_path / "out", resamples=10)


def test_tables_need_no_torch() -> None:
    code = "import sys, lmd.benchmark.tables, lmd.benchmark.plan, lmd.benchmark.command; "
    code += "assert not {'torch', 'cv2'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_title_is_no_formula_for_a_spreadsheet(tmp_path: Path) -> None:
    text = make_tables(two_seeds(tmp_path, SUPPORT, title="=1+1"), format="csv")
    row = next(csv.DictReader(io.StringIO(text)))
    assert row["table"] == "'=1+1"
    assert float(row["balanced_accuracy"]) == 1
