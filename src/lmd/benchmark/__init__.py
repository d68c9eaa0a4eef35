"""Grids of runs: planning them, and training the missing ones side by side."""
