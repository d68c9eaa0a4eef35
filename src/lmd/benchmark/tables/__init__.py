"""The paper's tables, from records and predictions; no torch."""
