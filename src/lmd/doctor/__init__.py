"""The doctor: finds what is wrong with a data set, and writes a cleaned manifest."""

from lmd.data.scan import KINDS, SEVERITIES, Finding
from lmd.data.source import Columns
from lmd.doctor.clean import Cleaned
from lmd.doctor.examine import Examination, examine, quick_check
from lmd.doctor.text import as_json, cleaned_lines, exit_code, finding_lines, summary

__all__ = [
    "KINDS",
    "SEVERITIES",
    "Cleaned",
    "Columns",
    "Examination",
    "Finding",
    "as_json",
    "cleaned_lines",
    "examine",
    "exit_code",
    "finding_lines",
    "quick_check",
    "summary",
]
