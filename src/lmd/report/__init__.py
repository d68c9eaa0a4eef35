"""The pages of a run, self-contained and written from its files alone; the model card."""

from lmd.report.card_files import card_page, write_card
from lmd.report.page import write_report

__all__ = ["card_page", "write_card", "write_report"]
