"""The files of a run: record, predictions and history; needs no torch."""
