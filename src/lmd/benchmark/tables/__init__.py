"""The paper's tables and figures of sweeps, from records and predictions; no torch."""

from lmd.benchmark.tables.figure import sweep_figure
from lmd.benchmark.tables.formats import make_tables
from lmd.benchmark.tables.results import read_results

__all__ = ["make_tables", "read_results", "sweep_figure"]
