"""Files are written whole or not at all."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, atomic_write_all


def test_atomic_write_replaces_and_keeps_ordinary_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")
    (tmp_path / "ordinary").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    atomic_write(path, lambda file: torch.save(torch.arange(3), file))
    assert torch.equal(torch.load(path, weights_only=True), torch.arange(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "ordinary"]


def test_a_failing_writer_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write_all({tmp_path / "other": b"new", path: fail})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match=r"cannot write .*absent/file: No such file"):
        atomic_write(tmp_path / "absent" / "file", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LmdError, match=r"cannot write .*folder"):
        atomic_write(tmp_path / "folder", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    def fill_up(file: BinaryIO) -> None:
        # The temporary file becomes the device on which every write finds the disk full.
        device = os.open("/dev/full", os.O_WRONLY)
        os.dup2(device, file.fileno())
        os.close(device)
        file.write(b"x" * 100_000)

    with pytest.raises(LmdError, match="the disk is full; free some space"):
        atomic_write(tmp_path / "file", fill_up)
    assert list(tmp_path.iterdir()) == []
