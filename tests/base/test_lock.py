"""One process at a time works in a folder, and a killed one does not block the next."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmd.base.errors import LmdError
from lmd.base.files import LOCK, locked

HOLD = """
import pathlib, sys, time
from lmd.base.files import locked
with locked(pathlib.Path(sys.argv[1]), "training"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_holder_is_named(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "training"),
        pytest.raises(LmdError, match=rf"another training is .*\(process {os.getpid()} on"),
        locked(tmp_path, "training"),
    ):
        pytest.fail("it was locked twice")
    with locked(tmp_path, remove=True):
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "held\n"
    with pytest.raises(LmdError, match=f"process {process.pid} on"), locked(tmp_path, "training"):
        pytest.fail("it was locked twice")
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    with locked(tmp_path, "training"):
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} on")


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"process 99999999999999999999 on here"])
def test_what_a_free_lock_contains_does_not_matter(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with locked(tmp_path):
        pass


FULL = """
import pathlib, resource, sys
from lmd.base.files import locked
resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))
with locked(pathlib.Path(sys.argv[1])):
    print("held")
"""


def test_a_full_disk_does_not_break_the_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("held\n", "")


WINDOWS = """
import os, pathlib, sys
sys.modules["fcntl"] = None
del os.sysconf, os.sysconf_names
import lmd.data.cache, lmd.fit.train
from lmd.base.files import locked, waiting_for
with locked(pathlib.Path(sys.argv[1])), waiting_for(pathlib.Path(sys.argv[1], "stage.lock")):
    print("held")
"""


def test_a_system_without_locks_works_without_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("held\n", "")
