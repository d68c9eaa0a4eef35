"""Draws the report of a run from its record, predictions and history; nothing is scored again."""

from lmd.report.page import report_of, write_report

__all__ = ["report_of", "write_report"]
