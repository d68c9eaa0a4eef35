"""Draws the report of a run from its record, predictions and history, without scoring again."""

from lmd.report.page import write_report

__all__ = ["write_report"]
