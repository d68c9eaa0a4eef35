"""A grid runs, continues after kills and failed runs, and never repeats finished ones."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grids import bytes_of, quiet_board, write_grid
from rich.console import Console
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.base.files import locked
from lmd.benchmark.backends import Local, environment
from lmd.benchmark.plan import Plan, PlannedRun, inspect, write_plan
from lmd.benchmark.planning import identify, plan_grid
from lmd.benchmark.run import (
    Clock,
    Outcome,
    Progress,
    Snapshot,
    last_message,
    open_board,
    progress,
    run_plan,
)
from lmd.cli.commands import app
from lmd.runs.folder import Run


def do(plan: Plan, folder: Path, backend: Local | None = None) -> Outcome:
    folder.mkdir(exist_ok=True)
    return run_plan(plan, folder, lambda: backend or Local(folder, 2), quiet_board())


def rows_of(folder: Path, run: PlannedRun) -> int:
    return progress(run, folder).done


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A benchmark of two runs through the command; the learning rate of one makes it fail."""
    folder = tmp_path_factory.mktemp("half")
    grid = write_grid(folder, 'methods = ["ce"]\nPROTOCOL\n[sweep]\nlr = [1e30, 0.05]\n')
    done = CliRunner().invoke(app, ["benchmark", str(grid), "--out", str(folder / "out")])
    assert done.exit_code == 1, done.output
    return grid, folder / "out", done.output


def test_a_failing_run_is_reported_and_the_others_finish(half_done: tuple[Path, Path, str]) -> None:
    _, out, said = half_done
    log = out / "logs" / "ce-lr=1e+30-seed0.txt"
    assert "1 of 2 runs are finished (1 now, 0 before)" in said
    assert "failed: ce-lr=1e+30-seed0: loss term 'loss' is" in said
    assert str(log) in said
    assert "error: loss term 'loss' is" in log.read_text()
    record = Run(out / "ce-lr=0.05-seed0").record
    assert record.status == "finished"
    assert record.command.startswith("lmd train ")
    assert record.machine.threads == 1 or len(os.sched_getaffinity(0)) != 2
    assert record.request.protocol["workers"] == 0


def test_a_finished_run_is_never_repeated(half_done: tuple[Path, Path, str]) -> None:
    grid, out, _ = half_done
    plan = plan_grid(grid)
    assert [took is None for took in inspect(plan, out).values()] == [True, False]
    said = CliRunner().invoke(app, ["benchmark", str(grid), "--out", str(out), "--dry-run"])
    begun, finished, left = said.output.splitlines()
    assert (begun.split(), finished.split()) == (
        ["begun", "ce-lr=1e+30-seed0"],
        ["finished", "ce-lr=0.05-seed0"],
    )
    assert left.startswith("1 of 2 runs are finished; 1 min left, until ")
    only = Plan(**{**vars(plan), "runs": plan.runs[1:]})
    before = (out / "ce-lr=0.05-seed0" / "record.json").stat().st_mtime_ns
    outcome = run_plan(only, out, lambda: pytest.fail("nothing is to be done"), quiet_board())
    assert outcome == Outcome(earlier=["ce-lr=0.05-seed0"])
    assert (out / "ce-lr=0.05-seed0" / "record.json").stat().st_mtime_ns == before
    write_plan(plan, out)  # as the command left it


def test_other_settings_are_an_error_that_names_them(half_done: tuple[Path, Path, str]) -> None:
    grid, out, _ = half_done
    other = grid.with_name("other.toml")
    other.write_text(grid.read_text().replace("batch_size = 8", "batch_size = 7"))
    done = CliRunner().invoke(app, ["benchmark", str(other), "--out", str(out)])
    assert isinstance(done.exception, LmdError)
    assert "ce-lr=0.05-seed0: batch_size: 8 → 7" in str(done.exception)


