"""The study of HAM10000: what it publishes and takes over again."""

import csv
import json
import lzma
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scripts import script

from lmd.base.errors import LmdError
from lmd.benchmark.results import unpacked
from lmd.runs.folder import PartPredictions, Predictions, Run
from lmd.scoring.metrics import Sample
from lmd.scoring.scores import bootstrap


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return script("run", "studies/ham10000")


@pytest.fixture(scope="module")
def publishing() -> ModuleType:
    return script("publish", "studies")


def write_run(folder: Path, data: Path, status: str = "finished") -> None:
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"status": status, "data": str(data)}))
    np.savez(folder / "predictions.npz", classes=["a", "b"])
    (folder / "model.safetensors").write_bytes(b"weights")


def test_what_is_published_can_be_taken_over(
    study: ModuleType, publishing: ModuleType, tmp_path: Path
) -> None:
    out, results, there = tmp_path / "out", tmp_path / "results", tmp_path / "there"
    runs = out / "runs" / "ham10000-lt"
    for name in ("ce-seed0", "ce-lr=0.03-seed0"):
        write_run(runs / name, out / "ham10000-lt.csv")
    write_run(runs / "rs-seed0", out / "ham10000-lt.csv", status="running")
    trials = [{"label": "0.01", "run": "ce-seed0"}, {"label": "0.03", "run": "ce-lr=0.03-seed0"}]
    choices = json.dumps({"choices": [{"chosen": "0.01", "trials": trials}]})
    (runs / "choices.json").write_text(choices)

    publishing.pack_runs(runs, results / "ham10000-lt" / "runs.tar.xz", out)
    choice = out / "choose"
    write_run(choice / "lmd-data=task_1-seed0", out)
    publishing.pack_runs(choice, results / study.CHOICE / "runs.tar.xz", out)
    begun = there / "runs" / "ham10000-lt" / "ce-seed0"
    begun.mkdir(parents=True)
    study.take_over(results, there)
    assert (there / "choose" / "lmd-data=task_1-seed0" / "record.json").exists()
    assert not list(begun.iterdir())
    begun.rmdir()
    study.take_over(results, there)
    taken = there / "runs" / "ham10000-lt"
    # The predictions of a value that was not chosen are not needed, unfinished runs not wanted.
    assert sorted(str(path.relative_to(taken)) for path in taken.rglob("*.*")) == [
        "ce-lr=0.03-seed0",
        "ce-lr=0.03-seed0/record.json",
        "ce-seed0/predictions.npz",
        "ce-seed0/record.json",
        "choices.json",
    ]
    record = json.loads((taken / "ce-seed0" / "record.json").read_text())
    assert record["data"] == "ham10000-lt.csv"
    assert (taken / "choices.json").read_text() == choices


def test_rounded_predictions_give_the_same_tables(publishing: ModuleType, tmp_path: Path) -> None:
    runs, generator = tmp_path / "runs", np.random.default_rng(0)
    metrics = ("auc", "balanced_accuracy", "macro_f1")
    for name in ("a", "b"):
        write_run(runs / name, tmp_path)
        labels = np.arange(3).repeat((500, 60, 8))
        probabilities = generator.dirichlet([0.3] * 3, len(labels)).astype(np.float32)
        probabilities[:9] = [0.4001, 0.4002, 0.1997]  # in one step
        part = PartPredictions(np.array([f"{i}" for i in range(568)]), labels, probabilities)
        Run(runs / name).write_predictions(Predictions(("x", "y", "z"), {"test": part}))
    publishing.pack_runs(runs, tmp_path / "runs.tar.xz", tmp_path)
    for name in ("a", "b"):
        before, after = (
            Run(place / name).read_predictions().parts["test"]
            for place in (runs, unpacked(tmp_path / "runs.tar.xz"))
        )
        rows = np.argsort(after.ids.astype(int))
        assert np.array_equal(after.labels[rows], before.labels)
        np.testing.assert_allclose(after.probabilities[rows], before.probabilities, atol=3e-3)
        old, new = (
            bootstrap(Sample(before.labels, values), metrics, resamples=20)
            for values in (before.probabilities, after.probabilities[rows])
        )
        for metric in metrics:
            np.testing.assert_array_equal(new[metric], old[metric])


def test_an_archive_that_is_cut_short_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.tar.xz"
    path.write_bytes(lzma.compress(bytes(range(256)) * 99)[:90])
    with pytest.raises(LmdError, match=r"cannot be unpacked.*restore the file"):
        unpacked(path)


