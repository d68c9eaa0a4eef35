"""A run killed with SIGKILL in both stages and resumed ends with bit-identical weights."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toys import write_npz

SETTINGS = [
    "backbone=resnet8",
    "weights=none",
    "image_size=16",
    "epochs=4",
    "stage2_epochs=4",
    "batch_size=4",
    "workers=1",
    "virtual_features=500",
]


def command(data: Path, out: Path) -> list[str]:
    words = [sys.executable, "-m", "lmd", "train", str(data), "--out", str(out), "--resume"]
    for setting in SETTINGS:
        words += ["--set", setting]
    return words


def start(data: Path, out: Path) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command(data, out), env=environment, stdout=quiet, stderr=quiet)


def kill_in(process: "subprocess.Popen[bytes]", out: Path, stage: str, epoch: str) -> None:
    """Kill -9 as soon as the history shows this epoch: somewhere inside the next one."""
    history, limit = out / "history.csv", time.monotonic() + 120
    while time.monotonic() < limit:
        text = history.read_text() if history.exists() else ""
        rows = [line.split(",")[:3] for line in text.splitlines()[1:]]
        if any(row[0] == stage and row[2] == epoch for row in rows):
            break
        assert process.poll() is None, "it finished before it could be killed"
        time.sleep(0.01)
    else:
        pytest.fail("the run never got there")
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL


@pytest.mark.slow
def test_killed_twice_ends_bit_identical(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "toy.npz", counts=(40, 20, 8))
    assert start(data, tmp_path / "whole").wait(120) == 0

    out = tmp_path / "killed"
    kill_in(start(data, out), out, stage="1", epoch="2")
    assert not (out / "model.safetensors").exists()
    kill_in(start(data, out), out, stage="2", epoch="1")
    assert not (out / "model.safetensors").exists()
    assert start(data, out).wait(120) == 0

    same = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == same


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_politely(tmp_path: Path, number: signal.Signals) -> None:
    data, out = write_npz(tmp_path / "toy.npz", counts=(40, 20, 8)), tmp_path / "run"
    process = subprocess.Popen(
        command(data, out),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 60
    while not (out / "history.csv").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert (out / "checkpoint" / "state.safetensors").exists()