def test_finished_runs_are_known_by_their_images_not_by_the_name_of_the_data(
    half_done: tuple[Path, Path, str], tmp_path: Path
) -> None:
    grid, out, _ = half_done
    name = "ce-lr=0.05-seed0"
    text = grid.read_text().replace("1e30, ", "")
    for folder, labels in (("same", None), ("other", 1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "grid.toml").write_text(text)
        with np.load(grid.with_name("toy.npz")) as file:
            arrays = dict(file)
        if labels is not None:
            arrays["train_labels"][0] = labels
        np.savez(tmp_path / folder / "toy.npz", **arrays)
    words = ["--out", str(out), "--dry-run"]
    done = CliRunner().invoke(app, ["benchmark", str(tmp_path / "same" / "grid.toml"), *words])
    assert f"finished  {name}" in done.output
    # The name may be another one too.
    (tmp_path / "same" / "toy.npz").rename(tmp_path / "same" / "moved.npz")
    (tmp_path / "same" / "grid.toml").write_text(text.replace("toy.npz", "moved.npz"))
    done = CliRunner().invoke(app, ["benchmark", str(tmp_path / "same" / "grid.toml"), *words])
    assert f"finished  {name}" in done.output
    other = str(tmp_path / "other" / "grid.toml")
    shown = CliRunner().invoke(app, ["table", other, "--runs", str(out)])
    for refused in (CliRunner().invoke(app, ["benchmark", other, *words]), shown):
        assert isinstance(refused.exception, LmdError)
        assert f"{name}" in str(refused.exception)
        assert "other/toy.npz (other images, labels or parts)" in str(refused.exception)


def test_a_finished_run_may_come_from_a_machine_that_has_the_data(
    half_done: tuple[Path, Path, str],
) -> None:
    grid, out, _ = half_done
    [_, finished] = plan_grid(grid).runs

    def asked(**change: object) -> Plan:
        run = replace(finished, request=finished.request | change)
        return identify(Plan(**{**vars(plan_grid(grid)), "runs": [run]}), out)

    there = "/elsewhere/" + Path(finished.request["data"]).name
    columns = finished.request["columns"] | {"root": "/elsewhere"}
    assert inspect(asked(data=there, columns=columns), out)[finished.name] is not None
    # Data that cannot be read here is only known by its name.
    with pytest.raises(LmdError, match=r"data: toy\.npz → other\.csv"):
        inspect(asked(data="/elsewhere/other.csv"), out)
    # A version that is older than a setting cannot have recorded it, but columns may be left out.
    run = replace(finished, request=finished.request | {"settings": {"later": 1}})
    plan = Plan(**{**vars(plan_grid(grid)), "runs": [run]})
    assert inspect(plan, out)[finished.name] is not None
    with pytest.raises(LmdError, match="label_column: None → dx"):
        inspect(
            asked(data=there, columns={**finished.request["columns"], "label_column": "dx"}), out
        )


def test_a_table_of_what_is_there(half_done: tuple[Path, Path, str]) -> None:
    grid, out, _ = half_done
    words = ["table", str(grid), "--runs", str(out), "--form", "sweep"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "Missing (1 of 2 runs): ce-lr=1e+30-seed0." in done.output


class KillsOnce(Local):
    """Kills each run's process with SIGKILL once, after a few epochs of this session."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        super().__init__(folder, 2)
        self.runs = {run.name: run for run in plan.runs}
        self.from_epoch = {name: rows_of(folder, run) + 2 for name, run in self.runs.items()}
        self.killed: list[str] = []

    def ended(self) -> dict[str, int]:
        for name, (process, _) in self._running.items():
            epochs = rows_of(self.folder, self.runs[name])
            if name not in self.killed and epochs >= self.from_epoch[name]:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                self.killed.append(name)
        return super().ended()


Process = subprocess.Popen[str]


@pytest.fixture
def start_parent() -> Iterator[Callable[[Path, Path], Process]]:
    """Starts `lmd benchmark` in a separate process, which ends with the test."""
    begun: list[Process] = []

    def start(grid: Path, out: Path) -> Process:
        # Tests that a script starts in the background have the signal ignored.
        code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        code += "from lmd.cli.commands import app; app()"
        begun.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    code,
                    "benchmark",
                    str(grid),
                    "--out",
                    str(out),
                    "--workers",
                    "2",
                ],
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                env=environment(1),
            )
        )
        return begun[-1]

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        if process.stderr is not None and not process.stderr.closed:
            process.communicate()


def children_of(out: Path) -> list[int]:
    """Processes whose output goes to a log of this benchmark."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
            target = (place / "fd" / "1").readlink()
        except OSError:
            continue
        if b"lmd.benchmark.child" in words and target.is_relative_to(out):
            found.append(int(place.name))
    return found


def wait_until(true: Callable[[], bool], seconds: float = 90) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found in /proc")
def test_kills_cost_no_more_than_an_epoch(
    tmp_path: Path, start_parent: Callable[[Path, Path], Process]
) -> None:
    grid = write_grid(tmp_path, 'methods = ["ce"]\nPROTOCOL', epochs=60)
    plan, out = plan_grid(grid), tmp_path / "out"
    run = plan.runs[0]

    undisturbed = start_parent(grid, tmp_path / "whole")
    interrupted = start_parent(grid, out)
    wait_until(lambda: rows_of(out, run) >= 2)
    interrupted.send_signal(signal.SIGINT)
    _, said = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    assert children_of(out) == []
    first = rows_of(out, run)

    killed = start_parent(grid, out)
    wait_until(lambda: rows_of(out, run) >= first + 2)
    killed.kill()
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    # The run ends with its parent, whatever ended that.
    wait_until(lambda: children_of(out) == [], 10)
    second = rows_of(out, run)
    assert first < second < 55

    backend = KillsOnce(out, plan)
    with locked(out):
        assert do(plan, out, backend) == Outcome(finished=[run.name])
    assert backend.killed == [run.name]

    undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0
    assert bytes_of(out / run.name) == bytes_of(tmp_path / "whole" / run.name)
    # Four processes began with the same words, and what they trained adds up.
    log = (out / "logs" / f"{run.name}.txt").read_text()
    assert log.count("12 validation, 12 test images") == 4
    assert rows_of(out, run) == 60


def test_two_benchmarks_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(LmdError, match=f"process {os.getpid()} on"),
        locked(tmp_path),
    ):
        pytest.fail("it was locked twice")
    with locked(tmp_path):
        pass


def test_cores_are_divided(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert (Local(tmp_path).workers, Local(tmp_path).threads) == (cores, 1)
    assert Local(tmp_path, 1).threads == cores
    assert Local(tmp_path, 5 * cores).threads == 1
    assert environment(3)["OMP_NUM_THREADS"] == "3"
    with pytest.raises(LmdError, match="workers"):
        Local(tmp_path, 0)


def test_the_estimate_follows_finished_runs_and_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = write_grid(tmp_path, 'methods = ["ce", "rs"]\nseeds = [0, 1]\nPROTOCOL', epochs=10)
    plan, now = plan_grid(grid), [0.0]
    monkeypatch.setattr("lmd.benchmark.run.time.monotonic", lambda: now[0])
    clock = Clock(plan, {})
    waiting = plan.runs[1:]
    clock.start("ce-seed0")
    assert clock.remaining(waiting, {"ce-seed0": Progress(0, 10, "")}, 1) is None
    now[0] = 40.0
    # Four of ten epochs in 40 s: 60 s are left of it, and 100 s for each of the three others.
    at = {"ce-seed0": Progress(4, 10, "")}
    assert clock.remaining(waiting, at, 1) == pytest.approx(360)
    assert clock.remaining(waiting, at, 2) == pytest.approx(180)
    now[0] = 90.0
    assert clock.end("ce-seed0", finished=True) == pytest.approx(90)
    assert clock.expected("ce") == clock.expected("rs") == pytest.approx(90)
    # A continued run does not show how long a whole one takes.
    clock.start("rs-seed0")
    clock.remaining([], {"rs-seed0": Progress(9, 10, "")}, 1)
    now[0] = 95.0
    clock.end("rs-seed0", finished=True)
    assert clock.expected("rs") == pytest.approx(90)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_board_says_what_runs_and_when_it_ends(terminal: bool) -> None:
    text = io.StringIO()
    running = {"ce-seed0": Progress(3, 10, "stage 1, epoch 3/10")}
    with open_board(Console(file=text, force_terminal=terminal, width=120)) as board:
        board.show(Snapshot(4, 1, 1, running, 1, 7200))
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "\n", text.getvalue()).splitlines()
    shown = [line for line in lines if "1 of 4 runs done, 1 failed, 1 running, 1 waiting" in line]
    assert len(shown) == 1 + terminal  # a terminal's last picture is drawn once more
    assert "2 h left, until " in shown[0]
    assert any("stage 1, epoch 3/10" in line for line in lines)
    assert any("ce-seed0" in line for line in lines)
    assert Snapshot(4, 3, 1, {}, 0, 0.0).summary == "3 of 4 runs done, 1 failed"


def test_the_reason_of_a_failure_is_of_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("=== started 1\nerror: the disk is full\n=== started 2\nout of memory\n")
    assert last_message(log) == "out of memory"
    log.write_text("error: the disk is full\nTraceback\n")
    assert last_message(log) == "the disk is full"


def test_a_history_is_read_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = plan_grid(write_grid(tmp_path, 'methods = ["ce"]\nPROTOCOL', epochs=5)).runs
    path = Run(tmp_path / run.name).history_path
    assert progress(run, tmp_path).where == "starting"
    path.parent.mkdir()
    path.write_text("stage,epoch\n1,1\n")
    assert progress(run, tmp_path) == Progress(1, 5, "stage 1, epoch 1/5")
    monkeypatch.setattr(Run, "read_history", lambda run: pytest.fail("it has not changed"))
    assert progress(run, tmp_path).done == 1


def test_a_run_that_cannot_be_started_does_not_stop_the_others(tmp_path: Path) -> None:
    plan = plan_grid(write_grid(tmp_path, 'methods = ["ce", "rs"]\nPROTOCOL\n'))
    out = tmp_path / "out"
    (out / "logs" / "ce-seed0.txt").mkdir(parents=True)
    found = do(plan, out)
    assert found.finished == ["rs-seed0"]
    assert "could not be started" in found.failed["ce-seed0"]


def test_a_child_ends_if_its_parent_has_ended_before(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lmd.benchmark.child"], stdin=subprocess.PIPE, env=environment(1)
    )
    # A process that is not its parent.
    process.communicate(json.dumps({"parent": 1, "request": {}, "out": str(tmp_path)}).encode())
    assert process.returncode == 1
