"""The cache: files that lmd can make or download again."""

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """``$LMD_CACHE/KIND``, or ``~/.cache/lmd/KIND`` if the variable is not set."""
    base = os.environ.get("LMD_CACHE")
    return (Path(base).expanduser() if base else Path.home() / ".cache" / "lmd") / kind
