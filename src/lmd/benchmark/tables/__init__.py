"""The paper's tables, from records and predictions; no torch."""

from lmd.benchmark.tables.formats import make_tables
from lmd.benchmark.tables.results import read_results, unpacked

__all__ = ["make_tables", "read_results", "unpacked"]
