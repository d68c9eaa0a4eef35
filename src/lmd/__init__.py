"""Long-tailed medical image diagnosis: train, compare and ship classifiers.

>>> import lmd
>>> run = lmd.train("folder/of/classes", method="lmd")            # doctest: +SKIP
>>> lmd.load(run).predict("image.jpg").labels                     # doctest: +SKIP
('melanoma',)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "LmdError",
    "LongTailClassifier",
    "calibrate",
    "cross_validate",
    "evaluate",
    "load",
    "load_classifier",
    "train",
]

if TYPE_CHECKING:
    from lmd.base.errors import LmdError
    from lmd.benchmark.folds import cross_validate
    from lmd.deploy.classifier import load_classifier
    from lmd.deploy.predict import load
    from lmd.methods import METHODS
    from lmd.runs.calibrate import calibrate
    from lmd.runs.estimator import LongTailClassifier
    from lmd.runs.evaluate import evaluate
    from lmd.runs.train import train

_HOMES = {
    "METHODS": "lmd.methods",
    "LmdError": "lmd.base.errors",
    "LongTailClassifier": "lmd.runs.estimator",
    "calibrate": "lmd.runs.calibrate",
    "cross_validate": "lmd.benchmark.folds",
    "evaluate": "lmd.runs.evaluate",
    "load": "lmd.deploy.predict",
    "load_classifier": "lmd.deploy.classifier",
    "train": "lmd.runs.train",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import lmd` and `lmd --help` need no torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lmd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__doc__"])
