"""The demo can be interrupted, and goes on as it says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def interrupted(out: Path, epochs: int, *words: str) -> str:
    """Start the demo, interrupt it after so many epochs of its first run; what it said at last."""
    state = out / "ce" / "history.csv"
    process = subprocess.Popen(
        [sys.executable, "-m", "lmd", "demo", "--out", str(out), *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + 600
    while not state.exists() or len(state.read_text().splitlines()) <= epochs:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    return said.splitlines()[-1]


@pytest.mark.slow
def test_an_interrupted_demo_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    said = interrupted(out, 1)
    assert said.startswith("interrupted: run the same command with --resume to continue")
    before = json.loads((out / "ce" / "record.json").read_text())["created"]
    first = (out / "ce" / "history.csv").read_text().splitlines()[1]
    interrupted(out, 2, "--resume")
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    assert json.loads((out / "ce" / "record.json").read_text())["created"] == before
    assert (out / "ce" / "history.csv").read_text().splitlines()[1] == first
