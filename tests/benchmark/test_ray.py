"""The same grid on a Ray cluster gives the same numbers, also when a worker is lost."""

import io
import os
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console
from toys import write_npz

from lmd.base.errors import LmdError
from lmd.benchmark.backends import Local, OnRay, import_ray
from lmd.benchmark.plan import Plan
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.run import open_board, progress, run_plan

GRID = """data = "toy.npz"
methods = ["ce"]
seeds = [0, 1]
[protocol]
backbone = "resnet8"
weights = "none"
image_size = 16
epochs = 30
batch_size = 8
"""


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LmdError, match=r"pip install 'lmd\[ray\]'"):
        import_ray()


def workers_of(out: Path) -> list[int]:
    """The Ray workers whose child writes to a log of this benchmark."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
            target = (place / "fd" / "1").readlink()
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"lmd.benchmark.child" in words and target.is_relative_to(out):
            found.append(int(parent))
    return found


class LosesAWorker(OnRay):
    """Kills the worker of the first run that has trained two epochs: a lost node."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(folder, "local", 2)
        self.plan, self.lost = plan, 0

    def ended(self) -> dict[str, int]:
        if not self.lost:
            at = [progress(run, self.folder).done for run in self.plan.runs]
            workers = workers_of(self.folder)
            if max(at) >= 2 and workers:
                os.kill(workers[0], signal.SIGKILL)
                self.lost = workers[0]
        return super().ended()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves sockets to the collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_gives_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    write_npz(tmp_path / "toy.npz")
    (tmp_path / "grid.toml").write_text(GRID)
    plan = plan_grid(tmp_path / "grid.toml")
    plain, cluster = tmp_path / "plain", tmp_path / "cluster"
    plain.mkdir()
    cluster.mkdir()
    backends: list[LosesAWorker] = []

    def on_ray() -> OnRay:
        backends.append(LosesAWorker(plan, cluster))
        return backends[0]

    board = io.StringIO()
    first = run_plan(plan, cluster, on_ray, open_board(Console(file=board)))
    assert sorted(first.finished) == ["ce-seed0", "ce-seed1"], first
    assert backends[0].lost > 0
    second = run_plan(plan, plain, lambda: Local(plain, 2), open_board(Console(file=board)))
    assert not second.failed
    for run in plan.runs:
        for name in ("model.safetensors", "predictions.npz"):
            same = (plain / run.name / name).read_bytes()
            assert (cluster / run.name / name).read_bytes() == same
    logs = "".join(path.read_text() for path in (cluster / "logs").iterdir())
    assert logs.count("12 validation, 12 test images") == 3


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(LmdError, match="ray start --head"):
        OnRay(tmp_path, "127.0.0.1:1", None)
