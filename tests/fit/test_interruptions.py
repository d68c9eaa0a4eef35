"""Two trainings in one folder, kills between any two writes, and what ``--resume`` repairs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import write_npz

import lmd
from lmd.base.errors import LmdError
from lmd.base.files import locked
from lmd.runs.folder import REQUIRED, Run

QUICK: dict[str, Any] = {
    "backbone": "resnet8",
    "weights": "none",
    "image_size": 16,
    "epochs": 1,
    "batch_size": 16,
    "workers": 0,
}


CHECKPOINT = "checkpoint/state.safetensors"


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs, not even the removal of temporary files."""


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Run]:
    data = write_npz(tmp_path / "toy.npz", (6, 4))

    def call(**options: Any) -> Run:
        options = {"out": tmp_path / "run", "resume": True} | options
        return lmd.train(data, method="ce", settings=QUICK, quiet=True, **options)

    return call


def content(run: Run) -> dict[str, bytes]:
    names = ("model.safetensors", "model.json", "predictions.npz")
    return {name: (run.path / name).read_bytes() for name in names}


def inside(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("options", [{"resume": False}, {}, {"resume": False, "overwrite": True}])
def test_a_running_training_is_not_disturbed(
    train: Callable[..., Run], tmp_path: Path, options: dict[str, bool]
) -> None:
    out = tmp_path / "run"
    with locked(out, "training"), pytest.raises(LmdError, match=rf"process {os.getpid()} on"):
        train(**options)
    assert inside(out) == {".lock"}


def test_a_training_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match="does not exist"):
        lmd.train(tmp_path / "nowhere", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("x")
    with pytest.raises(LmdError, match="not a run folder"):
        lmd.train(tmp_path / "nowhere", out=tmp_path / "mine", overwrite=True, quiet=True)
    assert inside(tmp_path / "mine") == {"letter.txt"}


def test_a_run_is_not_lost_to_one_that_cannot_start(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    run = train()
    before = content(run)
    with pytest.raises(LmdError, match="does not exist"):
        lmd.train(tmp_path / "typo", out=run.path, overwrite=True, quiet=True)
    assert content(run) == before
    again = lmd.train(
        tmp_path / "toy.npz", method="rs", settings=QUICK, out=run.path, overwrite=True, quiet=True
    )
    assert again.record.method.key == "rs"
    assert content(run) != before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"settings": {"epochs": 999}}, "epochs: 1 → 999"),
        ({"method": "rs"}, "method: ce → rs"),
        ({"protocol": "small"}, "batch_size: 16 → 64"),
        ({"columns": {"label_column": "dx"}}, "label_column: None → dx"),
        ({"skip_bad": True}, "skip_bad: False → True"),
    ],
)
def test_what_is_given_without_data_must_be_what_was_run(
    train: Callable[..., Run], given: dict[str, Any], said: str
) -> None:
    run = train()
    with pytest.raises(LmdError, match="started with other settings") as caught:
        lmd.train(out=run.path, resume=True, quiet=True, **given)
    assert said in str(caught.value)
    same = {"settings": {"epochs": 1, "image_size": 16}, "method": "ce"}
    assert lmd.train(out=run.path, resume=True, quiet=True, **same).path == run.path


@pytest.mark.parametrize("removed", [False, True])
def test_interrupted_before_the_first_checkpoint(
    train: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    removed: bool,
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lmd.fit.train.fit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train()
    assert (tmp_path / "run" / "checkpoint").is_dir()
    if removed:
        (tmp_path / "run" / "checkpoint").rmdir()
    assert train().record.status == "finished"


def test_killed_at_every_write_and_resumed(
    train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = content(train(out=tmp_path / "whole"))
    replace, unlink, left = Path.replace, Path.unlink, 0

    def replace_or_die(self: Path, target: Path) -> Path:
        nonlocal left
        if self.suffix == ".tmp":
            left -= 1
            if left < 0:
                raise Killed
        return replace(self, target)

    def unlink_if_alive(self: Path, missing_ok: bool = False) -> None:
        if left >= 0:  # a killed process removes nothing
            unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "replace", replace_or_die)
    monkeypatch.setattr(Path, "unlink", unlink_if_alive)
    deaths, run = 0, None
    while run is None:
        left = deaths  # one write more than before
        try:
            run = train()
        except Killed:
            deaths += 1
            left = 0
    assert deaths >= 6
    assert content(run) == whole
    assert inside(run.path) == inside(tmp_path / "whole")


@pytest.mark.parametrize(
    "name", sorted({CHECKPOINT, "novelty.safetensors", *REQUIRED} - {"record.json"})
)
def test_resuming_a_finished_run_makes_what_is_missing(
    train: Callable[..., Run], name: str
) -> None:
    run = train()
    before, expected = content(run), inside(run.path)
    (run.path / name).unlink()
    (run.path / ".report.html.0123456789ab.tmp").write_bytes(b"half")
    (run.path / "checkpoint" / ".state.safetensors.0123456789ab.tmp").write_bytes(b"half")
    train()
    if name == CHECKPOINT:  # a finished run needs no checkpoint
        expected -= {name}
    assert inside(run.path) == expected
    assert content(run) == before


def test_a_record_with_another_request_is_one_line(train: Callable[..., Run]) -> None:
    run = train()
    record = run.record
    protocol = record.request.protocol | {"lr": "fast"}
    request = record.request.model_copy(update={"protocol": protocol})
    run.write_record(record.replaced(request=request, status="running"))
    with pytest.raises(LmdError, match=r"record\.json: field 'request': setting 'lr'"):
        lmd.train(out=run.path, resume=True, quiet=True)
