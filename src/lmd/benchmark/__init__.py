"""Grids of runs: which there are, which are missing, and how they are done side by side."""
