"""Balanced linear classifiers on frozen features, and the choice of one of them.

No row of ``METHODS``: nothing here trains an encoder. It applies formulas of several methods to
features that some encoder has already made.
"""

from lmd.methods.frozen.choose import PAPERS, TITLES, Chosen, Outcome, Problem, calibrate_features
from lmd.methods.frozen.fits import Rows
from lmd.methods.frozen.linear import Linear, Scaling

__all__ = [
    "PAPERS",
    "TITLES",
    "Chosen",
    "Linear",
    "Outcome",
    "Problem",
    "Rows",
    "Scaling",
    "calibrate_features",
]
