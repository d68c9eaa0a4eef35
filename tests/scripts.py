"""Loads the scripts of the benchmarks, which are no package."""

import importlib.util
import sys
from types import ModuleType

from toys import ROOT


def script(name: str) -> ModuleType:
    """The module ``benchmarks/NAME.py``."""
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = script("common")
sys.modules.setdefault("common", common)  # the scripts import it by this name
