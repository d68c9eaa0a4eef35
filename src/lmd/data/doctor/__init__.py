"""The doctor for everyone's own data: what is wrong with a data set, and a cleaned manifest."""

from lmd.data.doctor.examine import Examination, examine, quick_check
from lmd.data.doctor.findings import KINDS, SEVERITIES, Finding
from lmd.data.doctor.mend import Mended
from lmd.data.doctor.scan import Columns
from lmd.data.doctor.text import as_json, exit_code, finding_lines, mended_lines, summary

__all__ = [
    "KINDS",
    "SEVERITIES",
    "Columns",
    "Examination",
    "Finding",
    "Mended",
    "as_json",
    "examine",
    "exit_code",
    "finding_lines",
    "mended_lines",
    "quick_check",
    "summary",
]
