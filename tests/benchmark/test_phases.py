"""Both phases of a benchmark with trials: order, failures and interruptions."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from grids import quiet_board, write_grid
from runs_on_disk import edited, write_hits
from typer.testing import CliRunner

from lmd.benchmark.backends import DIVERGED, Local
from lmd.benchmark.plan import Plan, PlannedRun
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.run import run_plan
from lmd.benchmark.trials import Choice, read_choices, settled
from lmd.cli.commands import app


class Stops(Local):
    """Ends the benchmark with Ctrl-C when a run of the second phase would start."""

    def start(self, run: PlannedRun) -> None:
        if run.seed == 1:
            raise KeyboardInterrupt
        super().start(run)


GRID = """
methods = ["ce"]
seeds = [0, 1]
reference = "ce"
PROTOCOL
[trials.settings]
ce = { lr = [0.01, 0.1, 1e30] }
"""


@pytest.mark.slow
def test_both_phases_and_an_interruption_between_them(tmp_path: Path) -> None:
    grid, out = write_grid(tmp_path, GRID), tmp_path / "out"
    words = ["benchmark", str(grid), "--out", str(out)]
    said = CliRunner().invoke(app, [*words, "--dry-run"]).output
    assert [line for line in said.splitlines() if line.startswith(("missing", "waiting"))] == [
        *("missing   ce-seed0", "missing   ce-lr=0.1-seed0", "missing   ce-lr=1e+30-seed0"),
        *("waiting   ce-lr=?-seed0", "waiting   ce-lr=?-seed1"),
    ]
    assert "Phase 1: trials with seed 0" in said
    assert "0 of 4 runs are finished; no estimate yet" in said
    assert not out.exists()
    out.mkdir()
    plan = plan_grid(grid)
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, out, lambda: Stops(out, 2), quiet_board())
    written = (out / "choices.json").read_bytes()
    choice = Choice.model_validate(json.loads(written)["choices"][0])
    assert [one.run for one in choice.trials if one.balanced_accuracy is None] == [
        "ce-lr=1e+30-seed0"
    ]
    trained = (out / "ce-seed0" / "record.json").stat().st_mtime_ns
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"chosen on validation: ce: lr {choice.chosen} of 0.01, 0.1, 1e+30" in done.output
    assert "2 of 2 runs are finished" in done.output
    assert (out / "choices.json").read_bytes() == written
    assert (out / "ce-seed0" / "record.json").stat().st_mtime_ns == trained
    folders = {path.name for path in out.iterdir() if (path / "record.json").exists()}
    final = {run.name for run in settled(plan, read_choices(plan, out)).runs}
    assert folders == final | {"ce-seed0", "ce-lr=0.1-seed0", "ce-lr=1e+30-seed0"}
    shown = CliRunner().invoke(app, ["table", str(grid), "--runs", str(out), "--resamples", "20"])
    assert f"CE: lr {choice.chosen} of 0.01, 0.1, 1e+30." in shown.output
    after = CliRunner().invoke(app, [*words, "--dry-run"]).output
    assert "2 of 2 runs are finished; all done" in after


def test_trials_without_a_validation_part_are_refused_before_any_training(tmp_path: Path) -> None:
    grid, out = write_grid(tmp_path, GRID), tmp_path / "out"
    with np.load(tmp_path / "toy.npz") as file:
        arrays = {name: file[name] for name in file if not name.startswith("val")}
    np.savez(tmp_path / "toy.npz", **arrays)
    done = CliRunner().invoke(app, ["benchmark", str(grid), "--out", str(out)])
    assert "[trials] choose on the validation part, which is empty" in str(done.exception)
    assert not out.exists()


class Pretends(Local):
    """Ends every run at once with the exit code of its name."""

    def __init__(self, folder: Path, codes: dict[str, int]) -> None:
        super().__init__(folder, 2)
        self.codes, self.begun = codes, list[str]()
        self._now: list[str] = []

    def start(self, run: PlannedRun) -> None:
        self.begun.append(run.name)
        self._now.append(run.name)
        code = self.codes.get(run.name, 0)
        if code == 0:
            write_hits(self.folder / run.name, (30, 10))
            with edited(self.folder / run.name) as record:
                record["request"] = run.request

    def ended(self) -> dict[str, int]:
        now, self._now = self._now, []
        return {name: self.codes.get(name, 0) for name in now}


@pytest.fixture
def two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, Path]:
    monkeypatch.setattr("lmd.benchmark.run.PAUSE", 0)
    text = 'data = "a.csv"\nmethods = ["ce", "rs", "focal"]\nseeds = [0, 1]\n[trials.settings]\n'
    text += "ce = { lr = [0.003, 0.01] }\nfocal = { gamma = [1.0, 2.0] }\n"
    (tmp_path / "grid.toml").write_text(text)
    (tmp_path / "out").mkdir()
    return plan_grid(tmp_path / "grid.toml"), tmp_path / "out"


def test_a_row_whose_trials_failed_waits_and_the_others_go_on(two_rows: tuple[Plan, Path]) -> None:
    plan, out = two_rows
    codes = {"ce-lr=0.003-seed0": 1, "focal-seed0": DIVERGED, "focal-gamma=1-seed0": DIVERGED}
    backend = Pretends(out, codes)
    outcome = run_plan(plan, out, lambda: backend, quiet_board())
    assert outcome.finished == ["ce-seed0", "rs-seed0", "rs-seed1"]
    # A row of which no value could be trained has failed.
    assert (set(outcome.failed), outcome.diverged) == (set(codes), {})
    assert read_choices(plan, out) == {}
    # The next call trains what is missing, and chooses.
    again = Pretends(out, {"focal-gamma=1-seed0": DIVERGED})
    outcome = run_plan(plan, out, lambda: again, quiet_board())
    assert again.begun[:3] == ["ce-lr=0.003-seed0", "focal-gamma=1-seed0", "focal-seed0"]
    assert again.begun[3:] == ["ce-seed1", "focal-seed1"]
    assert (set(outcome.diverged), outcome.failed) == ({"focal-gamma=1-seed0"}, {})
    assert {key: one.chosen for key, one in read_choices(plan, out).items()} == {
        "ce": "0.01",
        "focal": "2",
    }
    last = run_plan(plan, out, lambda: pytest.fail("nothing is to be done"), quiet_board())
    assert len(last.earlier) == 6


def test_blocks_are_completed_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmd.benchmark.run.PAUSE", 0)
    text = 'methods = ["focal", "rs_strong", "lmd"]\nseeds = [0, 1]\n[sweep.data]\n'
    grid = tmp_path / "grid.toml"
    grid.write_text(text + '"task 1" = "a.csv"\n"task 2" = "b.csv"\n')
    plan, out = plan_grid(grid), tmp_path / "out"
    out.mkdir()
    backend = Pretends(out, {"lmd-data=task_1-seed0": 1})
    run_plan(plan, out, lambda: backend, quiet_board())
    blocks = [backend.begun[i : i + 3] for i in range(0, 12, 3)]
    expected = [f"data=task_{task}-seed{seed}" for seed in (0, 1) for task in (1, 2)]
    assert [{name.split("-", 1)[1] for name in block} for block in blocks] == [
        {name} for name in expected
    ]


def test_finished_trials_without_a_choice_are_not_repeated(two_rows: tuple[Plan, Path]) -> None:
    plan, out = two_rows
    run_plan(plan, out, lambda: Pretends(out, {}), quiet_board())
    (out / "choices.json").unlink()  # as if killed just before it was written
    shutil.rmtree(out / "ce-seed1")
    again = Pretends(out, {})
    run_plan(plan, out, lambda: again, quiet_board())
    assert again.begun == ["ce-seed1"]
    assert (out / "choices.json").exists()