def test_what_lmd_choose_found_is_published(
    publishing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PAGES", ())
    study = tmp_path / "study"
    write_run(study / "choose" / "lmd-data=task_1-seed0", study)
    (study / "choose" / "choice.json").write_text('{"use": "lmd"}')
    results = tmp_path / "results"
    publishing.main(
        ["--results", str(results), "--choice", "ham10000-choose", str(study / "choose")]
    )
    published = results / "ham10000-choose"
    assert json.loads((published / "choice.json").read_text())["use"] == "lmd"
    record = unpacked(published / "runs.tar.xz") / "lmd-data=task_1-seed0" / "record.json"
    assert json.loads(record.read_text())["data"] == "."


@pytest.mark.parametrize("name", ["images", "HAM10000_images_part_2"])
def test_the_manifests_find_the_images_of_any_download(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    download, out = tmp_path / "download", tmp_path / "out"
    (download / name).mkdir(parents=True)
    (download / name / "ISIC_1.jpg").touch()
    out.mkdir()
    monkeypatch.setattr(study, "lmd", lambda *words, cwd: True)
    (out / name).symlink_to(tmp_path / "moved")
    for _ in range(2):
        study.make_data(download, out)
    assert (out / name / "ISIC_1.jpg").exists()


@pytest.mark.parametrize(
    ("failing", "ends"), [("ham10000-profiles", None), ("ham10000-lt", "not expected: ham10000-lt")]
)
def test_a_failing_grid_does_not_stop_the_others(
    study: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    ends: str | None,
) -> None:
    seen = []

    def lmd(command: str, grid: str, *words: str, cwd: Path) -> bool:
        seen.append(grid)
        return grid != failing

    monkeypatch.setattr(study, "lmd", lmd)
    grids = ["ham10000-lt", "ham10000-profiles", "ham10000-long"]
    words = [str(tmp_path), "--out", str(tmp_path), "--steps", "grids", "--grids", *grids]
    if ends is None:
        study.main(words)
    else:
        with pytest.raises(SystemExit, match=ends):
            study.main(words)
    assert seen == grids


@pytest.mark.parametrize("code", [130, -9])
def test_an_interrupt_ends_the_study(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    end = subprocess.CompletedProcess([], code)
    monkeypatch.setattr(study.subprocess, "run", lambda *_, **__: end)
    with pytest.raises(SystemExit) as caught:
        study.lmd("benchmark", "ham10000-lt", cwd=tmp_path)
    assert caught.value.code == code


def test_its_grids_are_shipped(study: ModuleType) -> None:
    from lmd.benchmark.planning import plan_grid

    for name in study.GRIDS:
        assert Path(plan_grid(name).runs[0].request["data"]).name in study.MANIFESTS


def test_pages_get_the_newest_table(publishing: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "tiers.md").write_text("| new |\n")
    page.write_text("Before\n<!-- grid/tiers.md -->\n| old |\n<!-- end -->\nafter\n")
    wanted = "Before\n<!-- grid/tiers.md -->\n\n| new |\n\n<!-- end -->\nafter\n"
    for _ in range(2):
        publishing.fill(page)
        assert page.read_text() == wanted


@pytest.mark.parametrize("name", ["ham10000-natural", "ham10000-resnet18"])
def test_the_best_eight_rows_go_on(name: str, publishing: ModuleType) -> None:
    from lmd.benchmark.plan import load_grid
    from lmd.benchmark.planning import plan_grid

    with (publishing.RESULTS / "ham10000-lt" / "tiers.csv").open(newline="") as file:
        scores = {row["Method"]: float(row["balanced_accuracy"]) for row in csv.DictReader(file)}
    plan = plan_grid("ham10000-lt")
    rows = [row for row in plan.rows if not row.own or row.key == plan.reference]
    best = sorted(rows, key=lambda row: -scores[row.title])[:8]
    assert set(load_grid(name).methods) == {row.key for row in best}


def test_a_grid_of_one_method_has_no_summary(publishing: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tiers.csv").write_text("e_sampling,m_sampling,balanced_accuracy\n")
    publishing.summarise("ham10000-sampling", tmp_path)
    assert not (tmp_path / "summary.md").exists()


@pytest.mark.parametrize("grid", ["synthetic-sampling", "ham10000-natural", "ham10000-ablations"])
def test_published_runs_are_those_of_the_grid(grid: str, publishing: ModuleType) -> None:
    from lmd.benchmark.planning import plan_grid
    from lmd.benchmark.results import read_results

    found = read_results(
        plan_grid(grid), unpacked(publishing.RESULTS / grid / "runs.tar.xz"), resamples=10
    )
    assert found.runs
    assert not found.missing
