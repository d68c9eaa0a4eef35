"""A run on disk: its folder, record, predictions and history; no torch."""
