"""Draws the report of a run from what the run left on disk; nothing is trained or scored again."""

from lmd.report.page import write_report

__all__ = ["write_report"]
