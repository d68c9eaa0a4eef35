"""Where files are kept that can be made or fetched again."""

from pathlib import Path

import pytest

from lmd.base.files import cache_folder


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LMD_CACHE", str(tmp_path))
    assert cache_folder("weights") == tmp_path / "weights"
    monkeypatch.delenv("LMD_CACHE")
    assert cache_folder("images") == Path.home() / ".cache" / "lmd" / "images"
