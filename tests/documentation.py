"""The code blocks of the docs, run as they are printed."""

import re
from collections.abc import Mapping
from typing import Any

from toys import ROOT


def page(name: str) -> str:
    """The text of a page of ``docs/``, or of the README."""
    return (ROOT / name if name == "README.md" else ROOT / "docs" / name).read_text("utf-8")


def blocks(name: str, language: str = "python") -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page(name), flags=re.DOTALL)


def run_python(
    name: str, names: dict[str, Any] | None = None, replaced: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run all Python of a page as one script in the working folder; returns its names.

    ``replaced`` exchanges what would take too long, and must occur.
    """
    code, found = "\n".join(blocks(name)), {} if names is None else names
    assert code, f"{name} has no Python"
    for old, new in (replaced or {}).items():
        assert old in code, f"{name} has no {old}"
        code = code.replace(old, new)
    exec(compile(code, name, "exec"), found)
    return found
