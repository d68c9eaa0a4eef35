"""Loads the scripts of benchmarks and studies, which are no packages."""

import importlib.util
import sys
from types import ModuleType

from toys import ROOT


def script(name: str, folder: str = "benchmarks") -> ModuleType:
    """The module ``FOLDER/NAME.py``."""
    path = ROOT / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{folder}/{name}".replace("/", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


common = script("common")
sys.modules.setdefault("common", common)  # the scripts import it by this name
