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
    from lmd.crossval.folds import cross_validate
    from lmd.evaluation.evaluate import evaluate
    from lmd.fit.estimator import LongTailClassifier
    from lmd.fit.train import train
    from lmd.frozen.calibrate import calibrate
    from lmd.frozen.classifier import load_classifier
    from lmd.methods import METHODS
    from lmd.predict.predictor import load

_HOMES = {
    "METHODS": "lmd.methods",
    "LmdError": "lmd.base.errors",
    "LongTailClassifier": "lmd.fit.estimator",
    "calibrate": "lmd.frozen.calibrate",
    "cross_validate": "lmd.crossval.folds",
    "evaluate": "lmd.evaluation.evaluate",
    "load": "lmd.predict.predictor",
    "load_classifier": "lmd.frozen.classifier",
    "train": "lmd.fit.train",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import lmd` and `lmd --help` need no torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lmd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__doc__"])
